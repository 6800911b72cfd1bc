#include "client/sdk/plans/tile_devices.h"

#include <utility>

#include "client/sdk/devices/device_choice.h"
#include "common/status_macros.h"

namespace berth::internal {

absl::StatusOr<TileDevices> TileDevices::Hold(std::vector<TileDevice> devices, const GetDriver& get_driver) {
  TileDevices held(std::move(devices));
  for (TileDevice& device : held.devices_) {
    if (!device.cuda) continue;
    if (held.driver_ == nullptr) {
      BERTH_ASSIGN_OR_RETURN(held.driver_, get_driver());
    }
    BERTH_ASSIGN_OR_RETURN(device.ordinal, ChooseDevice(*held.driver_, device.uuid, /*wanted=*/""));
    if (held.contexts_.contains(device.ordinal)) continue;
    BERTH_ASSIGN_OR_RETURN(held.contexts_[device.ordinal],
                           held.driver_->RetainPrimaryContext(device.ordinal));
  }
  return held;
}

TileDevices::TileDevices(TileDevices&& other) noexcept
    : driver_(other.driver_),
      devices_(std::move(other.devices_)),
      contexts_(std::exchange(other.contexts_, {})) {}

TileDevices::~TileDevices() {
  for (const auto& [ordinal, context] : contexts_) driver_->ReleasePrimaryContext(ordinal).IgnoreError();
}

absl::Status TileDevices::Enter(size_t tile) const {
  const TileDevice& device = devices_[tile];
  if (!device.cuda) return absl::OkStatus();
  return driver_->SetCurrentContext(contexts_.at(device.ordinal));
}

absl::Status TileDevices::Leave(size_t tile) const {
  if (!devices_[tile].cuda) return absl::OkStatus();
  absl::Status status = driver_->SynchronizeContext();
  status.Update(driver_->SetCurrentContext(nullptr));
  return status;
}

}  // namespace berth::internal
