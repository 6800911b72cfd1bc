// Bad input on the sockets themselves: any bytes on attach.sock, and bytes that are no gRPC on the others. The daemon
// ends that connection or reports the error, and continues to serve.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <berth/end_notice.h>
#include <berth/error.h>

#include "absl/algorithm/container.h"
#include "absl/base/config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"
#include "common/wire/attach_wire.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/peer_process.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

template <typename T>
std::string BytesOf(const T& message) {
  return std::string(reinterpret_cast<const char*>(&message), sizeof(message));
}

struct BadMessage {
  std::string name;
  std::string bytes;
};

// Messages that are invalid in every state of a connection.
std::vector<BadMessage> MessagesWithoutPlace() {
  attach::Hello hello;
  std::vector<BadMessage> messages = {
      {"one byte", "x"},
      {"three bytes", "xyz"},
      {"a hello cut short", BytesOf(hello).substr(0, sizeof(hello) - 1)},
      {"a hello and a byte", BytesOf(hello) + "x"},
      {"the largest message", std::string(kMaxMessageBytes, 'x')},
      {"more than the largest message", std::string(kMaxMessageBytes + 1, 'x')},
      {"far more than the largest message", std::string(100'000, 'x')},
      {"zeros", std::string(sizeof(hello), '\0')},
  };
  for (const uint32_t kind : {0u, 2u, 4u, 5u, 6u, 9u, 0xffffffffu}) {
    hello.kind = static_cast<attach::Kind>(kind);
    messages.push_back({absl::StrCat("kind ", kind), BytesOf(hello)});
  }
  return messages;
}

// Sums the fds of all processes of the daemon, where fds are counted at all (tests/support/daemon/test_daemon.cc).
uint64_t SumOfFds(const Accounts& accounts) {
  uint64_t sum = 0;
  for (const auto& [process, fds] : accounts.fds) sum += fds;
  return sum;
}
#ifdef ABSL_HAVE_THREAD_SANITIZER
constexpr uint64_t kCountsFds = 0;
#else
constexpr uint64_t kCountsFds = 1;
#endif

// Returns the accounting once the start of the daemon or of a session is complete.
Accounts QuietAccounts(TestDaemon& daemon) {
  constexpr int kTimes = 50;
  Accounts accounts;
  int same = 0;
  const bool quiet = Eventually([&] {
    const Accounts before = std::exchange(accounts, daemon.TakeAccounts());
    same = accounts == before ? same + 1 : 0;
    return same == kTimes;
  });
  EXPECT_TRUE(quiet) << Describe(accounts);
  return accounts;
}

// Returns a TCP connection over loopback whose first end has sent bytes that the second has not read. The last close of
// the first end waits for the second to read them, at most for `linger_time`.
std::pair<UniqueFd, UniqueFd> LingeringConnection(absl::Duration linger_time) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int small = 4096;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  UniqueFd lingering(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(listener.get(), name, size) < 0 || ::listen(listener.get(), 1) < 0 ||
      ::getsockname(listener.get(), name, &size) < 0 || ::connect(lingering.get(), name, size) < 0) {
    Fatal(absl::UnavailableError(strerror(errno)), "loopback");
  }
  UniqueFd reader(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const std::string bytes(1 << 16, 'x');
  while (::send(lingering.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) continue;
  const linger on = {.l_onoff = 1, .l_linger = static_cast<int>(absl::ToInt64Seconds(linger_time))};
  ::setsockopt(lingering.get(), SOL_SOCKET, SO_LINGER, &on, sizeof(on));
  return {std::move(lingering), std::move(reader)};
}

void StopLingering(int socket) {
  const linger off = {};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &off, sizeof(off));
}

// Reads all available bytes. Returns whether the other end is closed.
bool ReadToTheEnd(int socket) {
  char bytes[1 << 16];
  ssize_t got;
  do {
    got = ::recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
  } while (got > 0);
  return got == 0 || errno != EAGAIN;
}

class BadAttachTest : public ::testing::Test {
 protected:
  // Nothing is left of the test's connections, and the daemon serves.
  void TearDown() override {
    daemon_.ExpectAccountsBack();
    RawClient client = RawClient::Open(daemon_.folder());
    EXPECT_TRUE(Ok(client.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest())));
  }

  UniqueFd ConnectStream(const std::string& name) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const std::string path = daemon_.folder() + "/" + name;
    memcpy(address.sun_path, path.c_str(), path.size() + 1);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0) {
      Fatal(absl::UnavailableError(strerror(errno)), path);
    }
    return socket;
  }

  TestDaemon daemon_;
};

