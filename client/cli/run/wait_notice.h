// WaitNotice explains on stderr why this process waits for permits, once the wait is long.

#ifndef CLIENT_CLI_RUN_WAIT_NOTICE_H_
#define CLIENT_CLI_RUN_WAIT_NOTICE_H_

#include <memory>
#include <string>

#include <berth/cancellation.h>
#include <berth/session.h>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "berth/v1/permit.pb.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/thread.h"

namespace berth::cli {

// Returns one line without its newline: "waiting for pool gpu-tests: 0 of 2 free, place 1 of 1; held by train(4711) for
// 3m12s, another tenant for 10s; see berth explain 17".
std::string DescribeWait(const v1::WaitExplanation& wait, absl::Time now);

// As above for a request that is not among the first waiters: "waiting for pool gpu-tests: 2 of 2 out, 4711 wait".
std::string DescribeCrowd(const v1::Pool& pool);

class WaitNotice {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(2);

  // For the wait of `session` under `holder_key`.
  WaitNotice(std::shared_ptr<Session> session, std::string pool, std::string holder_key);
  // Ends all output and the calls in progress.
  ~WaitNotice();

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Prints why the wait lasts, unless the wait is over.
  void Explain(const v1::WaitExplanation& wait) ABSL_LOCKS_EXCLUDED(mu_);
  bool over() ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<Session> session_;
  const std::string pool_;
  const std::string holder_key_;
  Mutex mu_;
  SteadyCondVar notified_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  Cancellation cancellation_;
  Thread thread_;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_WAIT_NOTICE_H_
