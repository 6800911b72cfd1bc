// An AttachFront that listens, with a broker behind it and the vault's end of its custody in the test's hands.
#ifndef BERTH_DAEMON_SERVICE_LISTENING_FRONT_H_
#define BERTH_DAEMON_SERVICE_LISTENING_FRONT_H_

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
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd_passing.h"
#include "common/unique_fd.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/broker/idle_sink.h"
#include "daemon/core/core.h"
#include "daemon/service/attach_front.h"
#include "daemon/vault/broker_link.h"
#include "daemon/vault/custody.h"

namespace berth::service {

// Of a socket that is in no file system.
class AbstractAddress {
 public:
  // `name` tells it from others of this process.
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

// Who derives from it runs the loop and plays the vault. Ends the program where it cannot be set up.
class ListeningFront {
 protected:
  // `name` tells its socket from others of this process; `custody_limit`: fds that the vault takes.
  ListeningFront(absl::string_view name, uint64_t custody_limit, bool of_operators = false) : address_(name) {
    auto sockets = *SocketPair();
    SetNonBlocking(sockets.first.get()).IgnoreError();
    vault_.emplace(std::move(sockets.first));
    vault_->Queue(custody::Facts{.custody_limit = custody_limit});
    vault_->Queue(custody::Signal{.kind = custody::MessageKind::kGiveEnd});
    vault_->Flush(held_);
    custody_ = std::move(Custody::Receive(std::move(sockets.second))->custody);
    core_ = std::make_unique<core::Core>(
        core::Config{.node = 1, .incarnation = 1, .pools = {{.name = "gpu-tests", .cap = 1}}},
        [this] { return ++last_id_; }, [](core::StreamKey) { return core::StreamWords(); });
    broker_ = std::make_unique<Broker>(core_.get(), &sink_);
    loop_ = *EventLoop::Create();
    loop_->SetTimerCallback([] {});
    front_ = std::make_unique<AttachFront>(loop_.get(), broker_.get(), custody_.get(), NodeFacts{},
                                           UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
    if (!front_->Listen(ListenAt(address_), of_operators).ok()) std::abort();
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

  // The vault's end, and what it holds.
  std::optional<BrokerLink> vault_;
  HeldFds held_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Custody> custody_;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<AttachFront> front_;

 private:
  class Sink final : public IdleSink {
   public:
    explicit Sink(std::unique_ptr<AttachFront>* front) : front_(*front) {}
    void Carry(const core::Deliver& effect) override { front_->Deliver(effect.channel, effect.delivery, -1); }
    void Carry(const core::CloseChannel& effect) override { front_->CloseChannel(effect.channel); }
    void Carry(const core::DropChannel& effect) override { front_->DropChannel(effect.channel); }
    void Carry(const core::DropSession& effect) override { front_->DropSession(effect.session); }

   private:
    std::unique_ptr<AttachFront>& front_;
  };

  uint64_t last_id_ = 0;
  Sink sink_{&front_};
  std::unique_ptr<core::Core> core_;
  const AbstractAddress address_;
};

}  // namespace berth::service

#endif  // BERTH_DAEMON_SERVICE_LISTENING_FRONT_H_