TEST_F(BadAttachTest, MisplacedFirstMessageIsRejectedAndNextServed) {
  std::vector<BadMessage> messages = MessagesWithoutPlace();
  messages.push_back({"an ack", BytesOf(attach::Ack{})});
  messages.push_back({"a let-go", BytesOf(attach::LetGo{})});
  messages.push_back({"a giving-back", BytesOf(attach::GiveBack{})});
  messages.push_back({"a delivery", BytesOf(attach::Delivery{})});
  for (const BadMessage& message : messages) {
    AttachSocket socket = AttachSocket::Connect(daemon_.folder());
    ASSERT_TRUE(Ok(socket.Send(message.bytes))) << message.name;
    const absl::Status refused = socket.Receive<attach::Welcome>().status();
    EXPECT_TRUE(IsRefusal(refused, Reason::kInvalidField)) << message.name << ": " << refused;
    ASSERT_TRUE(Ok(socket.Send(MakeHello("after")))) << message.name;
    EXPECT_TRUE(Ok(socket.Receive<attach::Welcome>().status())) << message.name;
  }
}

// The daemon makes the kernel refuse fds (from Linux 6.16 on), and the sender gets the error. On older kernels the fds
// arrive, and the daemon refuses their message.
bool RefusedByTheKernel(const absl::Status& sent) { return absl::IsPermissionDenied(sent); }

TEST_F(BadAttachTest, UnexpectedFdsAreRejectedAndClosed) {
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  // As many fds as a message of Berth may carry, and so many that the kernel drops some.
  for (const size_t count : {size_t{1}, size_t{3}, kMaxMessageFds}) {
    const std::vector<int> fds(count, file.get());
    AttachSocket hello = AttachSocket::Connect(daemon_.folder());
    const absl::Status sent = hello.Send(MakeHello("with fds"), fds);
    EXPECT_TRUE(RefusedByTheKernel(sent) ||
                IsRefusal(hello.Receive<attach::Welcome>().status(), Reason::kInvalidField))
        << count << ": " << sent;

    RawClient client = RawClient::Open(daemon_.folder());
    const absl::Status on_channel = client.channel().Send(attach::Ack{}, fds);
    EXPECT_TRUE(RefusedByTheKernel(on_channel) ||
                IsRefusal(client.channel().Receive<attach::Delivery>().status(), Reason::kInvalidField))
        << count << ": " << on_channel;
    EXPECT_TRUE(Ok(client.TryAcquire()));
  }
}

