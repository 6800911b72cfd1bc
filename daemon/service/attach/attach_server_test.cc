// attach.sock with a slow supervisor: a lifeline or channel that ends on its way into the fd store leaves nothing
// there. Also the audited identities of processes that join, or that an earlier broker left.

#include "daemon/service/attach/attach_server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <berth/error.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/os/fd_passing.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "daemon/base/credentials_holders.h"
#include "daemon/broker/testing/recorded_call.h"
#include "daemon/service/audit/audit_log.h"
#include "daemon/service/testing/listening_attach_server.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace berth::service {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// Whether this process has a pidfd of the process `pid`. Other threads open and close fds meanwhile.
bool HasPidfdOf(pid_t pid) {
  std::error_code gone;
  for (std::filesystem::directory_iterator entry("/proc/self/fdinfo", gone), end; entry != end; entry.increment(gone)) {
    std::ifstream file(entry->path());
    std::string line;
    while (std::getline(file, line)) {
      if (line == absl::StrCat("Pid:\t", pid)) return true;
    }
  }
  return false;
}

class AttachServerTest : public testing::Test, protected ListeningAttachServer {
 protected:
  explicit AttachServerTest(uint64_t fd_store_limit = 10'000, bool of_operators = false)
      : ListeningAttachServer("attach-server-test", fd_store_limit, of_operators) {
    char folder[] = "/tmp/berth-attach-XXXXXX";
    folder_ = ::mkdtemp(folder);
    audit_ = std::make_unique<AuditLog>(AuditLog::Options{.folder = folder_});
    server_->SetAuditLog(audit_.get());
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~AttachServerTest() override {
    loop_->Stop();
    thread_.join();
    server_.reset();
    audit_.reset();
    std::filesystem::remove_all(folder_);
  }

  // Receives the server's next message as a T, or a status; `fd` gets the fd that comes with it, `said` the T.
  template <typename T>
  absl::Status Receive(int socket, UniqueFd* fd = nullptr, T* said = nullptr) {
    pollfd entry = {.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) != 1)
      return absl::DeadlineExceededError("nothing came");
    absl::StatusOr<Message> message = ReceiveMessage(socket);
    if (!message.ok()) return message.status();
    if (fd != nullptr && message->fds.size() == 1) *fd = std::move(message->fds[0]);
    if (message->bytes.size() == sizeof(T)) {
      if (said != nullptr) memcpy(said, message->bytes.data(), sizeof(T));
      return absl::OkStatus();
    }
    attach::Refused refused;
    memcpy(&refused, message->bytes.data(), sizeof(refused));
    absl::Status status(static_cast<absl::StatusCode>(refused.code), refused.text);
    if (refused.reason != 0) SetErrorDetails({.reason = static_cast<Reason>(refused.reason)}, &status);
    return status;
  }

  // Fills the socket to the supervisor. Puts ids of blocks from 1.
  void FillTheSupervisorsSocket() {
    const UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    uint64_t id = 0;
    while (fd_store_->Put(fd_store::KeyOf(fd_store::Kind::kBlock, ++id), fd.get(), FdOwner::kClient).ok()) {
      ASSERT_LT(id, 9000u);
    }
  }
  // Executes the supervisor's requests until there are none for a while and `done` holds.
  template <typename Done>
  bool ServeSupervisorUntil(Done done) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      absl::StatusOr<BrokerRequest> request = supervisor_->Read();
      fd_store_->Flush();
      if (!request.ok()) {
        if (done()) return true;
        std::this_thread::yield();
      } else if (auto* const put = std::get_if<PutRequest>(&*request)) {
        held_[put->key] = std::move(put->fd);
      } else if (auto* const drop = std::get_if<DropRequest>(&*request)) {
        held_.erase(drop->key);
        supervisor_->Queue(fd_store::KeyMessage{.kind = fd_store::MessageKind::kDropped, .key = drop->key});
        supervisor_->Flush(held_);
        server_->SupervisorDropped(drop->key);
        ++dropped_[drop->key];
      }
    }
    return false;
  }
  uint64_t InSupervisor(fd_store::Kind kind) const {
    uint64_t count = 0;
    for (const auto& [key, fd] : held_) count += key.kind == kind ? 1 : 0;
    return count;
  }
  std::vector<SessionId> Sessions() {
    return broker_->Read([](const core::Core& core) {
      std::vector<SessionId> ids;
      for (const core::SessionView& view : core.ListSessions({.admin = true})) ids.push_back(view.id);
      return ids;
    });
  }

  // Opens a session, and returns its lifeline with the contents of its session credentials.
  std::pair<UniqueFd, SessionCredentials> OpenSession() {
    UniqueFd lifeline = Connect();
    EXPECT_TRUE(SendStruct(lifeline.get(), attach::Hello{}).ok());
    UniqueFd credentials_fd;
    EXPECT_TRUE(Receive<attach::Welcome>(lifeline.get(), &credentials_fd).ok());
    return {std::move(lifeline), ReadSessionCredentials(credentials_fd.get()).value()};
  }
  // Makes the process behind `channel` take a permit and return it there. Returns the process's identity in the audit
  // log.
  nlohmann::json WhoGivesBack(const core::Caller& caller, int channel) {
    RecordedCall call;
    broker_->Submit(broker_->NewCall(), &call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Acquire(now, id, caller, {.sequence = 1}, {.pool = "gpu-tests", .holder_key = "a"}, effects);
                    });
    const absl::StatusOr<core::Response> taken = call.Await();
    EXPECT_TRUE(taken.ok()) << taken.status();
    if (!taken.ok()) return {};
    const AcquisitionId acquisition = std::get<core::AcquireResult>(*taken).acquisition;
    EXPECT_TRUE(SendStruct(channel, attach::GiveBack{.acquisition = acquisition.value()}).ok());
    EXPECT_TRUE(Receive<attach::GaveBack>(channel).ok());
    audit_->Flush(kPatience);
    nlohmann::json last;
    std::ifstream file(folder_ + "/audit.jsonl");
    for (std::string line; std::getline(file, line);) last = nlohmann::json::parse(line);
    EXPECT_EQ(last["what"], "release") << last;
    return last["who"];
  }

  std::map<fd_store::Key, int> dropped_;
  std::string folder_;
  std::unique_ptr<AuditLog> audit_;
  std::thread thread_;
};

