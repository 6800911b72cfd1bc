#include "daemon/service/acceptor.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "daemon/service/fd_reserve.h"

namespace berth::service {

Acceptor::Acceptor(EventLoop* loop, ConnectionTable* connections, HandOver hand_over)
    : loop_(*loop),
      connections_(*connections),
      hand_over_(std::move(hand_over)),
      first_number_(ClientFdLimit() / 2),
      last_number_(ClientFdLimit() - 1),
      next_number_(first_number_) {}

Acceptor::~Acceptor() {
  for (auto& [fd, watched] : watched_) {
    loop_.Unwatch(watched.second);
    loop_.Close(std::move(watched.first));
  }
}

absl::Status Acceptor::Listen(UniqueFd listener, Peer::Role role) {
  BERTH_ASSIGN_OR_RETURN(listeners_.emplace_back(),
                         ListeningSocket::Listen(&loop_, std::move(listener), [this, role](UniqueFd socket) {
                           AcceptOne(std::move(socket), role);
                         }));
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Acceptor::DuplicateToFreshNumber(int socket) {
  for (int wraps = 0; wraps < 2; ++wraps) {
    while (next_number_ <= last_number_) {
      UniqueFd copy(::fcntl(socket, F_DUPFD_CLOEXEC, next_number_));
      if (!copy) break;
      next_number_ = copy.get() + 1;
      if (!connections_.Contains(copy.get())) return copy;
    }
    next_number_ = first_number_;
  }
  return OsError("fcntl(F_DUPFD_CLOEXEC)", EMFILE);
}

void Acceptor::AcceptOne(UniqueFd socket, Peer::Role role) {
  absl::StatusOr<Peer> peer = IdentifyPeer(socket.get(), role);
  if (!peer.ok()) {
    log_.Warn(absl::StrCat("connection refused: ", peer.status().message()));
    return;
  }
  absl::StatusOr<UniqueFd> number = DuplicateToFreshNumber(socket.get());
  if (!number.ok()) {
    log_.Warn(absl::StrCat("connection of pid ", peer->process.pid, " refused: ", number.status().message()));
    return;
  }
  const int fd = number->get();
  const int32_t pid = peer->process.pid;
  if (const absl::Status added = connections_.Add(fd, *std::move(peer)); !added.ok()) {
    log_.Warn(absl::StrCat("connection of pid ", pid, " refused: ", added.message()));
    return;
  }
  const int ours = socket.get();
  absl::StatusOr<EventLoop::WatchId> watch = loop_.Watch(ours, EPOLLRDHUP, [this, fd](uint32_t) {
    const auto it = watched_.find(fd);
    loop_.Unwatch(it->second.second);
    connections_.Remove(fd);
    loop_.Close(std::move(it->second.first));
    watched_.erase(it);
  });
  if (!watch.ok()) {
    connections_.Remove(fd);
    return;
  }
  watched_[fd] = {std::move(socket), *watch};
  hand_over_(number->release());
}

}  // namespace berth::service