TEST_F(BadAttachTest, LingeringFdDelaysNoOthers) {
  constexpr absl::Duration kLinger = absl::Minutes(5);
  RawClient client = RawClient::Open(daemon_.folder());
  RawClient other = RawClient::Open(daemon_.folder());
  std::vector<UniqueFd> readers;
  const absl::Time begin = absl::Now();
  // Stops the broker, so that its close of the sent fds is surely the last: the test closes first.
  daemon_.StopBroker();
  AttachSocket fresh = AttachSocket::Connect(daemon_.folder());
  for (AttachSocket* const socket : {&fresh, &client.channel(), &client.lifeline()}) {
    auto [lingering, reader] = LingeringConnection(kLinger);
    const int fd = lingering.get();
    const absl::Status sent = socket->Send(attach::Ack{}, {&fd, 1});
    EXPECT_TRUE(sent.ok() || RefusedByTheKernel(sent)) << sent;
    if (!sent.ok()) StopLingering(lingering.get());
    readers.push_back(std::move(reader));
  }
  ASSERT_EQ(::kill(daemon_.broker(), SIGCONT), 0);
  EXPECT_TRUE(Ok(other.TryAcquire()));
  RawClient later = RawClient::Open(daemon_.folder());
  EXPECT_TRUE(Ok(later.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest())));
  EXPECT_LT(absl::Now() - begin, kLinger);
  // The order of the closes does not matter.
  EXPECT_TRUE(Eventually([&] {
    bool all = true;
    for (const UniqueFd& reader : readers) all = ReadToTheEnd(reader.get()) && all;
    return all;
  }));
}

TEST_F(BadAttachTest, PersistentlyInvalidPeerIsDisconnected) {
  AttachSocket socket = AttachSocket::Connect(daemon_.folder());
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(Ok(socket.Send(absl::string_view("x"))));
    EXPECT_TRUE(IsRefusal(socket.Receive<attach::Welcome>().status(), Reason::kInvalidField)) << i;
  }
  EXPECT_TRUE(socket.HangsUp());
}

TEST_F(BadAttachTest, BrokenChannelReceivesReasonLast) {
  RawClient client = RawClient::Open(daemon_.folder());
  ASSERT_TRUE(Ok(client.TryAcquire()));
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(Ok(client.channel().Send(absl::string_view("x"))));
    EXPECT_TRUE(IsRefusal(client.channel().Receive<attach::Delivery>().status(), Reason::kInvalidField)) << i;
  }
  const auto [last, fds] = Must(client.channel().Receive<attach::Delivery>());
  EXPECT_EQ(last.what, attach::DeliveryKind::kEnded);
  EXPECT_EQ(static_cast<EndReason>(last.why), EndReason::kChannelBroken);
  EXPECT_TRUE(client.channel().HangsUp());
  EXPECT_EQ(daemon_.TakeAccounts().permits, 1u) << "the process lives, and may be at work";
  client.lifeline().Close();
  client.process().Kill();
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
}

TEST_F(BadAttachTest, OtherVersionIsRejectedNamingBoth) {
  attach::Hello hello = MakeHello("old");
  hello.version = 77;
  AttachSocket socket = AttachSocket::Connect(daemon_.folder());
  ASSERT_TRUE(Ok(socket.Send(hello)));
  const absl::Status refused = socket.Receive<attach::Welcome>().status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kInvalidField)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "77")) << refused;
}

TEST_F(BadAttachTest, UnprintableLabelIsCleaned) {
  const std::pair<absl::string_view, absl::string_view> rows[] = {
      {"two\nlines", "two?lines"}, {"\x1b[31mred", "?[31mred"}, {"\x7f", "?"}, {"\xff\xfe", "??"}, {"tab\t", "tab?"}};
  for (const auto& [label, shown] : rows) {
    AttachSocket socket = AttachSocket::Connect(daemon_.folder());
    ASSERT_TRUE(Ok(socket.Send(MakeHello(label))));
    EXPECT_TRUE(Ok(socket.Receive<attach::Welcome>().status()));
    const v1::ListSessionsResponse sessions = Must(daemon_.inspector().ListSessions());
    EXPECT_TRUE(absl::c_any_of(sessions.sessions(), [shown = shown](const v1::Session& session) {
      return session.label() == shown;
    })) << sessions.ShortDebugString();
  }
}

