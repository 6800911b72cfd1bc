// DeviceRuntimes: a table with at most one runtime of each device, made on first use. A process that makes memory has
// one such table.

#ifndef DAEMON_DEVICE_MEMORY_DEVICE_RUNTIMES_H_
#define DAEMON_DEVICE_MEMORY_DEVICE_RUNTIMES_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_clock.h"
#include "daemon/device/memory/device_runtime.h"

namespace berth {

// Thread-safe. The table's destructor destroys the runtimes, and their contexts. Nothing is left to static destructors,
// which may run after the driver's.
class DeviceRuntimes {
 public:
  // Time during which a failed start is reported without another try; doubles with each failure in a row.
  static constexpr absl::Duration kFirstBackOff = absl::Milliseconds(100);
  static constexpr absl::Duration kLongestBackOff = absl::Seconds(10);

  using Launcher = std::function<absl::StatusOr<std::unique_ptr<DeviceRuntime>>(uint32_t ordinal)>;
  using Clock = std::function<absl::Time()>;

  explicit DeviceRuntimes(Launcher start, Clock now = &SteadyNow);

  // Returns the device's runtime. The first caller makes it; concurrent callers for that device wait. An existing
  // runtime is returned without a lock.
  // Errors: OUT_OF_RANGE from kMaxDeviceOrdinals on; the error of a failed start. Callers get that error until its
  // back-off is over; then the next caller tries again.
  absl::StatusOr<DeviceRuntime*> Get(uint32_t ordinal);

 private:
  struct Slot {
    // Null until the runtime exists, then constant.
    std::atomic<DeviceRuntime*> ready = nullptr;

    // Held while a runtime is made.
    Mutex mu;
    std::unique_ptr<DeviceRuntime> runtime ABSL_GUARDED_BY(mu);
    absl::Status failure ABSL_GUARDED_BY(mu);
    absl::Time retry_at ABSL_GUARDED_BY(mu) = absl::InfinitePast();
    absl::Duration back_off ABSL_GUARDED_BY(mu) = kFirstBackOff;
  };

  const Launcher start_;
  const Clock now_;
  std::array<Slot, kMaxDeviceOrdinals> slots_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_DEVICE_RUNTIMES_H_
