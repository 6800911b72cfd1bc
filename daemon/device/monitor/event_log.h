// EventLog: a bounded log of events that a device's driver has reported. Events of the same kind and code share one
// entry with a count. The log has the latest entries.

#ifndef DAEMON_DEVICE_MONITOR_EVENT_LOG_H_
#define DAEMON_DEVICE_MONITOR_EVENT_LOG_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/device_metrics.h"
#include "daemon/device/monitor/monitor_wire.h"

namespace berth {

// Adds `event` to `latest`, which is ordered by last report. Merges it into the entry of its kind and code, if there is
// one. Otherwise appends it, in place of the oldest entry once there are monitor::Survey::kMaxEvents.
void StoreLatest(const monitor::Event& event, std::vector<monitor::Event>* latest);

// Thread-compatible.
class EventLog {
 public:
  // Adds an event that the driver reported at `heard_ns`, of CLOCK_MONOTONIC.
  void Add(DeviceEventKind kind, uint64_t code, int64_t heard_ns);
  // Adds the memory errors by which the counters in `metrics` have risen since the last call, except those already
  // added by Add(). The order of the two does not matter. The first call sets the starting values; a counter that has
  // fallen starts anew.
  void AddRises(const DeviceMetrics& metrics, int64_t heard_ns);

  void CopyTo(monitor::Survey* survey) const;
  uint64_t total() const { return total_; }

 private:
  // Memory errors, which arrive by two ways: counters and events.
  struct Errors {
    std::optional<uint64_t> counter;
    uint64_t counted = 0;
    uint64_t reported = 0;
    // Number in the log: the larger of `counted` and `reported`.
    uint64_t logged = 0;
  };

  Errors& ErrorsOf(DeviceEventKind kind) { return kind == DeviceEventKind::kCorrectedEcc ? corrected_ : uncorrected_; }
  void Log(DeviceEventKind kind, uint64_t code, uint64_t count, int64_t heard_ns);
  // Logs the errors of `kind` that are not in the log yet.
  void LogErrors(DeviceEventKind kind, int64_t heard_ns);

  Errors corrected_;
  Errors uncorrected_;
  uint64_t total_ = 0;
  std::vector<monitor::Event> latest_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MONITOR_EVENT_LOG_H_