TEST_F(AttachServerTest, SessionEndedWhileStoringLifelineLeavesNoLifeline) {
  FillTheSupervisorsSocket();
  const UniqueFd client = Connect();
  ASSERT_TRUE(SendStruct(client.get(), attach::Hello{}).ok());
  const absl::Time deadline = absl::Now() + kPatience;
  while (Sessions().empty() && absl::Now() < deadline) std::this_thread::yield();
  ASSERT_EQ(Sessions().size(), 1u);
  const SessionId session = Sessions()[0];
  // The lifeline waits for space in the supervisor's socket; an operator is faster.
  broker_->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.LifelineHungUp(now, session, effects);
  });
  const fd_store::Key key = fd_store::KeyOf(fd_store::Kind::kLifeline, session.value());
  EXPECT_TRUE(ServeSupervisorUntil([&] {
    if (dropped_[key] == 0) return false;
    pollfd entry = {.fd = client.get(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) == 1;
  }));
  EXPECT_FALSE(Receive<attach::Welcome>(client.get()).ok());
  EXPECT_TRUE(ServeSupervisorUntil([&] { return InSupervisor(fd_store::Kind::kLifeline) == 0; }));
  EXPECT_TRUE(Sessions().empty());
  // The next session is accepted.
  const UniqueFd next = Connect();
  ASSERT_TRUE(SendStruct(next.get(), attach::Hello{}).ok());
  EXPECT_TRUE(Receive<attach::Welcome>(next.get()).ok());
  EXPECT_TRUE(ServeSupervisorUntil([&] { return InSupervisor(fd_store::Kind::kLifeline) == 1; }));
}