TEST_F(BadAttachTest, JoinNeedsSecretAndRevealsNothingElse) {
  RawClient client = RawClient::Open(daemon_.folder());
  attach::Join join;
  join.session = client.session_credentials().session.value();
  AttachSocket wrong_secret = AttachSocket::Connect(daemon_.folder());
  ASSERT_TRUE(Ok(wrong_secret.Send(join)));
  const absl::Status wrong = wrong_secret.Receive<attach::Joined>().status();
  EXPECT_TRUE(IsRefusal(wrong, Reason::kSessionEnded)) << wrong;
  ASSERT_TRUE(Ok(wrong_secret.Send(MakeHello("after"))));
  EXPECT_TRUE(Ok(wrong_secret.Receive<attach::Welcome>().status()));

  join.secret = client.session_credentials().secret;
  join.session ^= 1;
  AttachSocket no_session = AttachSocket::Connect(daemon_.folder());
  ASSERT_TRUE(Ok(no_session.Send(join)));
  const absl::Status unknown = no_session.Receive<attach::Joined>().status();
  EXPECT_TRUE(IsRefusal(unknown, Reason::kSessionEnded)) << unknown;
}

TEST_F(BadAttachTest, RejoiningProcessHasSingleDeathProof) {
  RawClient client = RawClient::Open(daemon_.folder());
  attach::Join join;
  join.session = client.session_credentials().session.value();
  join.secret = client.session_credentials().secret;
  const Accounts before = QuietAccounts(daemon_);
  PeerProcess process = PeerProcess::Start();
  for (int i = 0; i < 50; ++i) {
    AttachSocket channel = AttachSocket::Connect(daemon_.folder(), process);
    ASSERT_TRUE(Ok(channel.Send(join)));
    ASSERT_TRUE(Ok(channel.Receive<attach::Joined>().status())) << i;
    channel.Close();
    // The next connection finds this one closed.
    ASSERT_TRUE(daemon_.AccountsBecome([&](const Accounts& accounts) {
      return accounts.processes == before.processes + 1 && SumOfFds(accounts) == SumOfFds(before) + 2 * kCountsFds;
    })) << Describe(daemon_.TakeAccounts());
  }
  process.Kill();
  EXPECT_TRUE(daemon_.AccountsBecome([&](const Accounts& accounts) { return accounts == before; }));
}

TEST_F(BadAttachTest, ClosedSessionStaysOnlyForLivingHolder) {
  const Accounts before = QuietAccounts(daemon_);
  RawClient idle = RawClient::Open(daemon_.folder());
  RawClient holder = RawClient::Open(daemon_.folder());
  ASSERT_TRUE(Ok(holder.TryAcquire()));
  for (RawClient* const client : {&idle, &holder}) {
    client->channel().Close();
    client->lifeline().Close();
  }
  EXPECT_TRUE(daemon_.AccountsBecome([&](const Accounts& accounts) {
    // Remaining: both gRPC connections, two fds each; and the holder's lifeline and process proof, each in the broker
    // and in the supervisor.
    return accounts.sessions == before.sessions + 1 && SumOfFds(accounts) == SumOfFds(before) + 8 * kCountsFds;
  })) << Describe(daemon_.TakeAccounts());
  EXPECT_EQ(daemon_.TakeAccounts().units, 1u);
  holder.process().Kill();
  EXPECT_TRUE(daemon_.AccountsBecome(
      [&](const Accounts& accounts) { return accounts.sessions == before.sessions && accounts.units == 0; }));
}

TEST(AttachLimitTest, ConnectionsPerUserAreLimited) {
  if (!IsRoot()) GTEST_SKIP() << "needs root, to be two users";
  const std::string config = ::testing::TempDir() + "/limits.toml";
  std::ofstream(config) << "[limits]\nattach_fds_per_uid = 12\n";
  TestDaemon daemon({.flags = {absl::StrCat("--config=", config)}});
  std::vector<AttachSocket> silent;
  PeerProcess peer = PeerProcess::Start(1000);
  for (int i = 0; i < 12; ++i) silent.push_back(AttachSocket::Connect(daemon.folder(), peer));
  AttachSocket refused = AttachSocket::Connect(daemon.folder(), peer);
  const absl::Status status = refused.Receive<attach::Welcome>().status();
  EXPECT_TRUE(IsRefusal(status, Reason::kLimit)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "of uid 1000: 12, limit 12")) << status;
  EXPECT_TRUE(refused.HangsUp());
  RawClient other = RawClient::Open(daemon.folder());
  EXPECT_TRUE(Ok(other.TryAcquire()));
  // The next connection gets a place that was given back.
  silent.clear();
  EXPECT_TRUE(Eventually([&] {
    AttachSocket next = AttachSocket::Connect(daemon.folder(), peer);
    return next.Send(MakeHello("next")).ok() && next.Receive<attach::Welcome>().ok();
  }));
}

