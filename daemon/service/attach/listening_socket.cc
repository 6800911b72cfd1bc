#include "daemon/service/attach/listening_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "common/status_macros.h"

namespace berth::service {
namespace {

// Limit for one wake-up of the loop, so that a connection storm does not starve process ends and deadlines.
constexpr int kAcceptsPerEvent = 64;

UniqueFd OpenSpare() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

ListeningSocket::ListeningSocket(EventLoop* loop, UniqueFd listener, int fd_limit,
                                 std::function<void(UniqueFd)> accepted)
    : loop_(*loop),
      listener_(std::move(listener)),
      fd_limit_(fd_limit),
      accepted_(std::move(accepted)),
      spare_(OpenSpare()) {}

absl::StatusOr<std::unique_ptr<ListeningSocket>> ListeningSocket::Listen(
    EventLoop* loop, UniqueFd listener, int fd_limit, std::function<void(UniqueFd)> accepted) {
  std::unique_ptr<ListeningSocket> socket(
      new ListeningSocket(loop, std::move(listener), fd_limit, std::move(accepted)));
  BERTH_ASSIGN_OR_RETURN(socket->watch_, loop->Watch(socket->listener_.get(), EPOLLIN,
                                                     [raw = socket.get()](uint32_t) { raw->AcceptSome(); }));
  return socket;
}

ListeningSocket::~ListeningSocket() { loop_.Unwatch(watch_); }

void ListeningSocket::AcceptSome() {
  for (int i = 0; i < kAcceptsPerEvent; ++i) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket && socket.get() < fd_limit_) {
      accepted_(std::move(socket));
      continue;
    }
    if (socket) {
      log_.Warn("connection refused: all file descriptors for clients are in use; raise the limit of open files");
      loop_.Rewatch(watch_, 0);
      loop_.Close(std::move(socket), [&loop = loop_, watch = watch_] { loop.Rewatch(watch, EPOLLIN); });
      return;
    }
    if (errno == ECONNABORTED || errno == EINTR) continue;
    if (errno != EMFILE && errno != ENFILE) return;
    log_.Warn("connection refused: no file descriptor is free; raise the limit of open files");
    spare_.reset();
    // Closed here at once, because the number is needed again.
    UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)).reset();
    spare_ = OpenSpare();
    return;
  }
}

}  // namespace berth::service
