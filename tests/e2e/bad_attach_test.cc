// Bad input on the sockets themselves: whatever comes on attach.sock, and bytes that are no gRPC on the
// others. Each time the daemon ends that connection or says what was wrong, and serves on.

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

#include "absl/base/config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/attach_wire.h"
#include "common/error.h"
#include "common/fd_passing.h"
#include "common/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/peer_process.h"
#include "tests/support/raw_client.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

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

// What is right nowhere.
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

// Of all of the daemon's processes, where fds are counted at all (tests/support/test_daemon.cc).
uint64_t SumOfFds(const Books& books) {
  uint64_t sum = 0;
  for (const auto& [process, fds] : books.fds) sum += fds;
  return sum;
}
#ifdef ABSL_HAVE_THREAD_SANITIZER
constexpr uint64_t kCountsFds = 0;
#else
constexpr uint64_t kCountsFds = 1;
#endif

// The books once what is on its way when a daemon or a session has just begun is done.
Books QuietBooks(TestDaemon& daemon) {
  constexpr int kTimes = 50;
  Books books;
  int same = 0;
  const bool quiet = Eventually([&] {
    const Books before = std::exchange(books, daemon.TakeBooks());
    same = books == before ? same + 1 : 0;
    return same == kTimes;
  });
  EXPECT_TRUE(quiet) << Describe(books);
  return books;
}

absl::StatusOr<v1::AcquirePermitResponse> TryAcquire(RawClient& client) {
  v1::AcquirePermitRequest request;
  *request.mutable_request() = client.NextTag();
  request.set_holder_key("k");
  request.mutable_max_wait();
  return client.Call(&v1::PermitService::Stub::AcquirePermit, request);
}

// A TCP connection over loopback whose first end has bytes to send that the second has not read: where it is the last,
// the close of the first waits for the second to read them, at most for `linger`.
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

// Reads what is there. Returns whether the other end is closed.
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
  // Nothing is left of what the test did, and the daemon serves.
  void TearDown() override {
    daemon_.ExpectBooksBack();
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

TEST_F(BadAttachTest, AFirstMessageWithoutPlaceIsRefusedAndTheNextOneServed) {
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

// The daemon has the kernel refuse fds (from Linux 6.16 on): the sender is told. Else they come, and it refuses the
// message that they came with.
bool RefusedByTheKernel(const absl::Status& sent) { return absl::IsPermissionDenied(sent); }

TEST_F(BadAttachTest, FdsWhereNoneBelongAreRefusedAndClosed) {
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  // As many as a message of Berth's may carry, and so many that the kernel cuts some off.
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
    EXPECT_TRUE(Ok(TryAcquire(client)));
  }
}

TEST_F(BadAttachTest, AnFdWhoseCloseWaitsKeepsNobodyWaiting) {
  constexpr absl::Duration kLinger = absl::Minutes(5);
  RawClient client = RawClient::Open(daemon_.folder());
  RawClient other = RawClient::Open(daemon_.folder());
  std::vector<UniqueFd> readers;
  const absl::Time begin = absl::Now();
  // Held up, so that the daemon's close of what was sent is surely the last: ours comes before.
  ASSERT_EQ(::kill(daemon_.broker(), SIGSTOP), 0);
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
  EXPECT_TRUE(Ok(TryAcquire(other)));
  RawClient later = RawClient::Open(daemon_.folder());
  EXPECT_TRUE(Ok(later.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest())));
  EXPECT_LT(absl::Now() - begin, kLinger);
  // In whatever order they are closed.
  EXPECT_TRUE(Eventually([&] {
    bool all = true;
    for (const UniqueFd& reader : readers) all = ReadToTheEnd(reader.get()) && all;
    return all;
  }));
}

TEST_F(BadAttachTest, APeerThatDoesNotLearnIsHungUpOn) {
  AttachSocket socket = AttachSocket::Connect(daemon_.folder());
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(Ok(socket.Send(absl::string_view("x"))));
    EXPECT_TRUE(IsRefusal(socket.Receive<attach::Welcome>().status(), Reason::kInvalidField)) << i;
  }
  EXPECT_TRUE(socket.HangsUp());
}

TEST_F(BadAttachTest, AnotherVersionIsRefusedNamingBoth) {
  attach::Hello hello = MakeHello("old");
  hello.version = 77;
  AttachSocket socket = AttachSocket::Connect(daemon_.folder());
  ASSERT_TRUE(Ok(socket.Send(hello)));
  const absl::Status refused = socket.Receive<attach::Welcome>().status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kInvalidField)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "77")) << refused;
}