TEST_F(BadAttachTest, EndedSessionRejectsNewProcess) {
  RawClient client = RawClient::Open(daemon_.folder());
  ASSERT_TRUE(Ok(client.Call(&v1::SessionService::Stub::EndSession, v1::EndSessionRequest())));
  attach::Join join;
  join.session = client.session_credentials().session.value();
  join.secret = client.session_credentials().secret;
  AttachSocket late = AttachSocket::Connect(daemon_.folder());
  ASSERT_TRUE(Ok(late.Send(join)));
  const absl::Status refused = late.Receive<attach::Joined>().status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kSessionEnded)) << refused;
}

TEST_F(BadAttachTest, MessageOnLifelineIsRejectedAndSessionContinues) {
  for (const BadMessage& message : MessagesWithoutPlace()) {
    RawClient client = RawClient::Open(daemon_.folder());
    ASSERT_TRUE(Ok(client.lifeline().Send(message.bytes))) << message.name;
    const absl::Status refused = client.lifeline().Receive<attach::Welcome>().status();
    EXPECT_TRUE(IsRefusal(refused, Reason::kInvalidField)) << message.name << ": " << refused;
    EXPECT_TRUE(Ok(client.TryAcquire())) << message.name;
  }
}

TEST_F(BadAttachTest, ProtocolBreachIsRejectedAndChannelContinues) {
  std::vector<BadMessage> messages = MessagesWithoutPlace();
  messages.push_back({"a second hello", BytesOf(attach::Hello{})});
  messages.push_back({"a second join", BytesOf(attach::Join{})});
  messages.push_back({"a delivery", BytesOf(attach::Delivery{})});
  for (const BadMessage& message : messages) {
    RawClient client = RawClient::Open(daemon_.folder());
    ASSERT_TRUE(Ok(client.channel().Send(message.bytes))) << message.name;
    const absl::Status refused = client.channel().Receive<attach::Delivery>().status();
    EXPECT_TRUE(IsRefusal(refused, Reason::kInvalidField)) << message.name << ": " << refused;
    EXPECT_TRUE(Ok(client.TryAcquire())) << message.name;
  }
}

TEST_F(BadAttachTest, ForeignPermitIsNotReturned) {
  RawClient owner = RawClient::Open(daemon_.folder());
  const absl::StatusOr<v1::AcquirePermitResponse> held = owner.TryAcquire();
  ASSERT_TRUE(Ok(held));
  RawClient other = RawClient::Open(daemon_.folder());
  for (const uint64_t acquisition : {held->acquisition(), uint64_t{12345}, uint64_t{0}}) {
    ASSERT_TRUE(Ok(other.channel().Send(attach::GiveBack{.acquisition = acquisition})));
    const auto answer = other.channel().Receive<attach::GaveBack>();
    ASSERT_TRUE(Ok(answer));
    EXPECT_EQ(answer->first.acquisition, acquisition);
  }
  EXPECT_EQ(daemon_.TakeAccounts().permits, 1u);
  // The process releases its own permit twice.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Ok(owner.channel().Send(attach::GiveBack{.acquisition = held->acquisition()})));
    EXPECT_TRUE(Ok(owner.channel().Receive<attach::GaveBack>()));
    EXPECT_EQ(daemon_.TakeAccounts().permits, 0u);
  }
  ASSERT_TRUE(Ok(owner.channel().Send(attach::GiveBack{.if_idle = 2, .acquisition = 1})));
  EXPECT_TRUE(IsRefusal(owner.channel().Receive<attach::GaveBack>().status(), Reason::kInvalidField));
}

