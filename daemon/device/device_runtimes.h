// DeviceRuntimes has at most one runtime of each device, made by the first who asks for it. A process that makes
// memory has one of these.

#ifndef DAEMON_DEVICE_DEVICE_RUNTIMES_H_
#define DAEMON_DEVICE_DEVICE_RUNTIMES_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/steady_clock.h"
#include "daemon/device/device_runtime.h"

namespace berth {

// Thread-safe. Runtimes go when the table goes, each with its context if it has one: nothing is left to static
// destructors, which may run after the driver's.
class DeviceRuntimes {
 public:
  // How long a failed start is answered for without another try: doubled by each failure in a row.
  static constexpr absl::Duration kFirstBackOff = absl::Milliseconds(100);
  static constexpr absl::Duration kLongestBackOff = absl::Seconds(10);

  using Starter = std::function<absl::StatusOr<std::unique_ptr<DeviceRuntime>>(uint32_t ordinal)>;
  using Clock = std::function<absl::Time()>;

  explicit DeviceRuntimes(Starter start, Clock now = &SteadyNow);

  // The runtime of the device. Who comes first makes it; who comes meanwhile waits, for that device alone. One that
  // exists costs no lock.
  // Errors: OUT_OF_RANGE from kMaxDeviceOrdinals on; what the start failed with, which leaves the place empty: until
  // its back-off is over the next callers are told the same, then one of them tries again.
  absl::StatusOr<DeviceRuntime*> Get(uint32_t ordinal);

 private:
  struct Slot {
    // Null until there is one, and never again.
    std::atomic<DeviceRuntime*> ready = nullptr;

    // Held while a runtime is made.
    Mutex mu;
    std::unique_ptr<DeviceRuntime> runtime ABSL_GUARDED_BY(mu);
    absl::Status failure ABSL_GUARDED_BY(mu);
    absl::Time retry_at ABSL_GUARDED_BY(mu) = absl::InfinitePast();
    absl::Duration back_off ABSL_GUARDED_BY(mu) = kFirstBackOff;
  };

  const Starter start_;
  const Clock now_;
  std::array<Slot, kMaxDeviceOrdinals> slots_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_DEVICE_RUNTIMES_H_
