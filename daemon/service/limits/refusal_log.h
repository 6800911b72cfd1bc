// RefusalLog: logs refused connections. A refused client may return at once, as often as it likes. Past a few lines a
// second the log only counts refusals, and the next line reports their number.

#ifndef DAEMON_SERVICE_LIMITS_REFUSAL_LOG_H_
#define DAEMON_SERVICE_LIMITS_REFUSAL_LOG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace berth::service {

// Thread-safe.
class RefusalLog {
 public:
  // Limit of lines in one second.
  static constexpr int kLinesPerSecond = 5;

  // Logs `what` as a warning, unless the limit is reached.
  void Warn(absl::string_view what);

  // Returns the line for `what` at `now`, or nothing if the limit is reached.
  std::optional<std::string> LineFor(absl::Time now, absl::string_view what) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;
  absl::Time second_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int lines_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_LIMITS_REFUSAL_LOG_H_
