// SinglePoller: has gRPC serve all calls of this process on one thread (docs/design/0024).

#ifndef DAEMON_SERVICE_SINGLE_POLLER_H_
#define DAEMON_SERVICE_SINGLE_POLLER_H_

#include <cstddef>
#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace berth::service {

// While it lives all but one of the threads on which gRPC calls callbacks rest, those of the process's own clients
// included: no callback may wait for another.
class SinglePoller {
 public:
  // Requires: a server with callback services runs, or there is nothing to rest, and outlives this.
  SinglePoller();
  SinglePoller(const SinglePoller&) = delete;
  SinglePoller& operator=(const SinglePoller&) = delete;
  // All work again, and have left this.
  ~SinglePoller();

  // Threads that rest, or will as soon as they have done what they are at.
  size_t resting() const { return calls_.size(); }

 private:
  // A call whose end one of them is told, and does not return from.
  struct Call {
    grpc::ClientContext context;
    const grpc::Slice nothing;
    const grpc::ByteBuffer request{&nothing, 1};
    grpc::ByteBuffer response;
  };

  // One of them rests in here.
  void Rest() ABSL_LOCKS_EXCLUDED(mu_);

  // Leads nowhere, so that a call ends at once.
  const std::shared_ptr<grpc::Channel> nowhere_;
  // Constant after construction.
  std::list<Call> calls_;

  Mutex mu_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  // Threads that have rested.
  size_t left_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_SINGLE_POLLER_H_
