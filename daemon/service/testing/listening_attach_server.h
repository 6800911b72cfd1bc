// An AttachServer that listens, with a broker; the test acts as the supervisor.
#ifndef DAEMON_SERVICE_TESTING_LISTENING_ATTACH_SERVER_H_
#define DAEMON_SERVICE_TESTING_LISTENING_ATTACH_SERVER_H_

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/broker/testing/idle_sink.h"
#include "daemon/core/core.h"
#include "daemon/service/attach/attach_server.h"
#include "daemon/supervisor/broker_link.h"
#include "daemon/supervisor/fd_store/supervisor_fd_store.h"

namespace berth::service {

// Returns whether the condition becomes true within a minute.
template <typename Condition>
bool Becomes(Condition condition) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (!condition()) {
    if (absl::Now() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Address of an abstract socket, which is in no file system.
class AbstractAddress {
 public:
  // `name` distinguishes it from others of this process.
  explicit AbstractAddress(absl::string_view name) {
    const std::string path = absl::StrCat("berth-", name, "-", ::getpid());
    address_.sun_family = AF_UNIX;
    memcpy(address_.sun_path + 1, path.data(), path.size());
    size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t size() const { return size_; }

 private:
  sockaddr_un address_ = {};
  socklen_t size_ = 0;
};

// The derived test runs the loop and acts as the supervisor. The constructor aborts the program if the setup fails.
class ListeningAttachServer {
 protected:
  // `name` distinguishes its socket from others of this process; `fd_store_limit`: number of fds that the supervisor
  // accepts.
  ListeningAttachServer(absl::string_view name, uint64_t fd_store_limit, bool of_operators = false) : address_(name) {
    auto sockets = *SocketPair();
    SetNonBlocking(sockets.first.get()).IgnoreError();
    supervisor_.emplace(std::move(sockets.first));
    supervisor_->Queue(fd_store::Facts{.fd_store_limit = fd_store_limit});
    supervisor_->Queue(fd_store::Signal{.kind = fd_store::MessageKind::kGiveEnd});
    supervisor_->Flush(held_);
    fd_store_ = std::move(SupervisorFdStore::Receive(std::move(sockets.second))->fd_store);
    core_ = std::make_unique<core::Core>(
        core::Config{.node = 1,
                     .incarnation = 1,
                     .pools = {{.name = "gpu-tests", .cap = 1}},
                     // However long the test takes.
                     .limits = {.unseen_patience = absl::InfiniteDuration()}},
        [this] { return ++last_id_; }, [](core::StreamKey) { return core::FenceValues(); });
    broker_ = std::make_unique<Broker>(core_.get(), &sink_);
    loop_ = *EventLoop::Create();
    loop_->SetTimerCallback([] {});
    server_ = std::make_unique<AttachServer>(loop_.get(), broker_.get(), fd_store_.get(), NodeFacts{},
                                             UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
    sink_.server = server_.get();
    if (!server_->Listen(ListenAt(address_), of_operators).ok()) std::abort();
  }

  static UniqueFd ListenAt(const AbstractAddress& address) {
    UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::bind(listener.get(), address.get(), address.size()) < 0 || ::listen(listener.get(), 16) < 0) std::abort();
    return listener;
  }
  static UniqueFd ConnectTo(const AbstractAddress& address) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), address.get(), address.size()) < 0) std::abort();
    return socket;
  }
  UniqueFd Connect() const { return ConnectTo(address_); }

  // The supervisor's end, and the fds that it holds.
  std::optional<BrokerLink> supervisor_;
  HeldFds held_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<SupervisorFdStore> fd_store_;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<AttachServer> server_;

 private:
  class Sink final : public IdleSink {
   public:
    void Apply(const core::Deliver& effect) override { server->Deliver(effect.channel, effect.delivery, -1); }
    void Apply(const core::CloseChannel& effect) override { server->CloseChannel(effect.channel); }
    void Apply(const core::DropChannel& effect) override { server->DropChannel(effect.channel); }
    void Apply(const core::DropSession& effect) override { server->DropSession(effect.session); }

    // Not `server_`, which is null while its destructor waits for the server's threads.
    AttachServer* server = nullptr;
  };

  uint64_t last_id_ = 0;
  Sink sink_;
  std::unique_ptr<core::Core> core_;
  const AbstractAddress address_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_TESTING_LISTENING_ATTACH_SERVER_H_
