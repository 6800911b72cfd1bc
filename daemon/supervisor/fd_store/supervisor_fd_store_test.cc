// Both ends of the fd store protocol over a real socket: SupervisorFdStore, the broker's end, and BrokerLink, the
// supervisor's.

#include "daemon/supervisor/fd_store/supervisor_fd_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include <berth/error.h>

#include "common/os/fd_passing.h"
#include "daemon/supervisor/broker_link.h"

namespace berth {
namespace {

using fd_store::Key;
using fd_store::KeyMessage;
using fd_store::KeyOf;
using fd_store::Kind;
using fd_store::MessageKind;

UniqueFd AnyFd() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

class SupervisorFdStoreTest : public ::testing::Test {
 protected:
  SupervisorFdStoreTest() {
    auto sockets = SocketPair();
    EXPECT_TRUE(SetNonBlocking(sockets->first.get()).ok());
    link_.emplace(std::move(sockets->first));
    broker_ = std::move(sockets->second);
    held_[KeyOf(fd_store::Listener::kAttach)] = AnyFd();
    held_[KeyOf(Kind::kBlock, 41)] = AnyFd();
  }

  void Give(uint64_t limit = 100) {
    link_->Queue(
        fd_store::Facts{.device_count = 2, .node = 3, .incarnation = 4, .epoch = 5, .fd_store_limit = limit});
    link_->QueueGiveAll(held_);
    link_->Queue(fd_store::Signal{.kind = MessageKind::kGiveEnd});
    link_->Flush(held_);
  }

  // Returns a broker's end that has read everything that the supervisor gives at the start.
  SupervisorFdStore& Start(uint64_t limit = 100) {
    Give(limit);
    absl::StatusOr<Inheritance> inherited = SupervisorFdStore::Receive(std::move(broker_));
    EXPECT_TRUE(inherited.ok()) << inherited.status();
    fd_store_ = std::move(inherited->fd_store);
    return *fd_store_;
  }

  template <typename T>
  void Send(const T& message) {
    link_->Queue(message);
    link_->Flush(held_);
  }

