// AttachServer: fds in flight, and connections that end before their peers have received each fd.

#include <sys/epoll.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/service/attach/attach_server.h"

namespace berth::service {

AttachServer::ConnectionPtr AttachServer::MakeConnection(UniqueFd socket) {
  ConnectionPtr connection(new Connection, [this](Connection* over) { Close(std::unique_ptr<Connection>(over)); });
  connection->socket = std::move(socket);
  return connection;
}

absl::Status AttachServer::CountFd(const Connection& connection) {
  if (connection.peer.role == Peer::Role::kAdmin) return absl::OkStatus();
  return in_flight_.Add(UserOf(connection.peer), connection.socket.get());
}

void AttachServer::Close(std::unique_ptr<Connection> connection) {
  const int socket = connection->socket.get();
  const uint32_t user = UserOf(connection->peer);
  if (!in_flight_.Forget(user, socket)) {
    MutexLock lock(&closing_mu_);
    absl::StatusOr<EventLoop::WatchId> watch(absl::CancelledError("the server ends"));
    // Edge-triggered: the kernel reports each message that the peer receives, and the peer's end.
    if (!ending_) watch = loop_.Watch(socket, EPOLLOUT | EPOLLET, [this, socket](uint32_t) { OnReceived(socket); });
    if (watch.ok()) {
      connection->watch = *watch;
      closing_[socket] = std::move(connection);
      return;
    }
  }
  in_flight_.Drop(user, socket);
  loop_.Close(std::move(connection->socket));
}

void AttachServer::OnReceived(int socket) {
  std::unique_ptr<Connection> over;
  {
    MutexLock lock(&closing_mu_);
    const auto found = closing_.find(socket);
    if (found == closing_.end() || !in_flight_.Forget(UserOf(found->second->peer), socket)) return;
    over = std::move(found->second);
    closing_.erase(found);
  }
  loop_.Unwatch(over->watch);
  loop_.Close(std::move(over->socket));
}

void AttachServer::CloseAll() {
  MutexLock lock(&closing_mu_);
  ending_ = true;
  for (const auto& [socket, connection] : closing_) loop_.Unwatch(connection->watch);
}

}  // namespace berth::service
