// The supervisor's part for a driver that is not ready when the daemon starts. One stopped device stands for the
// devices to come, until the driver lists them.

#include <stdio.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "daemon/supervisor/supervisor.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {

using fd_store::KeyOf;
using fd_store::Kind;

bool Supervisor::AwaitsDriver() const {
  const DeviceRecord& first = workers_.front().record;
  return first.fault == DeviceFault::kNoDriver && page_->devices[first.ordinal].dropped == 0;
}

MonotonicTime Supervisor::driver_wake() const {
  if (driver_look_.has_value()) return driver_look_->deadline;
  return AwaitsDriver() && upgrade_ == Upgrade::kNone ? next_driver_look_ : MonotonicTime::max();
}

void Supervisor::AttendDriver() {
  if (Now() < driver_wake() && !(driver_look_.has_value() && driver_look_->process.IsGone())) return;
  if (!driver_look_.has_value()) {
    absl::StatusOr<Inventory> look = StartInventory();
    if (look.ok()) {
      driver_look_ = *std::move(look);
      return;
    }
    OnDriverLook(look.status(), UniqueFd());
  } else {
    Inventory look = *std::exchange(driver_look_, std::nullopt);
    absl::StatusOr<std::vector<DeviceRecord>> records = TakeInventory(look);
    OnDriverLook(std::move(records), std::move(look.table));
  }
}

void Supervisor::OnDriverLook(absl::StatusOr<std::vector<DeviceRecord>> records, UniqueFd table) {
  next_driver_look_ = Now() + driver_pause_;
  driver_pause_ = std::min(kLongestDriverPause, 2 * driver_pause_);
  if (!AwaitsDriver()) return;
  Worker& device = workers_.front();
  if (!records.ok()) {
    DeviceRecord failed = device.record;
    snprintf(failed.scrub.detail, sizeof(failed.scrub.detail), "%s", std::string(records.status().message()).c_str());
    records = std::vector{failed};
  }
  const DeviceRecord& first = records->front();
  // An uninstalled driver leaves host memory, which never replaces devices.
  if (first.fault != DeviceFault::kNoDriver && first.backend != BackendKind::kHost) {
    const bool busy = upgrade_ != Upgrade::kNone || !broker_.has_value() || !broker_->served;
    if (!busy) TakeUpDevices(*records, std::move(table));
    return;
  }
  const std::string why = WhyNotStarted(first.fault == DeviceFault::kNoDriver ? first : device.record);
  if (why == device.supervision.last_failure()) return;
  Log("device %u is stopped: %s", device.record.ordinal, why.c_str());
  device.supervision.OnNotStarted(why);
  QueueStatus(device);
}

void Supervisor::TakeUpDevices(const std::vector<DeviceRecord>& records, UniqueFd table) {
  Log("the GPU driver is ready; restarting the broker with its devices: %zu", records.size());
  // The broker loses nothing by the kill. The next broker reads the new table.
  broker_->process.Kill();
  Replace(KeyOf(Kind::kDeviceTable), std::move(table));
  workers_.clear();
  ListWorkers(records);
  StartWorkers();
  if (WantsMonitor()) StartMonitor();
}

}  // namespace berth