TEST_F(BadAttachTest, ForeignAcksAndReleasesChangeNothing) {
  RawClient owner = RawClient::Open(daemon_.folder());
  v1::AllocateBlockRequest allocate;
  *allocate.mutable_request() = owner.NextTag();
  allocate.set_bytes(4096);
  const absl::StatusOr<v1::AllocateBlockResponse> block =
      owner.Call(&v1::MemoryService::Stub::AllocateBlock, allocate);
  ASSERT_TRUE(Ok(block));
  RawClient other = RawClient::Open(daemon_.folder());
  attach::LetGo let_go;
  let_go.import = block->import();
  ASSERT_TRUE(Ok(other.channel().Send(let_go)));
  let_go.import = 12345;
  ASSERT_TRUE(Ok(other.channel().Send(let_go)));
  attach::Ack ack;
  ack.number = UINT64_MAX;
  ASSERT_TRUE(Ok(other.channel().Send(ack)));
  // The session's own call is answered after the daemon has read the messages sent before, where it reads them at all.
  EXPECT_TRUE(Ok(other.Call(&v1::SessionService::Stub::GetSession, v1::GetSessionRequest())));
  EXPECT_EQ(daemon_.TakeAccounts().imports, 1u);
}

TEST_F(BadAttachTest, SilentConnectionsDoNotBlockOthers) {
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  constexpr int kConnections = 3000;
  if (limit.rlim_cur < 2 * kConnections) GTEST_SKIP() << "needs " << 2 * kConnections << " fds";
  std::vector<AttachSocket> silent;
  for (int i = 0; i < kConnections; ++i) silent.push_back(AttachSocket::Connect(daemon_.folder()));
  RawClient client = RawClient::Open(daemon_.folder());
  EXPECT_TRUE(Ok(client.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest())));
  // The daemon ended the oldest connection to admit the newest.
  EXPECT_TRUE(silent.front().HangsUp());
}

TEST(ConnectionLimitTest, ConnectionsBeyondLimitAreClosedOthersServed) {
  constexpr int kLimit = 8;
  TestDaemon daemon({.flags = {absl::StrCat("--max-connections=", kLimit)}});
  {
    RawClient client = RawClient::Open(daemon.folder());
    PeerProcess peer = PeerProcess::Start();
    std::vector<UniqueFd> crowd;
    for (int i = 0; i < 3 * kLimit; ++i)
      crowd.push_back(peer.Connect(daemon.folder() + "/berthd.sock", SOCK_STREAM));
    char byte;
    EXPECT_TRUE(Eventually([&] { return ::recv(crowd.back().get(), &byte, 1, MSG_DONTWAIT) == 0; }));
    EXPECT_TRUE(Ok(client.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest())));
    EXPECT_TRUE(Ok(daemon.inspector().ListPools()));
  }
  daemon.ExpectAccountsBack();
  RawClient later = RawClient::Open(daemon.folder());
  EXPECT_TRUE(Ok(later.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest())));
}

TEST_F(BadAttachTest, NonGrpcBytesEndConnection) {
  for (const char* const name : {"berthd.sock", "admin.sock"}) {
    for (const std::string& bytes :
         {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\xff'),
          std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string(1000, 'x')}) {
      const UniqueFd socket = ConnectStream(name);
      ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ::shutdown(socket.get(), SHUT_WR);
      EXPECT_TRUE(Eventually([&] {
        char answer[4096];
        return ::recv(socket.get(), answer, sizeof(answer), MSG_DONTWAIT) == 0 || errno == ECONNRESET;
      })) << name;
    }
  }
}

}  // namespace
}  // namespace berth::testing
