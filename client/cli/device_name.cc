#include "client/cli/device_name.h"

#include <cstdint>
#include <vector>

#include <berth/visible_devices.h>

#include "absl/algorithm/container.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/device_name.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

std::vector<DeviceLabel> LabelsOf(const v1::ListDevicesResponse& devices) {
  std::vector<DeviceLabel> labels;
  for (const v1::Device& device : devices.devices()) labels.emplace_back(device.ordinal(), device.uuid());
  return labels;
}

}  // namespace

absl::StatusOr<v1::Device> FindDevice(const v1::ListDevicesResponse& devices, absl::string_view name) {
  const absl::StatusOr<uint32_t> ordinal = FindDeviceByName(LabelsOf(devices), name);
  if (!ordinal.ok()) return absl::InvalidArgumentError(ordinal.status().message());
  for (const v1::Device& device : devices.devices()) {
    if (device.ordinal() == *ordinal) return device;
  }
  return absl::InternalError("the device is no longer in the daemon's list");
}

absl::StatusOr<v1::Device> FindDevice(const Inspector& inspector, absl::string_view name) {
  BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices, inspector.ListDevices());
  return FindDevice(devices, name);
}

absl::Status RetainVisible(v1::ListDevicesResponse* devices) {
  BERTH_ASSIGN_OR_RETURN(const std::vector<DeviceLabel> among, DevicesAmong(LabelsOf(*devices), {}, VisibleDevices()));
  v1::ListDevicesResponse visible;
  for (const v1::Device& device : devices->devices()) {
    const auto is = [&](const DeviceLabel& label) { return label.first == device.ordinal(); };
    if (absl::c_any_of(among, is)) *visible.add_devices() = device;
  }
  devices->mutable_devices()->Swap(visible.mutable_devices());
  return absl::OkStatus();
}

}  // namespace berth::cli
