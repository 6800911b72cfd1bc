#include "daemon/service/transport/acceptor.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/process.h"
#include "common/status_macros.h"
#include "daemon/supervisor/fd_store/fd_reserve.h"

namespace berth::service {

Acceptor::Acceptor(EventLoop* loop, AcceptGate* gate, ConnectionTable* connections, HandOver hand_over)
    : loop_(*loop),
      gate_(*gate),
      connections_(*connections),
      hand_over_(std::move(hand_over)),
      client_numbers_{.first = ClientFdLimit() / 2, .end = ClientFdLimit()},
      operator_numbers_{.first = ClientFdLimit(), .end = OperatorFdLimit()} {}

Acceptor::~Acceptor() {
  for (auto& [fd, watched] : watched_) {
    loop_.Unwatch(watched.second);
    loop_.Close(std::move(watched.first));
  }
}

absl::Status Acceptor::Listen(UniqueFd listener, Peer::Role role) {
  BERTH_ASSIGN_OR_RETURN(
      std::unique_ptr<ListeningSocket> socket,
      ListeningSocket::Listen(&loop_, std::move(listener), FdLimitOf(OwnerOf(role)),
                              [this, role](UniqueFd accepted) { AcceptOne(std::move(accepted), role); }));
  std::swap(socket, listeners_[role]);
  if (socket != nullptr) socket->AcceptSome();
  return absl::OkStatus();
}

void Acceptor::Refuse(UniqueFd socket, const Peer& peer, const absl::Status& why) {
  log_.Warn(absl::StrCat("connection of pid ", peer.process.pid, " refused: ", why.message()));
  if (audit_ != nullptr) {
    audit_->AppendRefusal(peer.tenant, EventLoop::SteadyNow(), [&] {
      const PeerCredentials credentials = {.pid = peer.process.pid, .uid = peer.process.uid, .gid = peer.process.gid};
      return AuditRecord{.what = "connect",
                         .outcome = why,
                         .caller = {.tenant = peer.tenant,
                                    .admin = peer.role == Peer::Role::kAdmin,
                                    .observer = peer.role == Peer::Role::kObserver},
                         .who = ReadWho(peer.process, OpenPeerPidfd(socket.get(), credentials))};
    });
  }
  loop_.Close(std::move(socket));
}

absl::StatusOr<UniqueFd> Acceptor::DuplicateToFreshNumber(int socket, Numbers& numbers) {
  for (int wraps = 0; wraps < 2; ++wraps) {
    while (numbers.next < numbers.end) {
      UniqueFd copy(::fcntl(socket, F_DUPFD_CLOEXEC, numbers.next));
      if (!copy || copy.get() >= numbers.end) break;
      numbers.next = copy.get() + 1;
      if (!connections_.Contains(copy.get())) return copy;
    }
    numbers.next = numbers.first;
  }
  return OsError("fcntl(F_DUPFD_CLOEXEC)", EMFILE);
}

void Acceptor::AcceptOne(UniqueFd socket, Peer::Role role) {
  Peer peer = {.role = role};
  const absl::Status admitted = AdmitPeer(&gate_, EventLoop::SteadyNow(), socket.get(), &peer);
  if (!admitted.ok()) {
    return Refuse(std::move(socket), peer, admitted);
  }
  absl::StatusOr<UniqueFd> number =
      DuplicateToFreshNumber(socket.get(), role == Peer::Role::kAdmin ? operator_numbers_ : client_numbers_);
  if (!number.ok()) return Refuse(std::move(socket), peer, number.status());
  const int fd = number->get();
  const auto refuse = [&](const absl::Status& why) {
    // Closes this duplicate first, so that the last close does not happen here.
    number->reset();
    Refuse(std::move(socket), peer, why);
  };
  if (const absl::Status added = connections_.Add(fd, peer, socket.get()); !added.ok()) return refuse(added);
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
    return refuse(watch.status());
  }
  watched_[fd] = {std::move(socket), *watch};
  hand_over_(number->release());
}

}  // namespace berth::service