TEST_F(AttachServerTest, WaitersReturnStaggeredInOrder) {
  const absl::Time begin = absl::UnixEpoch();
  const std::optional<absl::Time> waits_since[] = {begin + absl::Seconds(2), std::nullopt, begin,
                                                   begin + absl::Seconds(1)};
  std::vector<UniqueFd> processes;
  for (const std::optional<absl::Time>& since : waits_since) {
    auto sockets = SocketPair();
    ASSERT_TRUE(sockets.ok());
    processes.push_back(std::move(sockets->first));
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    ASSERT_TRUE(pidfd);
    const absl::Status adopted = server_->AdoptProcess(
        {.channel = ChannelId(processes.size()), .session = SessionId(1), .waits_since = since}, std::move(pidfd),
        std::move(sockets->second));
    ASSERT_TRUE(adopted.ok()) << adopted;
  }
  server_->NotifyResumed();
  std::vector<uint32_t> return_after;
  for (const UniqueFd& process : processes) {
    attach::Resumed resumed;
    ASSERT_TRUE(Receive(process.get(), nullptr, &resumed).ok());
    EXPECT_EQ(resumed.kind, attach::Kind::kResumed);
    return_after.push_back(resumed.return_after);
  }
  EXPECT_EQ(return_after, (std::vector<uint32_t>{2, 0, 0, 1}));
}

TEST_F(AttachServerTest, ReturnAfterBrokerRestartBelongsToItsTenant) {
  const core::Tenant tenant = {.uid = 1000, .container = "/of-its-own"};
  SessionId session;
  ChannelId channel;
  broker_->Step([&](core::Core& core, absl::Time now, core::Effects*) {
    session = core.OpenSession(now, {}, tenant, "test", {}).value();
    channel = core.JoinSession(now, session, {}, tenant, {}).value();
  });
  auto sockets = SocketPair();
  ASSERT_TRUE(sockets.ok());
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  const absl::Status adopted = server_->AdoptProcess({.channel = channel, .session = session, .tenant = tenant},
                                                     std::move(pidfd), std::move(sockets->second));
  ASSERT_TRUE(adopted.ok()) << adopted;
  const nlohmann::json who = WhoGivesBack(
      {.credentials = {.session = session, .channel = channel}, .tenant = tenant}, sockets->first.get());
  EXPECT_EQ(who["container"], "/of-its-own") << who;
  EXPECT_EQ(who["role"], "tenant") << who;
}

TEST_F(AttachServerTest, OperatorsReturnAfterBrokerRestartIsOperators) {
  const AbstractAddress address("attach-server-test-operators");
  const UniqueFd listener = ListenAt(address);
  server_->RecognizeOperatorsBy(listener.get());
  const UniqueFd process = ConnectTo(address);
  UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  ASSERT_TRUE(accepted);
  SessionId session;
  ChannelId channel;
  broker_->Step([&](core::Core& core, absl::Time now, core::Effects*) {
    session = core.OpenSession(now, {}, {}, "test", {}).value();
    channel = core.JoinSession(now, session, {}, {}, {}).value();
  });
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  const absl::Status adopted =
      server_->AdoptProcess({.channel = channel, .session = session}, std::move(pidfd), std::move(accepted));
  ASSERT_TRUE(adopted.ok()) << adopted;
  const nlohmann::json who =
      WhoGivesBack({.credentials = {.session = session, .channel = channel}}, process.get());
  EXPECT_EQ(who["role"], "admin") << who;
}