  std::optional<BrokerLink> link_;
  UniqueFd broker_;
  HeldFds held_;
  std::unique_ptr<SupervisorFdStore> fd_store_;
};

TEST_F(SupervisorFdStoreTest, BrokerReceivesFactsAndHeldFds) {
  Give();
  absl::StatusOr<Inheritance> inherited = SupervisorFdStore::Receive(std::move(broker_));
  ASSERT_TRUE(inherited.ok()) << inherited.status();
  EXPECT_EQ(inherited->facts.device_count, 2u);
  EXPECT_EQ(inherited->facts.node, 3u);
  EXPECT_EQ(inherited->facts.incarnation, 4u);
  EXPECT_EQ(inherited->facts.epoch, 5u);
  ASSERT_EQ(inherited->held.size(), 2);
  EXPECT_EQ(inherited->held[0].key, KeyOf(fd_store::Listener::kAttach));
  EXPECT_EQ(inherited->held[1].key, KeyOf(Kind::kBlock, 41));
  EXPECT_TRUE(inherited->held[1].fd);
}

TEST_F(SupervisorFdStoreTest, FullSocketDeliversAllFdsEventually) {
  for (uint64_t id = 1; id <= 2000; ++id) held_[KeyOf(Kind::kBlock, id)] = AnyFd();
  const int little = 4096;
  ASSERT_EQ(::setsockopt(link_->fd(), SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)), 0);
  Give();
  ASSERT_TRUE(link_->wants_write());
  std::thread supervisor([this] {
    while (link_->wants_write()) {
      pollfd entry = {.fd = link_->fd(), .events = POLLOUT, .revents = 0};
      ::poll(&entry, 1, 20'000);
      link_->Flush(held_);
    }
  });
  const absl::StatusOr<Inheritance> inherited = SupervisorFdStore::Receive(std::move(broker_));
  supervisor.join();
  ASSERT_TRUE(inherited.ok()) << inherited.status();
  EXPECT_EQ(inherited->held.size(), 2001);
}

TEST_F(SupervisorFdStoreTest, ClosedOrInvalidSupervisorIsAnError) {
  link_->Queue(fd_store::Signal{.kind = MessageKind::kGiveEnd});
  link_->Flush(held_);
  EXPECT_TRUE(absl::IsInternal(SupervisorFdStore::Receive(std::move(broker_)).status()));

  auto sockets = SocketPair();
  EXPECT_TRUE(SendStruct(sockets->first.get(), fd_store::Facts{}).ok());
  sockets->first.reset();
  EXPECT_TRUE(absl::IsUnavailable(SupervisorFdStore::Receive(std::move(sockets->second)).status()));
}

TEST_F(SupervisorFdStoreTest, BrokerRequestsReachSupervisorInOrder) {
  SupervisorFdStore& fd_store = Start();
  const UniqueFd fd = AnyFd();
  ASSERT_TRUE(fd_store.Put(KeyOf(Kind::kLifeline, 7), fd.get(), FdOwner::kClient).ok());
  fd_store.Drop(KeyOf(Kind::kLifeline, 7));
  ASSERT_TRUE(fd_store.Ready().ok());
  absl::StatusOr<BrokerRequest> put = link_->Read();
  ASSERT_TRUE(put.ok());
  EXPECT_EQ(std::get<PutRequest>(*put).key, KeyOf(Kind::kLifeline, 7));
  EXPECT_TRUE(std::get<PutRequest>(*put).fd);
  EXPECT_EQ(std::get<DropRequest>(*link_->Read()).key, KeyOf(Kind::kLifeline, 7));
  EXPECT_TRUE(std::holds_alternative<ReadySignal>(*link_->Read()));
  EXPECT_TRUE(IsWouldBlock(link_->Read().status()));
}

TEST_F(SupervisorFdStoreTest, PutsBeforeBrokersDeathAreRead) {
  SupervisorFdStore& fd_store = Start();
  const UniqueFd fd = AnyFd();
  Send(fd_store::Signal{.kind = MessageKind::kStop});
  ASSERT_TRUE(fd_store.Put(KeyOf(Kind::kBlock, 1), fd.get(), FdOwner::kClient).ok());
  ASSERT_TRUE(fd_store.Put(KeyOf(Kind::kBlock, 2), fd.get(), FdOwner::kClient).ok());
  fd_store_.reset();
  EXPECT_EQ(std::get<PutRequest>(*link_->Read()).key, KeyOf(Kind::kBlock, 1));
  EXPECT_EQ(std::get<PutRequest>(*link_->Read()).key, KeyOf(Kind::kBlock, 2));
  EXPECT_TRUE(IsEndOfStream(link_->Read().status()));
  EXPECT_TRUE(link_->ended());
}

TEST_F(SupervisorFdStoreTest, KeyIsHeldUntilSupervisorReportsDrop) {
  SupervisorFdStore& fd_store = Start();
  const UniqueFd fd = AnyFd();
  EXPECT_TRUE(absl::IsAlreadyExists(fd_store.Put(KeyOf(Kind::kBlock, 41), fd.get(), FdOwner::kClient)));
  fd_store.Drop(KeyOf(Kind::kBlock, 41));
  EXPECT_TRUE(absl::IsAlreadyExists(fd_store.Put(KeyOf(Kind::kBlock, 41), fd.get(), FdOwner::kClient)));
  Send(KeyMessage{.kind = MessageKind::kDropped, .key = KeyOf(Kind::kBlock, 41)});
  EXPECT_EQ(std::get<DroppedFd>(*fd_store.ReadNotice()).key, KeyOf(Kind::kBlock, 41));
  EXPECT_TRUE(fd_store.Put(KeyOf(Kind::kBlock, 41), fd.get(), FdOwner::kClient).ok());
}

// A key may be dropped several times, held or not, before a new fd gets it. None of these drops may end the new fd.
TEST_F(SupervisorFdStoreTest, EarlierDropsLeaveNewFdHeld) {
  SupervisorFdStore& fd_store = Start();
  const UniqueFd fd = AnyFd();
  const auto put = [&](Key key) { return fd_store.Put(key, fd.get(), FdOwner::kClient); };
  uint64_t id = 0;
  for (const bool held : {true, false}) {
    for (const int drops : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << drops << " drops, held: " << held);
      const Key key = KeyOf(Kind::kLifeline, ++id);
      if (held) ASSERT_TRUE(put(key).ok());
      for (int i = 0; i < drops; ++i) fd_store.Drop(key);
      EXPECT_TRUE(absl::IsAlreadyExists(put(key))) << "a drop may reach the supervisor later";
      // The supervisor confirms each drop that it reads.
      for (absl::StatusOr<BrokerRequest> request = link_->Read(); request.ok(); request = link_->Read()) {
        const auto* const drop = std::get_if<DropRequest>(&*request);
        if (drop != nullptr) Send(KeyMessage{.kind = MessageKind::kDropped, .key = drop->key});
      }
      EXPECT_EQ(std::get<DroppedFd>(*fd_store.ReadNotice()).key, key);
      ASSERT_TRUE(put(key).ok());
      EXPECT_TRUE(IsWouldBlock(fd_store.ReadNotice().status())) << "a confirmation of an earlier drop follows";
      EXPECT_TRUE(absl::IsAlreadyExists(put(key))) << "the new fd is forgotten";
    }
  }
}

TEST_F(SupervisorFdStoreTest, LimitIsExactAndFreedPlacesAreReusable) {
  SupervisorFdStore& fd_store = Start(/*limit=*/3);
  const UniqueFd fd = AnyFd();
  ASSERT_TRUE(fd_store.Put(KeyOf(Kind::kBlock, 1), fd.get(), FdOwner::kClient).ok());
  const absl::Status refused = fd_store.Put(KeyOf(Kind::kBlock, 2), fd.get(), FdOwner::kClient);
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit));
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("limit"), "3");
  Send(KeyMessage{.kind = MessageKind::kDropped, .key = KeyOf(Kind::kBlock, 1)});
  ASSERT_TRUE(fd_store.ReadNotice().ok());
  EXPECT_TRUE(fd_store.Put(KeyOf(Kind::kBlock, 2), fd.get(), FdOwner::kClient).ok());
}

