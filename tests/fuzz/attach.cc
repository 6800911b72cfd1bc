// What processes say on attach.sock: on a fresh connection, on a lifeline, and on a channel.

#include <poll.h>
#include <string.h>

#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "common/attach_wire.h"
#include "common/fd_passing.h"
#include "common/session_capsule.h"
#include "daemon/service/listening_front.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/messages.h"

namespace berth::fuzz {
namespace {

// A broker that listens, and its vault; for as long as the program runs.
class Front : protected service::ListeningFront {
 public:
  Front() : ListeningFront("attach-fuzz", /*custody_limit=*/4096) {
    std::thread([this] { loop_->Run(); }).detach();
    std::thread([this] { ServeVault(); }).detach();
  }

  using ListeningFront::Connect;

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
  const std::string give_back = AsInput(BytesOf(attach::GiveBack{.acquisition = 1}));
  const std::string over = AsInput(BytesOf(handed).substr(0, attach::HandedOver::BytesOf(1)));
  return {"\1" + AsInput(BytesOf(hello)), "\1" + AsInput(BytesOf(attach::Join{.session = 1})),
          "\1" + AsInput(BytesOf(hello), 1) + AsInput(BytesOf(hello)), "\2" + ack + let_go + over,
          "\2" + AsInput(BytesOf(handed)), "\2" + give_back, "\3" + ack};
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