TEST_F(BadAttachTest, ALabelThatCannotBeShownIsRefused) {
  for (const absl::string_view label : {"two\nlines", "\x1b[31mred", "\x7f", "\xff\xfe", "tab\t"}) {
    AttachSocket socket = AttachSocket::Connect(daemon_.folder());
    ASSERT_TRUE(Ok(socket.Send(MakeHello(label))));
    const absl::Status refused = socket.Receive<attach::Welcome>().status();
    EXPECT_TRUE(IsRefusal(refused, Reason::kInvalidField)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "label")) << refused;
  }
}

TEST_F(BadAttachTest, JoiningNeedsTheSessionsSecretAndSaysNoMoreThanThat) {
  RawClient client = RawClient::Open(daemon_.folder());
  attach::Join join;
  join.session = client.capsule().session.value();
  AttachSocket wrong_secret = AttachSocket::Connect(daemon_.folder());
  ASSERT_TRUE(Ok(wrong_secret.Send(join)));
  const absl::Status wrong = wrong_secret.Receive<attach::Joined>().status();
  EXPECT_TRUE(IsRefusal(wrong, Reason::kBadCredentials)) << wrong;
  ASSERT_TRUE(Ok(wrong_secret.Send(MakeHello("after"))));
  EXPECT_TRUE(Ok(wrong_secret.Receive<attach::Welcome>().status()));

  join.secret = client.capsule().secret;
  join.session ^= 1;
  AttachSocket no_session = AttachSocket::Connect(daemon_.folder());
  ASSERT_TRUE(Ok(no_session.Send(join)));
  const absl::Status unknown = no_session.Receive<attach::Joined>().status();
  EXPECT_TRUE(IsRefusal(unknown, Reason::kBadCredentials)) << unknown;
}

TEST_F(BadAttachTest, AProcessThatJoinsAndLeavesAgainAndAgainKeepsOneProofOfItsDeath) {
  RawClient client = RawClient::Open(daemon_.folder());
  attach::Join join;
  join.session = client.capsule().session.value();
  join.secret = client.capsule().secret;
  const Books before = QuietBooks(daemon_);
  PeerProcess process = PeerProcess::Start();
  for (int i = 0; i < 50; ++i) {
    AttachSocket channel = AttachSocket::Connect(daemon_.folder(), process);
    ASSERT_TRUE(Ok(channel.Send(join)));
    ASSERT_TRUE(Ok(channel.Receive<attach::Joined>().status())) << i;
    channel.Close();
    // The next one finds it hung up.
    ASSERT_TRUE(daemon_.BooksBecome([&](const Books& books) {
      return books.processes == before.processes + 1 && SumOfFds(books) == SumOfFds(before) + 2 * kCountsFds;
    })) << Describe(daemon_.TakeBooks());
  }
  process.Kill();
  EXPECT_TRUE(daemon_.BooksBecome([&](const Books& books) { return books == before; }));
}

TEST_F(BadAttachTest, ASessionWhoseSocketsAreClosedStaysForWhatItsLivingProcessMayHoldAndNotOtherwise) {
  const Books before = QuietBooks(daemon_);
  RawClient idle = RawClient::Open(daemon_.folder());
  RawClient holder = RawClient::Open(daemon_.folder());
  ASSERT_TRUE(Ok(TryAcquire(holder)));
  for (RawClient* const client : {&idle, &holder}) {
    client->channel().Close();
    client->lifeline().Close();
  }
  EXPECT_TRUE(daemon_.BooksBecome([&](const Books& books) {
    // Both connections to gRPC, two fds each; of the holder the lifeline and the proof of its death, here and in the
    // vault.
    return books.sessions == before.sessions + 1 && SumOfFds(books) == SumOfFds(before) + 8 * kCountsFds;
  })) << Describe(daemon_.TakeBooks());
  EXPECT_EQ(daemon_.TakeBooks().units, 1u);
  holder.process().Kill();
  EXPECT_TRUE(daemon_.BooksBecome(
      [&](const Books& books) { return books.sessions == before.sessions && books.units == 0; }));
}

TEST(AttachLimitTest, AUsersConnectionsHaveALimitAndOthersTheirs) {
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
  EXPECT_TRUE(Ok(TryAcquire(other)));
  // A place that is given back is there for the next one.
  silent.clear();
  EXPECT_TRUE(Eventually([&] {
    AttachSocket next = AttachSocket::Connect(daemon.folder(), peer);
    return next.Send(MakeHello("next")).ok() && next.Receive<attach::Welcome>().ok();
  }));
}

