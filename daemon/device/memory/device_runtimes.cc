#include "daemon/device/memory/device_runtimes.h"

#include <algorithm>
#include <utility>

#include <berth/error.h>

namespace berth {

DeviceRuntimes::DeviceRuntimes(Launcher start, Clock now) : start_(std::move(start)), now_(std::move(now)) {}

absl::StatusOr<DeviceRuntime*> DeviceRuntimes::Get(uint32_t ordinal) {
  if (ordinal >= kMaxDeviceOrdinals) {
    return Refuse(Reason::kOutOfRange, "{field} {value} exceeds the last, {limit}",
                  {{"field", "device ordinal"}, {"value", ordinal}, {"limit", kMaxDeviceOrdinals - 1}});
  }
  Slot& slot = slots_[ordinal];
  if (DeviceRuntime* const ready = slot.ready.load(std::memory_order_acquire); ready != nullptr) return ready;
  MutexLock lock(&slot.mu);
  if (slot.runtime != nullptr) return slot.runtime.get();
  if (now_() < slot.retry_at) return slot.failure;
  absl::StatusOr<std::unique_ptr<DeviceRuntime>> started = start_(ordinal);
  if (!started.ok()) {
    slot.failure = started.status();
    slot.retry_at = now_() + slot.back_off;
    slot.back_off = std::min(2 * slot.back_off, kLongestBackOff);
    return slot.failure;
  }
  slot.runtime = *std::move(started);
  slot.ready.store(slot.runtime.get(), std::memory_order_release);
  return slot.runtime.get();
}

}  // namespace berth
