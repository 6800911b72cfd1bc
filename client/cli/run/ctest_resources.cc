#include "client/cli/run/ctest_resources.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

constexpr char kGroup[] = "CTEST_RESOURCE_GROUP_";

absl::Status Wrong(const std::string& name, absl::string_view value) {
  return absl::InvalidArgumentError(absl::StrCat(name, "=\"", value, "\" does not have the form that CTest writes"));
}

absl::Status NotSet(const std::string& name, const std::string& other, absl::string_view value) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is not set, but ", other, "=\"", value, "\": pass all of CTest's variables on"));
}

// "id:gpu_1,slots:2;id:gpu_2,slots:1".
absl::Status AddSlots(const std::string& name, absl::string_view value, CtestSlots* slots) {
  for (absl::string_view item : absl::StrSplit(value, ';')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(item, ',');
    uint64_t count = 0;
    if (parts.size() != 2) return Wrong(name, value);
    absl::string_view id = parts[0];
    absl::string_view number = parts[1];
    if (!absl::ConsumePrefix(&id, "id:") || id.empty() || !absl::ConsumePrefix(&number, "slots:") ||
        !absl::SimpleAtoi(number, &count) || count == 0 || number[0] == '-') {
      return Wrong(name, value);
    }
    (*slots)[std::string(id)] += count;
  }
  return absl::OkStatus();
}

// Returns the most units of the pool on that device.
uint64_t MostOn(absl::string_view uuid, const v1::Pool& pool) {
  for (const v1::DeviceCap& cap : pool.device_caps()) {
    if (cap.uuid() == uuid) return cap.cap();
  }
  return pool.device_cap() == 0 ? pool.cap() : pool.device_cap();
}

}  // namespace

std::string CtestId(absl::string_view uuid) {
  std::string id = absl::AsciiStrToLower(uuid);
  std::replace_if(
      id.begin(), id.end(), [](unsigned char c) { return !absl::ascii_isalnum(c); }, '_');
  return id;
}

absl::StatusOr<std::string> MakeCtestSpec(const v1::ListDevicesResponse& devices, const v1::Pool& pool) {
  std::vector<std::string> uuids;
  for (const v1::Device& device : devices.devices()) {
    if (device.state() == v1::Device::READY && MostOn(device.uuid(), pool) > 0) uuids.push_back(device.uuid());
  }
  if (uuids.empty()) return absl::FailedPreconditionError("no device of this node serves the pool");
  const uint64_t even = (pool.cap() + uuids.size() - 1) / uuids.size();
  std::vector<std::string> entries;
  for (const std::string& uuid : uuids) {
    entries.push_back(absl::StrCat("        {\"id\": \"", CtestId(uuid), "\", \"slots\": ",
                                   std::min(even, MostOn(uuid, pool)), "}"));
  }
  return absl::StrCat("{\n  \"version\": {\"major\": 1, \"minor\": 0},\n  \"local\": [\n    {\n      \"",
                      kCtestType, "\": [\n", absl::StrJoin(entries, ",\n"), "\n      ]\n    }\n  ]\n}\n");
}

absl::StatusOr<std::optional<CtestSlots>> ReadCtestSlots(
    const std::function<std::optional<std::string>(const std::string&)>& variable) {
  const std::string counter = absl::StrCat(kGroup, "COUNT");
  const std::optional<std::string> count = variable(counter);
  if (!count.has_value()) return std::nullopt;
  uint32_t groups = 0;
  if (!absl::SimpleAtoi(*count, &groups) || groups == 0) return Wrong(counter, *count);
  CtestSlots slots;
  for (uint32_t i = 0; i < groups; ++i) {
    const std::string group = absl::StrCat(kGroup, i);
    const std::optional<std::string> types = variable(group);
    if (!types.has_value()) return NotSet(group, counter, *count);
    const std::vector<std::string> listed = absl::StrSplit(*types, ',');
    if (std::find(listed.begin(), listed.end(), kCtestType) == listed.end()) continue;
    const std::string name = absl::StrCat(group, "_", absl::AsciiStrToUpper(kCtestType));
    const std::optional<std::string> given = variable(name);
    if (!given.has_value()) return NotSet(name, group, *types);
    BERTH_RETURN_IF_ERROR(AddSlots(name, *given, &slots));
  }
  if (slots.empty()) return std::nullopt;
  return slots;
}

}  // namespace berth::cli
