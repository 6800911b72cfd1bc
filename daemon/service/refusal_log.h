// RefusalLog: log lines about connections that were refused. Whoever is refused may come again at once, as often as it
// likes: past a few lines a second the rest is only counted, and the next line says how many there were.

#ifndef DAEMON_SERVICE_REFUSAL_LOG_H_
#define DAEMON_SERVICE_REFUSAL_LOG_H_

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
  // Lines in one second.
  static constexpr int kLinesPerSecond = 5;

  // Logs `what` as a warning, if there is room for it now.
  void Warn(absl::string_view what);

  // The line for `what` at `now`, or nothing where there is no room for one.
  std::optional<std::string> LineFor(absl::Time now, absl::string_view what) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;
  absl::Time second_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int lines_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_REFUSAL_LOG_H_