TEST_F(AttachServerTest, ClosedChannelEndsDetachedSessionWithoutHolders) {
  SessionId session;
  ChannelId channel;
  broker_->Step([&](core::Core& core, absl::Time now, core::Effects*) {
    session = core.OpenSession(now, {}, {}, "test", {}).value();
    channel = core.JoinSession(now, session, {}, {}, {}).value();
  });
  UniqueFd credentials_fd = WriteSessionCredentials({.session = session, .folder = "/run/berth"}).value();
  auto control = SocketPair();
  ASSERT_TRUE(control.ok());
  // The search for holders excludes the broker's process, which is this test's.
  const pid_t holder = ::fork();
  if (holder == 0) {
    char byte;
    if (::read(control->second.get(), &byte, 1) != 1) ::_exit(1);
    ::close(credentials_fd.get());
    if (::write(control->second.get(), "x", 1) != 1) ::_exit(1);
    ::_exit(::pause());
  }
  const absl::Cleanup end = [holder] {
    ::kill(holder, SIGKILL);
    ::waitpid(holder, nullptr, 0);
  };
  // The process has reconnected its channel. An earlier broker ended with the lifeline.
  auto sockets = SocketPair();
  ASSERT_TRUE(sockets.ok());
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  const absl::Status adopted =
      server_->AdoptProcess({.channel = channel, .session = session}, std::move(pidfd), std::move(sockets->second));
  ASSERT_TRUE(adopted.ok()) << adopted;
  server_->AdoptDetached({.session = session, .session_credentials = InodeOf(credentials_fd.get()).value()},
                         /*seen=*/true);
  ASSERT_TRUE(Becomes([holder] { return HasPidfdOf(holder); })) << "the holder is found";
  // The process closes the session, and lives on.
  char byte;
  ASSERT_EQ(::write(control->first.get(), "x", 1), 1);
  ASSERT_EQ(::read(control->first.get(), &byte, 1), 1);
  EXPECT_EQ(Sessions().size(), 1u);
  sockets->first.reset();
  EXPECT_TRUE(Becomes([this] { return Sessions().empty(); }));
}

class OperatorsServerTest : public AttachServerTest {
 protected:
  OperatorsServerTest() : AttachServerTest(/*fd_store_limit=*/10'000, /*of_operators=*/true) {}
};

TEST_F(OperatorsServerTest, OperatorsReturnIsOperators) {
  const auto [lifeline, session_credentials] = OpenSession();
  const UniqueFd socket = Connect();
  ASSERT_TRUE(SendStruct(socket.get(), attach::Join{.session = session_credentials.session.value(),
                                                    .secret = session_credentials.secret})
                  .ok());
  attach::Joined joined;
  ASSERT_TRUE(Receive(socket.get(), nullptr, &joined).ok());
  core::Caller caller;
  caller.credentials = {.session = session_credentials.session,
                        .channel = ChannelId(joined.channel),
                        .secret = session_credentials.secret};
  caller.tenant = broker_->Read([&session = session_credentials.session](const core::Core& core) {
    return core.GetSession({.admin = true}, session)->tenant;
  });
  const nlohmann::json who = WhoGivesBack(caller, socket.get());
  EXPECT_EQ(who["role"], "admin") << who;
}

// Capacity for a lifeline, two channels, and one process.
class TightAttachServerTest : public AttachServerTest {
 protected:
  TightAttachServerTest() : AttachServerTest(/*fd_store_limit=*/4) {}
};

TEST_F(TightAttachServerTest, UnopenedChannelReplacesNoEarlierChannel) {
  const auto [lifeline, session_credentials] = OpenSession();
  const attach::Join join = {.session = session_credentials.session.value(), .secret = session_credentials.secret};
  UniqueFd first = Connect();
  ASSERT_TRUE(SendStruct(first.get(), join).ok());
  ASSERT_TRUE(Receive<attach::Joined>(first.get()).ok());
  first.reset();
  // The process lives; the supervisor has dropped its channel, which the broker does not know yet.
  ASSERT_TRUE(ServeSupervisorUntil([&] { return dropped_.size() == 1; }));
  const auto processes = [&] {
    return broker_->Read([&session = join.session](const core::Core& core) {
      return core.GetSession({.admin = true}, SessionId(session))->processes.size();
    });
  };
  const UniqueFd second = Connect();
  ASSERT_TRUE(SendStruct(second.get(), join).ok());
  const absl::Status refused = Receive<attach::Joined>(second.get());
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit)) << refused;
  EXPECT_TRUE(ServeSupervisorUntil([&] { return dropped_.size() == 3; }));
  EXPECT_EQ(processes(), 1u) << "the process may hold what the earlier channel stands for";
  // Once the broker knows, there is capacity again, and the new channel takes the old one's place.
  while (fd_store_->ReadNotice().ok()) continue;
  const UniqueFd third = Connect();
  ASSERT_TRUE(SendStruct(third.get(), join).ok());
  EXPECT_TRUE(Receive<attach::Joined>(third.get()).ok());
  EXPECT_EQ(processes(), 1u);
}

}  // namespace
}  // namespace berth::service
