// EventLog: what a device's driver has reported of it. However much that is, what is kept of it is bounded: what is of
// the same kind and code is one entry with a count, and of these the latest are kept.

#ifndef DAEMON_DEVICE_EVENT_LOG_H_
#define DAEMON_DEVICE_EVENT_LOG_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/device_figures.h"
#include "daemon/device/monitor_wire.h"

namespace berth {

// Adds `event` to `latest`, which is in the order of the last reports: to the one of its kind and code where there is
// one, else in place of the oldest where there are monitor::Survey::kMaxEvents.
void KeepLatest(const monitor::Event& event, std::vector<monitor::Event>* latest);

// Thread-compatible.
class EventLog {
 public:
  // The driver reported it at `heard_ns`, of CLOCK_MONOTONIC.
  void Add(DeviceEventKind kind, uint64_t code, int64_t heard_ns);
  // Adds the errors of memory that the counters among `figures` have risen by since the last call, but for those that
  // Add() was told of: which of the two comes first does not matter. What the first call finds is where it counts from;
  // a counter that has fallen began anew.
  void AddRises(const DeviceFigures& figures, int64_t heard_ns);

  void CopyTo(monitor::Survey* survey) const;
  uint64_t total() const { return total_; }

 private:
  // Errors of memory, which are heard of in two ways.
  struct Errors {
    std::optional<uint64_t> counter;
    uint64_t counted = 0;
    uint64_t reported = 0;
    // In the log: the larger of the two.
    uint64_t logged = 0;
  };

  Errors& ErrorsOf(DeviceEventKind kind) { return kind == DeviceEventKind::kCorrectedEcc ? corrected_ : uncorrected_; }
  void Log(DeviceEventKind kind, uint64_t code, uint64_t count, int64_t heard_ns);
  // What of `kind` is not in the log yet.
  void LogErrors(DeviceEventKind kind, int64_t heard_ns);

  Errors corrected_;
  Errors uncorrected_;
  uint64_t total_ = 0;
  std::vector<monitor::Event> latest_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_EVENT_LOG_H_