TEST_F(SupervisorFdStoreTest, ClientsCannotFillOperatorsShare) {
  SupervisorFdStore& fd_store = Start(/*limit=*/40);
  const UniqueFd fd = AnyFd();
  // Returns the number of puts of that owner until a put is refused at that limit.
  uint64_t id = 0;
  const auto fill = [&](FdOwner owner, const std::string& limit) {
    absl::Status put;
    uint64_t count = 0;
    while ((put = fd_store.Put(KeyOf(Kind::kBlock, ++id), fd.get(), owner)).ok()) ++count;
    EXPECT_TRUE(IsRefusal(put, Reason::kLimit)) << put;
    EXPECT_EQ(GetErrorDetails(put)->metadata.at("limit"), limit);
    return count;
  };
  EXPECT_GT(fill(FdOwner::kClient, "35"), 30u);
  EXPECT_EQ(fill(FdOwner::kOperator, "40"), 5u);
}

TEST_F(SupervisorFdStoreTest, FdBeyondOwnersShareIsRejected) {
  SupervisorFdStore& fd_store = Start(/*limit=*/100);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit tight = {.rlim_cur = 400, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const UniqueFd fd = AnyFd();
  struct Case {
    int number;
    FdOwner owner;
    bool taken;
  };
  const Case cases[] = {{199, FdOwner::kClient, true},   {200, FdOwner::kClient, false},
                        {299, FdOwner::kOperator, true}, {300, FdOwner::kOperator, false},
                        {399, FdOwner::kDaemon, true}};
  uint64_t id = 0;
  for (const Case& one : cases) {
    const UniqueFd numbered(::fcntl(fd.get(), F_DUPFD_CLOEXEC, one.number));
    ASSERT_EQ(numbered.get(), one.number);
    const absl::Status put = fd_store.Put(KeyOf(Kind::kBlock, ++id), numbered.get(), one.owner);
    EXPECT_EQ(put.ok(), one.taken) << one.number << ": " << put;
    EXPECT_TRUE(put.ok() || IsRefusal(put, Reason::kLimit)) << put;
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(SupervisorFdStoreTest, PutWaitsForSocketSpace) {
  SupervisorFdStore& fd_store = Start(/*limit=*/10'000);
  std::thread supervisor([this] {
    for (uint64_t id = 0; id < 1000; ++id) {
      pollfd entry = {.fd = link_->fd(), .events = POLLIN, .revents = 0};
      ::poll(&entry, 1, 20'000);
      EXPECT_EQ(std::get<PutRequest>(*link_->Read()).key, KeyOf(Kind::kChannel, id));
    }
  });
  const UniqueFd fd = AnyFd();
  for (uint64_t id = 0; id < 1000; ++id) {
    EXPECT_TRUE(fd_store.Put(KeyOf(Kind::kChannel, id), fd.get(), FdOwner::kClient).ok()) << id;
  }
  supervisor.join();
}

TEST_F(SupervisorFdStoreTest, PutTimesOutWithoutSocketSpace) {
  SupervisorFdStore& fd_store = Start(/*limit=*/10'000);
  const UniqueFd fd = AnyFd();
  absl::Status put;
  uint64_t id = 0;
  while ((put = fd_store.Put(KeyOf(Kind::kChannel, ++id), fd.get(), FdOwner::kClient)).ok()) ASSERT_LT(id, 9000u);
  EXPECT_TRUE(absl::IsUnavailable(put)) << put;
  // Exactly the successful puts arrived.
  for (uint64_t read = 1; read < id; ++read) {
    ASSERT_EQ(std::get<PutRequest>(*link_->Read()).key, KeyOf(Kind::kChannel, read));
  }
  EXPECT_TRUE(IsWouldBlock(link_->Read().status()));
  EXPECT_TRUE(fd_store.Put(KeyOf(Kind::kChannel, id), fd.get(), FdOwner::kClient).ok());
}

TEST_F(SupervisorFdStoreTest, DropsNeverWaitAndAreSentInOrder) {
  // More drops than the socket takes while the supervisor reads nothing.
  constexpr uint64_t kDrops = 20'000;
  SupervisorFdStore& fd_store = Start(/*limit=*/10);
  for (uint64_t id = 1; id <= kDrops; ++id) fd_store.Drop(KeyOf(Kind::kBlock, id));
  uint64_t read = 0;
  uint64_t flushes = 0;
  while (read < kDrops) {
    absl::StatusOr<BrokerRequest> request = link_->Read();
    if (request.ok()) {
      ASSERT_EQ(std::get<DropRequest>(*request).key, KeyOf(Kind::kBlock, ++read));
    } else {
      ASSERT_TRUE(IsWouldBlock(request.status())) << request.status();
      ASSERT_LT(++flushes, kDrops);
      fd_store.Flush();
    }
  }
  EXPECT_GT(flushes, 0u);
  fd_store.Flush();
  EXPECT_TRUE(IsWouldBlock(link_->Read().status()));
}

TEST_F(SupervisorFdStoreTest, ClosedSupervisorIsUnavailableAtOnce) {
  SupervisorFdStore& fd_store = Start();
  const UniqueFd fd = AnyFd();
  link_.reset();
  // A put that waited would fail with "stayed busy".
  EXPECT_EQ(fd_store.Put(KeyOf(Kind::kBlock, 1), fd.get(), FdOwner::kClient),
            absl::UnavailableError("the supervisor is gone"));
  fd_store.Drop(KeyOf(Kind::kBlock, 1));
  EXPECT_EQ(fd_store.Ready(), absl::UnavailableError("the supervisor is gone"));
  EXPECT_TRUE(IsEndOfStream(fd_store.ReadNotice().status()));
}

// A supervisor that ends before it has read a report must not leave the next one waiting for it.
TEST_F(SupervisorFdStoreTest, NextSupervisorGetsUnreadReports) {
  SupervisorFdStore& fd_store = Start();
  UniqueFd next;
  fd_store.SetReplacement({.start = [&]() -> absl::StatusOr<UniqueFd> {
                             auto sockets = SocketPair();
                             next = std::move(sockets->first);
                             const absl::Status asked =
                                 SendStruct(next.get(), fd_store::Signal{.kind = MessageKind::kHandOver});
                             if (!asked.ok()) return asked;
                             return std::move(sockets->second);
                           },
                           .on_replaced = [] {}});
  ASSERT_TRUE(fd_store.Bound(1 << 20).ok());
  ASSERT_TRUE(fd_store.Ready().ok());
  link_.reset();
  ASSERT_TRUE(fd_store.Succeed().ok());
  bool ready = false;
  std::optional<uint64_t> bound;
  ASSERT_TRUE(SetNonBlocking(next.get()).ok());
  for (absl::StatusOr<Message> message = ReceiveMessage(next.get()); message.ok();
       message = ReceiveMessage(next.get())) {
    ready = ready || AsStruct<fd_store::Signal>(*message, MessageKind::kReady, 0).has_value();
    if (const auto report = AsStruct<fd_store::BoundMessage>(*message, MessageKind::kBound, 0); report.has_value())
      bound = report->bytes;
  }
  EXPECT_TRUE(ready);
  EXPECT_EQ(bound, 1u << 20);
}

TEST_F(SupervisorFdStoreTest, WorkerChangesReachBroker) {
  held_[KeyOf(Kind::kWorker, 1)] = AnyFd();
  SupervisorFdStore& fd_store = Start();
  fd_store::WorkerStatus status = {
      .device = 1, .state = fd_store::WorkerState::kGone, .restarts_left = 2, .generation = 7};
  fd_store::SetReason(std::string(300, 'x'), status.last_failure);
  Send(status);
  link_->QueueGive(KeyOf(Kind::kWorker, 1));
  Send(fd_store::WorkerStatus{.device = 1, .state = fd_store::WorkerState::kStopped, .dropped = 1});
  const auto down = std::get<WorkerNews>(*fd_store.ReadNotice());
  EXPECT_EQ(down.device, 1u);
  EXPECT_EQ(down.state, fd_store::WorkerState::kGone);
  EXPECT_EQ(down.restarts_left, 2u);
  EXPECT_EQ(down.generation, 7u);
  EXPECT_FALSE(down.dropped);
  EXPECT_EQ(down.last_failure, std::string(fd_store::kReasonBytes - 1, 'x')) << "cut where it is too long";
  const Notice up = *fd_store.ReadNotice();
  EXPECT_EQ(std::get<WorkerUp>(up).device, 1u);
  EXPECT_TRUE(std::get<WorkerUp>(up).socket);
  const auto stopped = std::get<WorkerNews>(*fd_store.ReadNotice());
  EXPECT_EQ(stopped.state, fd_store::WorkerState::kStopped);
  EXPECT_TRUE(stopped.dropped);
  EXPECT_EQ(stopped.last_failure, "");
  EXPECT_TRUE(IsWouldBlock(fd_store.ReadNotice().status()));
}

TEST_F(SupervisorFdStoreTest, ContextWorkerDiffersFromMainWorker) {
  held_[KeyOf(Kind::kContextWorker, 1)] = AnyFd();
  SupervisorFdStore& fd_store = Start();
  Send(fd_store::WorkerStatus{
      .device = 1, .state = fd_store::WorkerState::kIdle, .generation = 4, .worker_kind = WorkerKind::kContext});
  link_->QueueGive(KeyOf(Kind::kContextWorker, 1));
  link_->Flush(held_);
  const auto idle = std::get<WorkerNews>(*fd_store.ReadNotice());
  EXPECT_EQ(idle.worker_kind, WorkerKind::kContext);
  EXPECT_EQ(idle.state, fd_store::WorkerState::kIdle);
  EXPECT_EQ(idle.generation, 4u);
  const auto up = std::get<WorkerUp>(*fd_store.ReadNotice());
  EXPECT_EQ(up.device, 1u);
  EXPECT_EQ(up.worker_kind, WorkerKind::kContext);
}

TEST_F(SupervisorFdStoreTest, CommandReachesSupervisorWithReason) {
  SupervisorFdStore& fd_store = Start();
  fd_store.SendCommand(3, WorkerKind::kContext, WorkerCommand::kKill, "pulled");
  const auto command = std::get<CommandRequest>(*link_->Read());
  EXPECT_EQ(command.device, 3u);
  EXPECT_EQ(command.worker_kind, WorkerKind::kContext);
  EXPECT_EQ(command.command, WorkerCommand::kKill);
  EXPECT_EQ(command.why, "pulled");
  const auto none = static_cast<uint32_t>(WorkerCommand::kStop) + 1;
  fd_store.SendCommand(3, WorkerKind::kMain, static_cast<WorkerCommand>(none), "");
  EXPECT_TRUE(absl::IsInternal(link_->Read().status())) << "no order of that kind";
}

TEST_F(SupervisorFdStoreTest, StopSignalIsReadAsNotice) {
  SupervisorFdStore& fd_store = Start();
  Send(fd_store::Signal{.kind = MessageKind::kStop});
  EXPECT_TRUE(std::holds_alternative<StopRequested>(*fd_store.ReadNotice()));
}

TEST_F(SupervisorFdStoreTest, ExecutedProgramIsEnded) {
  SupervisorFdStore& fd_store = Start();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::pause();
    ::_exit(0);
  }
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  ASSERT_TRUE(process);
  const auto announce = [&] {
    link_->Queue(fd_store::Signal{.kind = MessageKind::kExec}, *DuplicateFd(process.get()));
    link_->Flush(held_);
    EXPECT_TRUE(std::get<ExecAnnounced>(*fd_store.ReadNotice()).process);
  };
  const auto is_gone = [&] {
    pollfd entry = {.fd = process.get(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) == 1;
  };
  // After a failed exec the supervisor continues.
  announce();
  fd_store::ExecFailedMessage failed;
  fd_store::SetReason("no such file", failed.why);
  Send(failed);
  EXPECT_EQ(std::get<ExecFailed>(*fd_store.ReadNotice()).why, "no such file");
  EXPECT_FALSE(fd_store.EndExecuted());
  EXPECT_FALSE(is_gone());
  EXPECT_TRUE(IsWouldBlock(fd_store.ReadNotice().status()));
  announce();
  EXPECT_FALSE(fd_store.EndExecuted());
  EXPECT_TRUE(is_gone());
  // This process has the other end, as a child of the program may have.
  EXPECT_TRUE(IsEndOfStream(fd_store.ReadNotice().status()));
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

// The program inherits the supervisor's mask, and does not read the signal.
TEST_F(SupervisorFdStoreTest, PendingStopOfExecutedProgramIsReported) {
  SupervisorFdStore& fd_store = Start();
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) ::pause();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSERT_GE(child, 0);
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  link_->Queue(fd_store::Signal{.kind = MessageKind::kExec}, *DuplicateFd(process.get()));
  link_->Flush(held_);
  EXPECT_TRUE(std::get<ExecAnnounced>(*fd_store.ReadNotice()).process);
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  EXPECT_TRUE(fd_store.EndExecuted());
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(SupervisorFdStoreTest, UnknownNoticeIsAnError) {
  SupervisorFdStore& fd_store = Start();
  Send(fd_store::Signal{.kind = MessageKind::kReady});
  EXPECT_TRUE(absl::IsInternal(fd_store.ReadNotice().status()));
}

TEST_F(SupervisorFdStoreTest, FdDroppedBeforeSendingIsSkipped) {
  link_->QueueGive(KeyOf(Kind::kBlock, 99));
  link_->Queue(fd_store::Signal{.kind = MessageKind::kStop});
  link_->Flush(held_);
  EXPECT_EQ(ReceiveMessage(broker_.get())->bytes.size(), sizeof(fd_store::Signal));
}

TEST_F(SupervisorFdStoreTest, BrokerCannotPutOrDropSupervisorsFds) {
  const int fd = STDERR_FILENO;
  for (const Key key : {KeyOf(fd_store::Listener::kAdmin), KeyOf(Kind::kStatePage), KeyOf(Kind::kDeviceTable),
                        KeyOf(Kind::kWorker, 0), KeyOf(Kind::kContextWorker, 0), KeyOf(static_cast<Kind>(0)),
                        KeyOf(static_cast<Kind>(77))}) {
    ASSERT_TRUE(
        SendStruct(broker_.get(), KeyMessage{.kind = MessageKind::kPut, .key = key}, std::span(&fd, 1)).ok());
    EXPECT_TRUE(absl::IsInternal(link_->Read().status()));
    ASSERT_TRUE(SendStruct(broker_.get(), KeyMessage{.kind = MessageKind::kDrop, .key = key}).ok());
    EXPECT_TRUE(absl::IsInternal(link_->Read().status()));
  }
}

TEST_F(SupervisorFdStoreTest, MisshapenMessageIsAnErrorToSupervisor) {
  const int fd = STDERR_FILENO;
  const KeyMessage put = {.kind = MessageKind::kPut, .key = KeyOf(Kind::kBlock, 1)};
  const KeyMessage drop = {.kind = MessageKind::kDrop, .key = KeyOf(Kind::kBlock, 1)};
  ASSERT_TRUE(SendStruct(broker_.get(), put).ok());
  EXPECT_TRUE(absl::IsInternal(link_->Read().status())) << "a put without its fd";
  ASSERT_TRUE(SendStruct(broker_.get(), drop, std::span(&fd, 1)).ok());
  EXPECT_TRUE(absl::IsInternal(link_->Read().status())) << "a drop with an fd";
  ASSERT_TRUE(SendStruct(broker_.get(), fd_store::Facts{}).ok());
  EXPECT_TRUE(absl::IsInternal(link_->Read().status())) << "another size";
  ASSERT_TRUE(SendStruct(broker_.get(), fd_store::Signal{.kind = MessageKind::kStop}).ok());
  EXPECT_TRUE(absl::IsInternal(link_->Read().status())) << "another kind";
  EXPECT_TRUE(link_->ended());
}

}  // namespace
}  // namespace berth
