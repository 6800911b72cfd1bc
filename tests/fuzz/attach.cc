// Messages of processes on attach.sock: on a new connection, on a lifeline, and on a channel.

#include <poll.h>
#include <string.h>

#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "common/os/fd_passing.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "daemon/service/testing/listening_attach_server.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/messages.h"

namespace berth::fuzz {
namespace {

// A broker that listens, with its supervisor, until the program ends.
class AttachServerUnderTest : protected service::ListeningAttachServer {
 public:
  AttachServerUnderTest() : ListeningAttachServer("attach-fuzz", /*fd_store_limit=*/4096) {
    std::thread([this] { loop_->Run(); }).detach();
    std::thread([this] { ServeSupervisor(); }).detach();
  }

  using ListeningAttachServer::Connect;

 private:
  void ServeSupervisor() {
    while (true) {
      pollfd entry = {.fd = supervisor_->fd(), .events = POLLIN, .revents = 0};
      ::poll(&entry, 1, 1);
      for (absl::StatusOr<BrokerRequest> request = supervisor_->Read(); request.ok(); request = supervisor_->Read()) {
        if (auto* const put = std::get_if<PutRequest>(&*request)) held_[put->key] = std::move(put->fd);
        if (const auto* const drop = std::get_if<DropRequest>(&*request)) {
          held_.erase(drop->key);
          supervisor_->Queue(fd_store::KeyMessage{.kind = fd_store::MessageKind::kDropped, .key = drop->key});
        }
      }
      supervisor_->Flush(held_);
      // The broker's event loop would call both.
      fd_store_->Flush();
      for (absl::StatusOr<Notice> notice = fd_store_->ReadNotice(); notice.ok(); notice = fd_store_->ReadNotice()) {
        if (const auto* const dropped = std::get_if<DroppedFd>(&*notice)) server_->SupervisorDropped(dropped->key);
      }
    }
  }
};

// A session's lifeline, and one of its channels.
struct Attached {
  UniqueFd lifeline;
  UniqueFd channel;
};

Attached Attach(const AttachServerUnderTest& server) {
  Attached attached = {.lifeline = server.Connect(), .channel = UniqueFd()};
  if (!SendStruct(attached.lifeline.get(), attach::Hello{}).ok()) std::abort();
  const absl::StatusOr<Message> welcome = ReceiveMessage(attached.lifeline.get());
  if (!welcome.ok() || welcome->fds.size() != 1) std::abort();
  const absl::StatusOr<SessionCredentials> session_credentials = ReadSessionCredentials(welcome->fds[0].get());
  if (!session_credentials.ok()) std::abort();
  attached.channel = server.Connect();
  const attach::Join join = {.session = session_credentials->session.value(), .secret = session_credentials->secret};
  if (!SendStruct(attached.channel.get(), join).ok()) std::abort();
  const absl::StatusOr<Message> joined = ReceiveMessage(attached.channel.get());
  if (!joined.ok() || joined->fds.size() != 1) std::abort();
  return attached;
}

// Waits until all sent messages are read: the last one is invalid and is refused, unless the connection has ended by
// then.
void AwaitHeard(int socket) {
  constexpr std::byte kNothing = {};
  if (!SendMessage(socket, std::span(&kNothing, 1)).ok()) return;
  pollfd entry = {.fd = socket, .events = POLLIN, .revents = 0};
  while (::poll(&entry, 1, 5) > 0 && ReceiveMessage(socket).ok()) {
  }
}

std::string AsAsk(attach::Method method, const std::string& body) {
  attach::Ask ask = {.method = method, .number = 1, .bytes = static_cast<uint32_t>(body.size())};
  memcpy(ask.body, body.data(), body.size());
  return AsInput(BytesOf(ask).substr(0, attach::Ask::BytesOf(ask.bytes)));
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
  // An AcquirePermitRequest of one unit with tag 1.
  const std::string request("\x0a\x02\x08\x01\x18\x01", 6);
  const std::string over = AsInput(BytesOf(handed).substr(0, attach::HandedOver::BytesOf(1)));
  return {"\1" + AsInput(BytesOf(hello)), "\1" + AsInput(BytesOf(attach::Join{.session = 1})),
          "\1" + AsInput(BytesOf(hello), 1) + AsInput(BytesOf(hello)), "\2" + ack + let_go + over,
          "\2" + AsInput(BytesOf(handed)), "\2" + give_back, "\3" + ack,
          "\2" + AsAsk(attach::Method::kAcquirePermit, request) + AsAsk(attach::Method::kExplainWait, "") +
              AsAsk(attach::Method::kCancel, ""),
          "\2" + AsAsk(attach::Method::kEndSession, "")};
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth;
  // Never destroyed: its threads are running.
  static fuzz::AttachServerUnderTest& server = *new fuzz::AttachServerUnderTest();
  if (size == 0) return 0;
  const absl::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  fuzz::Attached attached;
  if (data[0] % 3 == 1) {
    attached.channel = server.Connect();
  } else {
    attached = fuzz::Attach(server);
  }
  const int socket = data[0] % 3 == 0 ? attached.lifeline.get() : attached.channel.get();
  SetNonBlocking(socket).IgnoreError();
  fuzz::SendAll(socket, input);
  fuzz::AwaitHeard(socket);
  return 0;
}
