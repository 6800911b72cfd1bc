// RecordedCall records its answer, for tests.

#ifndef DAEMON_BROKER_TESTING_RECORDED_CALL_H_
#define DAEMON_BROKER_TESTING_RECORDED_CALL_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_clock.h"
#include "common/steady_cond_var.h"
#include "daemon/broker/broker.h"

namespace berth {

// Thread-safe.
class RecordedCall final : public Call {
 public:
  void Answer(absl::StatusOr<core::Response> response) override {
    MutexLock lock(&mu_);
    result_ = std::move(response);
    ++answers_;
    came_.Signal();
  }

  // Waits for an answer and returns the latest. Errors: kDeadlineExceeded after 60 s without an answer; those of the
  // answer.
  absl::StatusOr<core::Response> Await() {
    const absl::Time deadline = SteadyNow() + absl::Seconds(60);
    MutexLock lock(&mu_);
    while (answers_ == 0) {
      if (came_.WaitWithDeadline(&mu_, deadline)) return absl::DeadlineExceededError("no answer");
    }
    return result_;
  }
  int answers() {
    MutexLock lock(&mu_);
    return answers_;
  }

 private:
  Mutex mu_;
  SteadyCondVar came_;
  int answers_ ABSL_GUARDED_BY(mu_) = 0;
  absl::StatusOr<core::Response> result_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_BROKER_TESTING_RECORDED_CALL_H_
