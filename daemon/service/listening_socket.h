// ListeningSocket: accepts connections on the event loop, and goes on doing so when file descriptors run out.

#ifndef DAEMON_SERVICE_LISTENING_SOCKET_H_
#define DAEMON_SERVICE_LISTENING_SOCKET_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/refusal_log.h"

namespace berth::service {

// Lives on the event loop's thread; constructed before Run(). Stops listening when destroyed.
class ListeningSocket {
 public:
  // Calls `accepted` with every connection, non-blocking and close-on-exec, whose number is below `fd_limit`
  // (fd_reserve.h). `listener` is non-blocking; `loop` must outlive the result. At the limit a connection is accepted
  // and closed, so that nobody is kept waiting; the next one once it is: those that are being closed take no more
  // numbers.
  static absl::StatusOr<std::unique_ptr<ListeningSocket>> Listen(EventLoop* loop, UniqueFd listener, int fd_limit,
                                                                 std::function<void(UniqueFd)> accepted);
  ~ListeningSocket();

 private:
  ListeningSocket(EventLoop* loop, UniqueFd listener, int fd_limit, std::function<void(UniqueFd)> accepted);
  void AcceptSome();

  EventLoop& loop_;
  const UniqueFd listener_;
  const int fd_limit_;
  const std::function<void(UniqueFd)> accepted_;
  EventLoop::WatchId watch_ = 0;
  // Given up for a moment at the fd limit, to have a number for the connection that is refused.
  UniqueFd spare_;
  RefusalLog log_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_LISTENING_SOCKET_H_
