#include "daemon/config/device_caps.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/device_name.h"

namespace berth {
namespace {

// Whether the name has the form in which nvidia-smi prints a whole UUID.
bool IsFullUuid(absl::string_view name) {
  constexpr absl::string_view kForm = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (name.size() != kForm.size() || (!absl::StartsWith(name, "GPU-") && !absl::StartsWith(name, "MIG-"))) return false;
  for (size_t i = 4; i < name.size(); ++i) {
    if (kForm[i] == 'x' ? !absl::ascii_isxdigit(static_cast<unsigned char>(name[i])) : name[i] != '-') return false;
  }
  return true;
}

}  // namespace

ResolvedDeviceCaps ResolveDeviceCaps(const DeviceCaps& caps, const std::vector<DeviceRecord>& devices) {
  ResolvedDeviceCaps resolved;
  std::map<uint32_t, std::string> uuids;
  std::vector<DeviceLabel> labels;
  for (const DeviceRecord& device : devices) {
    std::string uuid(device.uuid, strnlen(device.uuid, sizeof(device.uuid)));
    if (absl::StartsWith(uuid, kUnidentifiedDevice)) continue;
    labels.emplace_back(device.ordinal, uuids[device.ordinal] = std::move(uuid));
  }
  const bool all_known = labels.size() == devices.size();
  // The name of each device in `caps`.
  std::map<std::string, std::string> names;
  for (const auto& [name, cap] : caps) {
    absl::Status mistake;
    const absl::StatusOr<uint32_t> device = FindDeviceByName(labels, name);
    const std::string uuid = device.ok() ? uuids[*device] : name;
    if (absl::IsNotFound(device.status()) && (!all_known || IsFullUuid(name))) {
      resolved.absent.push_back(
          absl::StrCat(device.status().message(), "; the cap has no effect until a daemon finds it"));
    } else if (!device.ok()) {
      mistake = absl::InvalidArgumentError(absl::StrCat(
          device.status().message(), "; name a device of this node, or an absent device by its full UUID"));
    }
    const auto [first, fresh] = names.emplace(uuid, name);
    if (!fresh) {
      mistake = absl::InvalidArgumentError(
          absl::StrCat(first->second, " and ", name, " name the same device: expected one cap for each device"));
    }
    resolved.caps[uuid] = fresh ? cap : std::min(cap, resolved.caps[uuid]);
    if (resolved.mistake.ok()) resolved.mistake = std::move(mistake);
  }
  return resolved;
}

}  // namespace berth
