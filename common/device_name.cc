#include "common/device_name.h"

#include <set>

#include <berth/error.h>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// Most bytes of a name that an error repeats.
constexpr size_t kShown = 64;

std::string Join(const std::vector<DeviceLabel>& devices) {
  if (devices.empty()) return "none";
  return absl::StrJoin(devices, ", ", [](std::string* out, const DeviceLabel& device) {
    absl::StrAppend(out, device.first, " (", device.second, ")");
  });
}

bool IsOrdinal(absl::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
}

// Returns the devices that a name fits: an ordinal, a UUID, or the start of UUIDs.
std::vector<DeviceLabel> DevicesNamed(const std::vector<DeviceLabel>& devices, absl::string_view name) {
  for (const auto& [ordinal, uuid] : devices) {
    if (uuid == name) return {{ordinal, uuid}};
  }
  uint32_t asked = 0;
  const bool is_ordinal = IsOrdinal(name) && absl::SimpleAtoi(name, &asked);
  std::vector<DeviceLabel> found;
  for (const DeviceLabel& device : devices) {
    const bool fits = is_ordinal ? device.first == asked : absl::StartsWith(device.second, name);
    if (fits && !name.empty()) found.push_back(device);
  }
  return found;
}

}  // namespace

bool IsCudaDevice(absl::string_view uuid) { return absl::StartsWith(uuid, "GPU-") || absl::StartsWith(uuid, "MIG-"); }

absl::StatusOr<uint32_t> FindDeviceByName(const std::vector<DeviceLabel>& devices, absl::string_view name) {
  const std::vector<DeviceLabel> found = DevicesNamed(devices, name);
  if (found.size() == 1) return found.front().first;
  const absl::string_view shown = name.substr(0, kShown);
  if (found.empty()) {
    return Refuse(Reason::kNotFound, "no {kind} {id}: this node has {devices}",
                  {{"kind", "device"}, {"id", shown}, {"devices", Join(devices)}});
  }
  return Refuse(Reason::kInvalidField, "{field} {value} matches {limit}: give more of its UUID",
                {{"field", "device"}, {"value", shown}, {"limit", Join(found)}});
}

absl::StatusOr<std::vector<std::string>> ParseVisibleDevices(absl::string_view text) {
  std::vector<std::string> names;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const absl::string_view name = absl::StripAsciiWhitespace(entry);
    if (name.empty() || name == "NoDevFiles" || (name[0] == '-' && IsOrdinal(name.substr(1)))) break;
    if (!IsOrdinal(name) && !IsCudaDevice(name)) {
      return Refuse(Reason::kInvalidField, "invalid {field} \"{value}\": expected {limit}",
                    {{"field", "CUDA_VISIBLE_DEVICES"},
                     {"value", name.substr(0, kShown)},
                     {"limit", "ordinals, or UUIDs that begin with GPU- or MIG-"}});
    }
    names.emplace_back(name);
  }
  return names;
}

absl::StatusOr<std::vector<DeviceLabel>> DevicesAmong(const std::vector<DeviceLabel>& devices,
                                                      const std::vector<std::string>& names,
                                                      const std::optional<std::string>& visible) {
  std::set<uint32_t> named, seen;
  for (const std::string& name : names) {
    BERTH_ASSIGN_OR_RETURN(const uint32_t ordinal, FindDeviceByName(devices, name));
    named.insert(ordinal);
  }
  const bool bounded = visible.has_value() &&
                       absl::c_any_of(devices, [](const DeviceLabel& device) { return IsCudaDevice(device.second); });
  std::vector<std::string> entries;
  if (bounded) {
    BERTH_ASSIGN_OR_RETURN(entries, ParseVisibleDevices(*visible));
  }
  for (const std::string& entry : entries) {
    const std::vector<DeviceLabel> found = DevicesNamed(devices, entry);
    if (found.empty()) {
      return Refuse(Reason::kInvalidField, "{field}: no device {value}: this node has {limit}",
                    {{"field", "CUDA_VISIBLE_DEVICES"}, {"value", entry.substr(0, kShown)}, {"limit", Join(devices)}});
    }
    if (found.size() > 1) {
      return Refuse(Reason::kInvalidField, "{field}: device {value} matches {limit}: give more of its UUID",
                    {{"field", "CUDA_VISIBLE_DEVICES"}, {"value", entry.substr(0, kShown)}, {"limit", Join(found)}});
    }
    seen.insert(found.front().first);
  }
  std::vector<DeviceLabel> among;
  for (const auto& [ordinal, uuid] : devices) {
    if (!named.empty() && !named.contains(ordinal)) continue;
    if (bounded && IsCudaDevice(uuid) && !seen.contains(ordinal)) continue;
    among.emplace_back(ordinal, uuid);
  }
  if (!among.empty() || devices.empty()) return among;
  return Refuse(Reason::kNoDevice, "no eligible device: asked {asked}; {lacking}",
                {{"asked", names.empty() ? "any device" : absl::StrCat("one of ", absl::StrJoin(names, ", "))},
                 {"lacking", absl::StrCat("the caller's CUDA_VISIBLE_DEVICES=\"", visible->substr(0, kShown),
                                          "\" excludes all of them")}});
}

}  // namespace berth
