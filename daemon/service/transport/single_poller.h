// SinglePoller: makes gRPC serve all calls of this process on one thread (docs/design/0024).

#ifndef DAEMON_SERVICE_TRANSPORT_SINGLE_POLLER_H_
#define DAEMON_SERVICE_TRANSPORT_SINGLE_POLLER_H_

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

// While it lives, it parks all but one of gRPC's callback threads, including those of the process's own clients: no
// callback may wait for another.
class SinglePoller {
 public:
  // Requires: a server with callback services runs (otherwise there is no thread to park) and outlives this object.
  SinglePoller();
  SinglePoller(const SinglePoller&) = delete;
  SinglePoller& operator=(const SinglePoller&) = delete;
  // Waits until all threads work again and have left this object.
  ~SinglePoller();

  // Returns the number of threads that are parked, or will be after their current work.
  size_t resting() const { return calls_.size(); }

 private:
  // A call whose completion callback parks a thread.
  struct Call {
    grpc::ClientContext context;
    const grpc::Slice nothing;
    const grpc::ByteBuffer request{&nothing, 1};
    grpc::ByteBuffer response;
  };

  // Parks the calling thread.
  void Rest() ABSL_LOCKS_EXCLUDED(mu_);

  // A channel to no server, so that a call ends at once.
  const std::shared_ptr<grpc::Channel> nowhere_;
  // Constant after construction.
  std::list<Call> calls_;

  Mutex mu_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  // Number of threads that have returned from Rest().
  size_t left_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_TRANSPORT_SINGLE_POLLER_H_
