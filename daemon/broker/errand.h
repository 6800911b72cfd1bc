// Errand: occasional work on a thread that exists from the start, because no thread may be available when the work is
// requested.

#ifndef DAEMON_BROKER_ERRAND_H_
#define DAEMON_BROKER_ERRAND_H_

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "common/thread.h"

namespace berth {

// Thread-safe.
class Errand {
 public:
  // Ends the process if no thread for `purpose` can be created (NeededThread()).
  Errand(absl::string_view purpose, std::function<void()> run);
  Errand(const Errand&) = delete;
  Errand& operator=(const Errand&) = delete;
  // Waits for a run in progress.
  ~Errand();

  // Requests one more full run. Does not wait.
  void Ask() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const std::function<void()> run_;
  Mutex mu_;
  CondVar changed_;
  bool asked_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_ERRAND_H_
