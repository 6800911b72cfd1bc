// ListeningSocket: accepts connections on the event loop, and continues when file descriptors run out.

#ifndef DAEMON_SERVICE_ATTACH_LISTENING_SOCKET_H_
#define DAEMON_SERVICE_ATTACH_LISTENING_SOCKET_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/limits/refusal_log.h"

namespace berth::service {

// Used on the event loop's thread; constructed before Run(). Stops listening when destroyed.
class ListeningSocket {
 public:
  // Calls `accepted` with every connection, non-blocking and close-on-exec, whose number is below `fd_limit`
  // (fd_reserve.h). `listener` is non-blocking; `loop` must outlive the result. At the limit, accepts a connection and
  // closes it at once, so that no client waits; accepts the next one after that close. Connections that are being
  // closed use at most one number.
  static absl::StatusOr<std::unique_ptr<ListeningSocket>> Listen(EventLoop* loop, UniqueFd listener, int fd_limit,
                                                                 std::function<void(UniqueFd)> accepted);
  ~ListeningSocket();

  // Accepts pending connections, at most as many as in one turn of the loop.
  void AcceptSome();

 private:
  ListeningSocket(EventLoop* loop, UniqueFd listener, int fd_limit, std::function<void(UniqueFd)> accepted);

  EventLoop& loop_;
  const UniqueFd listener_;
  const int fd_limit_;
  const std::function<void(UniqueFd)> accepted_;
  EventLoop::WatchId watch_ = 0;
  // Released briefly at the fd limit, to free a number for the connection to refuse.
  UniqueFd spare_;
  RefusalLog log_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_ATTACH_LISTENING_SOCKET_H_
