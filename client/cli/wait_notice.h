// WaitNotice says on stderr who holds the permits that this process waits for, once the wait is long enough
// to wonder.

#ifndef CLIENT_CLI_WAIT_NOTICE_H_
#define CLIENT_CLI_WAIT_NOTICE_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "berth/v1/permit.pb.h"
#include "client/cancellation.h"
#include "client/session.h"

namespace berth::cli {

// One line, without its end: "waiting for pool gpu-tests: 2 of 2 out, 1 waits; held by train(4711) for 3m12s,
// eval(4712) for 10s". Who is of another tenant is counted and not named.
std::string DescribeWait(const v1::Pool& pool, const v1::ListPermitsResponse& permits, absl::Time now);

class WaitNotice {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(2);

  WaitNotice(std::shared_ptr<Session> session, std::string pool);
  // Says nothing any more, and ends the calls under way.
  ~WaitNotice();

 private:
  void Run();

  const std::shared_ptr<Session> session_;
  const std::string pool_;
  absl::Notification over_;
  Cancellation cancellation_;
  std::thread thread_;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_WAIT_NOTICE_H_
