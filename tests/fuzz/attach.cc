// What processes say on attach.sock: on a fresh connection, on a lifeline, and on a channel.

#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/attach_wire.h"
#include "common/fd_passing.h"
#include "common/session_capsule.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/broker/idle_sink.h"
#include "daemon/core/core.h"
#include "daemon/service/attach_front.h"
#include "daemon/vault/broker_link.h"
#include "daemon/vault/custody.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/messages.h"

namespace berth::fuzz {
namespace {

class FrontSink final : public IdleSink {
 public:
  explicit FrontSink(std::unique_ptr<service::AttachFront>* front) : front_(*front) {}
  void Carry(const core::Deliver& effect) override { front_->Deliver(effect.channel, effect.delivery, -1); }
  void Carry(const core::CloseChannel& effect) override { front_->CloseChannel(effect.channel); }
  void Carry(const core::DropChannel& effect) override { front_->DropChannel(effect.channel); }
  void Carry(const core::DropSession& effect) override { front_->DropSession(effect.session); }

 private:
  std::unique_ptr<service::AttachFront>& front_;
};

// A broker that listens, and its vault; for as long as the program runs.
class Front {
 public:
  Front() {
    auto sockets = *SocketPair();
    SetNonBlocking(sockets.first.get()).IgnoreError();
    vault_ = std::make_unique<BrokerLink>(std::move(sockets.first));
    vault_->Queue(custody::Facts{.custody_limit = 4096});
    vault_->Queue(custody::Signal{.kind = custody::MessageKind::kGiveEnd});
    vault_->Flush(held_);
    custody_ = std::move(Custody::Receive(std::move(sockets.second))->custody);
    core_ = std::make_unique<core::Core>(
        core::Config{.node = 1, .incarnation = 1}, [this] { return ++last_id_; },
        [](core::StreamKey) { return core::StreamWords(); });
    broker_ = std::make_unique<Broker>(core_.get(), &sink_);
    loop_ = *EventLoop::Create();
    loop_->SetTimerCallback([] {});
    front_ = std::make_unique<service::AttachFront>(loop_.get(), broker_.get(), custody_.get(), service::NodeFacts{},
                                                    UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
    // A name in no file system.
    const std::string name = absl::StrCat("berth-attach-fuzz-", ::getpid());
    address_.sun_family = AF_UNIX;
    memcpy(address_.sun_path + 1, name.data(), name.size());
    size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address_), size_) < 0 ||
        ::listen(listener.get(), 16) < 0 || !front_->Listen(std::move(listener)).ok()) {
      std::abort();
    }
    std::thread([this] { loop_->Run(); }).detach();
    std::thread([this] { ServeVault(); }).detach();
  }

  UniqueFd Connect() const {
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_), size_) < 0) std::abort();
    return socket;
  }

 private:
  void ServeVault() {
    while (true) {
      pollfd entry = {.fd = vault_->fd(), .events = POLLIN, .revents = 0};
      ::poll(&entry, 1, 1);
      for (absl::StatusOr<BrokerRequest> request = vault_->Read(); request.ok(); request = vault_->Read()) {
        if (auto* const put = std::get_if<PutRequest>(&*request)) held_[put->key] = std::move(put->fd);
        if (const auto* const drop = std::get_if<DropRequest>(&*request)) {
          held_.erase(drop->key);
          vault_->Queue(custody::KeyMessage{.kind = custody::MessageKind::kDropped, .key = drop->key});
        }
      }
      vault_->Flush(held_);
      // The broker's event loop would call both.
      custody_->Flush();
      for (absl::StatusOr<Notice> notice = custody_->ReadNotice(); notice.ok(); notice = custody_->ReadNotice()) {
        if (const auto* const dropped = std::get_if<DroppedFd>(&*notice)) front_->VaultDropped(dropped->key);
      }
    }
  }

  uint64_t last_id_ = 0;
  std::unique_ptr<BrokerLink> vault_;
  HeldFds held_;
  std::unique_ptr<service::AttachFront> front_;
  FrontSink sink_{&front_};
  std::unique_ptr<Custody> custody_;
  std::unique_ptr<core::Core> core_;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<EventLoop> loop_;
  sockaddr_un address_ = {};
  socklen_t size_ = 0;
};

// A session's lifeline, and a channel of it.
struct Attached {
  UniqueFd lifeline;
  UniqueFd channel;
};

Attached Attach(const Front& front) {
  Attached attached = {.lifeline = front.Connect(), .channel = UniqueFd()};
  if (!SendStruct(attached.lifeline.get(), attach::Hello{}).ok()) std::abort();
  const absl::StatusOr<Message> welcome = ReceiveMessage(attached.lifeline.get());
  if (!welcome.ok() || welcome->fds.size() != 1) std::abort();
  const absl::StatusOr<SessionCapsule> capsule = ReadCapsule(welcome->fds[0].get());
  if (!capsule.ok()) std::abort();
  attached.channel = front.Connect();
  const attach::Join join = {.session = capsule->session.value(), .secret = capsule->secret};
  if (!SendStruct(attached.channel.get(), join).ok()) std::abort();
  const absl::StatusOr<Message> joined = ReceiveMessage(attached.channel.get());
  if (!joined.ok() || joined->fds.size() != 1) std::abort();
  return attached;
}

// Waits until all that was sent has been heard: what is sent last is a message that is none, which is refused, or the
// connection has ended by then.
void AwaitHeard(int socket) {
  constexpr std::byte kNothing = {};
  if (!SendMessage(socket, std::span(&kNothing, 1)).ok()) return;
  pollfd entry = {.fd = socket, .events = POLLIN, .revents = 0};
  while (::poll(&entry, 1, 5) > 0 && ReceiveMessage(socket).ok()) {
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  attach::Hello hello;
  strcpy(hello.label, "label");
  const std::string ack = AsInput(BytesOf(attach::Ack{.number = 1}));
  const std::string let_go = AsInput(BytesOf(attach::LetGo{.import = 1}));
  attach::HandedOver handed = {.count = 1, .block = 1};
  handed.marks[0] = {.slot = 1, .access = 3, .value = 7};
  const std::string over = AsInput(BytesOf(handed).substr(0, attach::HandedOver::BytesOf(1)));
  return {"\1" + AsInput(BytesOf(hello)), "\1" + AsInput(BytesOf(attach::Join{.session = 1})),
          "\1" + AsInput(BytesOf(hello), 1) + AsInput(BytesOf(hello)), "\2" + ack + let_go + over,
          "\2" + AsInput(BytesOf(handed)), "\3" + ack};
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth;
  // Left to the end of the program: its threads are at work.
  static fuzz::Front& front = *new fuzz::Front();
  if (size == 0) return 0;
  const absl::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  fuzz::Attached attached;
  if (data[0] % 3 == 1) {
    attached.channel = front.Connect();
  } else {
    attached = fuzz::Attach(front);
  }
  const int socket = data[0] % 3 == 0 ? attached.lifeline.get() : attached.channel.get();
  SetNonBlocking(socket).IgnoreError();
  fuzz::SendAll(socket, input);
  fuzz::AwaitHeard(socket);
  return 0;
}