TEST_F(BadAttachTest, AnEndedSessionTakesNoNewProcess) {
  RawClient client = RawClient::Open(daemon_.folder());
  ASSERT_TRUE(Ok(client.Call(&v1::SessionService::Stub::EndSession, v1::EndSessionRequest())));
  attach::Join join;
  join.session = client.capsule().session.value();
  join.secret = client.capsule().secret;
  AttachSocket late = AttachSocket::Connect(daemon_.folder());
  ASSERT_TRUE(Ok(late.Send(join)));
  const absl::Status refused = late.Receive<attach::Joined>().status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kSessionEnded)) << refused;
}

TEST_F(BadAttachTest, ALifelineThatSpeaksIsRefusedAndItsSessionGoesOn) {
  for (const BadMessage& message : MessagesWithoutPlace()) {
    RawClient client = RawClient::Open(daemon_.folder());
    ASSERT_TRUE(Ok(client.lifeline().Send(message.bytes))) << message.name;
    const absl::Status refused = client.lifeline().Receive<attach::Welcome>().status();
    EXPECT_TRUE(IsRefusal(refused, Reason::kInvalidField)) << message.name << ": " << refused;
    EXPECT_TRUE(Ok(TryAcquire(client))) << message.name;
  }
}

TEST_F(BadAttachTest, AChannelThatBreaksTheProtocolIsRefusedAndGoesOn) {
  std::vector<BadMessage> messages = MessagesWithoutPlace();
  messages.push_back({"a second hello", BytesOf(attach::Hello{})});
  messages.push_back({"a second join", BytesOf(attach::Join{})});
  messages.push_back({"a delivery", BytesOf(attach::Delivery{})});
  for (const BadMessage& message : messages) {
    RawClient client = RawClient::Open(daemon_.folder());
    ASSERT_TRUE(Ok(client.channel().Send(message.bytes))) << message.name;
    const absl::Status refused = client.channel().Receive<attach::Delivery>().status();
    EXPECT_TRUE(IsRefusal(refused, Reason::kInvalidField)) << message.name << ": " << refused;
    EXPECT_TRUE(Ok(TryAcquire(client))) << message.name;
  }
}

TEST_F(BadAttachTest, WhatIsNotTheirsIsNotGivenBack) {
  RawClient owner = RawClient::Open(daemon_.folder());
  const absl::StatusOr<v1::AcquirePermitResponse> held = TryAcquire(owner);
  ASSERT_TRUE(Ok(held));
  RawClient other = RawClient::Open(daemon_.folder());
  for (const uint64_t acquisition : {held->acquisition(), uint64_t{12345}, uint64_t{0}}) {
    ASSERT_TRUE(Ok(other.channel().Send(attach::GiveBack{.acquisition = acquisition})));
    const auto answer = other.channel().Receive<attach::GaveBack>();
    ASSERT_TRUE(Ok(answer));
    EXPECT_EQ(answer->first.acquisition, acquisition);
  }
  EXPECT_EQ(daemon_.TakeBooks().permits, 1u);
  // Its own, twice.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Ok(owner.channel().Send(attach::GiveBack{.acquisition = held->acquisition()})));
    EXPECT_TRUE(Ok(owner.channel().Receive<attach::GaveBack>()));
    EXPECT_EQ(daemon_.TakeBooks().permits, 0u);
  }
  ASSERT_TRUE(Ok(owner.channel().Send(attach::GiveBack{.if_idle = 2, .acquisition = 1})));
  EXPECT_TRUE(IsRefusal(owner.channel().Receive<attach::GaveBack>().status(), Reason::kInvalidField));
}

TEST_F(BadAttachTest, AcksAndLetGosOfWhatIsNotTheirsChangeNothing) {
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
  // Its own call comes back after what it sent before was looked at, as far as that is ever looked at.
  EXPECT_TRUE(Ok(other.Call(&v1::SessionService::Stub::GetSession, v1::GetSessionRequest())));
  EXPECT_EQ(daemon_.TakeBooks().imports, 1u);
}

TEST_F(BadAttachTest, SilentConnectionsDoNotKeepOthersOut) {
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
  // The oldest was ended for the newest.
  EXPECT_TRUE(silent.front().HangsUp());
}

TEST(ConnectionLimitTest, ConnectionsPastTheLimitAreEndedAndTheOthersServed) {
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
  daemon.ExpectBooksBack();
  RawClient later = RawClient::Open(daemon.folder());
  EXPECT_TRUE(Ok(later.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest())));
}

TEST_F(BadAttachTest, BytesThatAreNoGrpcEndTheConnection) {
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
