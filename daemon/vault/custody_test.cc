// Both ends of the custody protocol over a real socket: Custody, the broker's, and BrokerLink, the vault's.

#include "daemon/vault/custody.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "common/error.h"
#include "common/fd_passing.h"
#include "daemon/vault/broker_link.h"

namespace berth {
namespace {

using custody::Key;
using custody::KeyMessage;
using custody::KeyOf;
using custody::Kind;
using custody::MessageKind;

UniqueFd AnyFd() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

class CustodyTest : public ::testing::Test {
 protected:
  CustodyTest() {
    auto sockets = SocketPair();
    EXPECT_TRUE(SetNonBlocking(sockets->first.get()).ok());
    link_.emplace(std::move(sockets->first));
    broker_ = std::move(sockets->second);
    held_[KeyOf(custody::Listener::kAttach)] = AnyFd();
    held_[KeyOf(Kind::kBlock, 41)] = AnyFd();
  }

  void Give(uint64_t limit = 100) {
    link_->Queue(
        custody::Facts{.device_count = 2, .node = 3, .incarnation = 4, .epoch = 5, .custody_limit = limit});
    link_->QueueGiveAll(held_);
    link_->Queue(custody::Signal{.kind = MessageKind::kGiveEnd});
    link_->Flush(held_);
  }

  // A broker that has read all that the vault gives at the start.
  Custody& Start(uint64_t limit = 100) {
    Give(limit);
    absl::StatusOr<Inheritance> inherited = Custody::Receive(std::move(broker_));
    EXPECT_TRUE(inherited.ok()) << inherited.status();
    custody_ = std::move(inherited->custody);
    return *custody_;
  }

  template <typename T>
  void Tell(const T& message) {
    link_->Queue(message);
    link_->Flush(held_);
  }

  std::optional<BrokerLink> link_;
  UniqueFd broker_;
  HeldFds held_;
  std::unique_ptr<Custody> custody_;
};

TEST_F(CustodyTest, ABrokerReceivesTheFactsAndEverythingHeld) {
  Give();
  absl::StatusOr<Inheritance> inherited = Custody::Receive(std::move(broker_));
  ASSERT_TRUE(inherited.ok()) << inherited.status();
  EXPECT_EQ(inherited->facts.device_count, 2u);
  EXPECT_EQ(inherited->facts.node, 3u);
  EXPECT_EQ(inherited->facts.incarnation, 4u);
  EXPECT_EQ(inherited->facts.epoch, 5u);
  ASSERT_EQ(inherited->held.size(), 2);
  EXPECT_EQ(inherited->held[0].key, KeyOf(custody::Listener::kAttach));
  EXPECT_EQ(inherited->held[1].key, KeyOf(Kind::kBlock, 41));
  EXPECT_TRUE(inherited->held[1].fd);
}

TEST_F(CustodyTest, MoreIsGivenThanTheSocketTakesAtOnce) {
  for (uint64_t id = 1; id <= 2000; ++id) held_[KeyOf(Kind::kBlock, id)] = AnyFd();
  const int little = 4096;
  ASSERT_EQ(::setsockopt(link_->fd(), SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)), 0);
  Give();
  ASSERT_TRUE(link_->wants_write());
  std::thread vault([this] {
    while (link_->wants_write()) {
      pollfd entry = {.fd = link_->fd(), .events = POLLOUT, .revents = 0};
      ::poll(&entry, 1, 20'000);
      link_->Flush(held_);
    }
  });
  const absl::StatusOr<Inheritance> inherited = Custody::Receive(std::move(broker_));
  vault.join();
  ASSERT_TRUE(inherited.ok()) << inherited.status();
  EXPECT_EQ(inherited->held.size(), 2001);
}

TEST_F(CustodyTest, AVaultThatIsGoneOrTalksNonsenseIsAnError) {
  link_->Queue(custody::Signal{.kind = MessageKind::kGiveEnd});
  link_->Flush(held_);
  EXPECT_TRUE(absl::IsInternal(Custody::Receive(std::move(broker_)).status()));

  auto sockets = SocketPair();
  EXPECT_TRUE(SendStruct(sockets->first.get(), custody::Facts{}).ok());
  sockets->first.reset();
  EXPECT_TRUE(absl::IsUnavailable(Custody::Receive(std::move(sockets->second)).status()));
}

TEST_F(CustodyTest, WhatTheBrokerPutsDropsAndSaysReachesTheVaultInOrder) {
  Custody& custody = Start();
  const UniqueFd fd = AnyFd();
  ASSERT_TRUE(custody.Put(KeyOf(Kind::kLifeline, 7), fd.get(), FdOwner::kClient).ok());
  custody.Drop(KeyOf(Kind::kLifeline, 7));
  ASSERT_TRUE(custody.Ready().ok());
  absl::StatusOr<BrokerRequest> put = link_->Read();
  ASSERT_TRUE(put.ok());
  EXPECT_EQ(std::get<PutRequest>(*put).key, KeyOf(Kind::kLifeline, 7));
  EXPECT_TRUE(std::get<PutRequest>(*put).fd);
  EXPECT_EQ(std::get<DropRequest>(*link_->Read()).key, KeyOf(Kind::kLifeline, 7));
  EXPECT_TRUE(std::holds_alternative<ReadySignal>(*link_->Read()));
  EXPECT_TRUE(IsWouldBlock(link_->Read().status()));
}

TEST_F(CustodyTest, WhatABrokerPutBeforeItsDeathIsReadAlthoughItReadNothingItself) {
  Custody& custody = Start();
  const UniqueFd fd = AnyFd();
  Tell(custody::Signal{.kind = MessageKind::kStop});
  ASSERT_TRUE(custody.Put(KeyOf(Kind::kBlock, 1), fd.get(), FdOwner::kClient).ok());
  ASSERT_TRUE(custody.Put(KeyOf(Kind::kBlock, 2), fd.get(), FdOwner::kClient).ok());
  custody_.reset();
  EXPECT_EQ(std::get<PutRequest>(*link_->Read()).key, KeyOf(Kind::kBlock, 1));
  EXPECT_EQ(std::get<PutRequest>(*link_->Read()).key, KeyOf(Kind::kBlock, 2));
  EXPECT_TRUE(IsEndOfStream(link_->Read().status()));
  EXPECT_TRUE(link_->ended());
}

TEST_F(CustodyTest, AKeyIsHeldOnceUntilTheVaultSaysThatItDroppedIt) {
  Custody& custody = Start();
  const UniqueFd fd = AnyFd();
  EXPECT_TRUE(absl::IsAlreadyExists(custody.Put(KeyOf(Kind::kBlock, 41), fd.get(), FdOwner::kClient)));
  custody.Drop(KeyOf(Kind::kBlock, 41));
  EXPECT_TRUE(absl::IsAlreadyExists(custody.Put(KeyOf(Kind::kBlock, 41), fd.get(), FdOwner::kClient)));
  Tell(KeyMessage{.kind = MessageKind::kDropped, .key = KeyOf(Kind::kBlock, 41)});
  EXPECT_EQ(std::get<DroppedFd>(*custody.ReadNotice()).key, KeyOf(Kind::kBlock, 41));
  EXPECT_TRUE(custody.Put(KeyOf(Kind::kBlock, 41), fd.get(), FdOwner::kClient).ok());
}

TEST_F(CustodyTest, TheLimitIsExactAndRoomComesBack) {
  Custody& custody = Start(/*limit=*/3);
  const UniqueFd fd = AnyFd();
  ASSERT_TRUE(custody.Put(KeyOf(Kind::kBlock, 1), fd.get(), FdOwner::kClient).ok());
  const absl::Status refused = custody.Put(KeyOf(Kind::kBlock, 2), fd.get(), FdOwner::kClient);
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit));
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("limit"), "3");
  Tell(KeyMessage{.kind = MessageKind::kDropped, .key = KeyOf(Kind::kBlock, 1)});
  ASSERT_TRUE(custody.ReadNotice().ok());
  EXPECT_TRUE(custody.Put(KeyOf(Kind::kBlock, 2), fd.get(), FdOwner::kClient).ok());
}

TEST_F(CustodyTest, ClientsLeaveOperatorsSomeOfIt) {
  Custody& custody = Start(/*limit=*/40);
  const UniqueFd fd = AnyFd();
  // How many more that owner may put there, until it is refused at that limit.
  uint64_t id = 0;
  const auto fill = [&](FdOwner owner, const std::string& limit) {
    absl::Status put;
    uint64_t count = 0;
    while ((put = custody.Put(KeyOf(Kind::kBlock, ++id), fd.get(), owner)).ok()) ++count;
    EXPECT_TRUE(IsRefusal(put, Reason::kLimit)) << put;
    EXPECT_EQ(GetErrorDetails(put)->metadata.at("limit"), limit);
    return count;
  };
  EXPECT_GT(fill(FdOwner::kClient, "35"), 30u);
  EXPECT_EQ(fill(FdOwner::kOperator, "40"), 5u);
}

TEST_F(CustodyTest, AnFdWhoseNumberSaysThatTheOwnersAreUsedUpIsRefused) {
  Custody& custody = Start(/*limit=*/100);
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
    const absl::Status put = custody.Put(KeyOf(Kind::kBlock, ++id), numbered.get(), one.owner);
    EXPECT_EQ(put.ok(), one.taken) << one.number << ": " << put;
    EXPECT_TRUE(put.ok() || IsRefusal(put, Reason::kLimit)) << put;
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(CustodyTest, APutWaitsForRoomInTheSocket) {
  Custody& custody = Start(/*limit=*/10'000);
  std::thread vault([this] {
    for (uint64_t id = 0; id < 1000; ++id) {
      pollfd entry = {.fd = link_->fd(), .events = POLLIN, .revents = 0};
      ::poll(&entry, 1, 20'000);
      EXPECT_EQ(std::get<PutRequest>(*link_->Read()).key, KeyOf(Kind::kChannel, id));
    }
  });
  const UniqueFd fd = AnyFd();
  for (uint64_t id = 0; id < 1000; ++id) {
    EXPECT_TRUE(custody.Put(KeyOf(Kind::kChannel, id), fd.get(), FdOwner::kClient).ok()) << id;
  }
  vault.join();
}

TEST_F(CustodyTest, APutThatFindsNoRoomForASecondIsUnavailableAndNotHeld) {
  Custody& custody = Start(/*limit=*/10'000);
  const UniqueFd fd = AnyFd();
  absl::Status put;
  uint64_t id = 0;
  while ((put = custody.Put(KeyOf(Kind::kChannel, ++id), fd.get(), FdOwner::kClient)).ok()) ASSERT_LT(id, 9000u);
  EXPECT_TRUE(absl::IsUnavailable(put)) << put;
  // Whatever came through is there, and nothing else.
  for (uint64_t read = 1; read < id; ++read) {
    ASSERT_EQ(std::get<PutRequest>(*link_->Read()).key, KeyOf(Kind::kChannel, read));
  }
  EXPECT_TRUE(IsWouldBlock(link_->Read().status()));
  EXPECT_TRUE(custody.Put(KeyOf(Kind::kChannel, id), fd.get(), FdOwner::kClient).ok());
}

TEST_F(CustodyTest, ADropNeverWaitsAndWhatFoundNoRoomIsSentInOrderOnceThereIs) {
  // More than the socket takes while the vault reads nothing.
  constexpr uint64_t kDrops = 20'000;
  Custody& custody = Start(/*limit=*/10);
  for (uint64_t id = 1; id <= kDrops; ++id) custody.Drop(KeyOf(Kind::kBlock, id));
  uint64_t read = 0;
  uint64_t flushes = 0;
  while (read < kDrops) {
    absl::StatusOr<BrokerRequest> request = link_->Read();
    if (request.ok()) {
      ASSERT_EQ(std::get<DropRequest>(*request).key, KeyOf(Kind::kBlock, ++read));
    } else {
      ASSERT_TRUE(IsWouldBlock(request.status())) << request.status();
      ASSERT_LT(++flushes, kDrops);
      custody.Flush();
    }
  }
  EXPECT_GT(flushes, 0u);
  custody.Flush();
  EXPECT_TRUE(IsWouldBlock(link_->Read().status()));
}

TEST_F(CustodyTest, AVaultThatIsGoneIsUnavailableAtOnce) {
  Custody& custody = Start();
  const UniqueFd fd = AnyFd();
  link_.reset();
  // Who had waited would say that it stayed busy.
  EXPECT_EQ(custody.Put(KeyOf(Kind::kBlock, 1), fd.get(), FdOwner::kClient),
            absl::UnavailableError("the vault is gone"));
  custody.Drop(KeyOf(Kind::kBlock, 1));
  EXPECT_EQ(custody.Ready(), absl::UnavailableError("the vault is gone"));
  EXPECT_TRUE(IsEndOfStream(custody.ReadNotice().status()));
}

TEST_F(CustodyTest, WorkersGoAndComeBack) {
  held_[KeyOf(Kind::kWorker, 1)] = AnyFd();
  Custody& custody = Start();
  custody::WorkerStatus status = {
      .device = 1, .state = custody::WorkerState::kGone, .restarts_left = 2, .generation = 7};
  custody::SetReason(std::string(300, 'x'), status.last_failure);
  Tell(status);
  link_->QueueGive(KeyOf(Kind::kWorker, 1));
  Tell(custody::WorkerStatus{.device = 1, .state = custody::WorkerState::kStopped, .dropped = 1});
  const auto down = std::get<WorkerNews>(*custody.ReadNotice());
  EXPECT_EQ(down.device, 1u);
  EXPECT_EQ(down.state, custody::WorkerState::kGone);
  EXPECT_EQ(down.restarts_left, 2u);
  EXPECT_EQ(down.generation, 7u);
  EXPECT_FALSE(down.dropped);
  EXPECT_EQ(down.last_failure, std::string(custody::kReasonBytes - 1, 'x')) << "cut where it is too long";
  const Notice up = *custody.ReadNotice();
  EXPECT_EQ(std::get<WorkerUp>(up).device, 1u);
  EXPECT_TRUE(std::get<WorkerUp>(up).socket);
  const auto stopped = std::get<WorkerNews>(*custody.ReadNotice());
  EXPECT_EQ(stopped.state, custody::WorkerState::kStopped);
  EXPECT_TRUE(stopped.dropped);
  EXPECT_EQ(stopped.last_failure, "");
  EXPECT_TRUE(IsWouldBlock(custody.ReadNotice().status()));
}

TEST_F(CustodyTest, AContextWorkerIsToldFromTheOther) {
  held_[KeyOf(Kind::kContextWorker, 1)] = AnyFd();
  Custody& custody = Start();
  Tell(custody::WorkerStatus{
      .device = 1, .state = custody::WorkerState::kIdle, .generation = 4, .lane = Lane::kContext});
  link_->QueueGive(KeyOf(Kind::kContextWorker, 1));
  link_->Flush(held_);
  const auto idle = std::get<WorkerNews>(*custody.ReadNotice());
  EXPECT_EQ(idle.lane, Lane::kContext);
  EXPECT_EQ(idle.state, custody::WorkerState::kIdle);
  EXPECT_EQ(idle.generation, 4u);
  const auto up = std::get<WorkerUp>(*custody.ReadNotice());
  EXPECT_EQ(up.device, 1u);
  EXPECT_EQ(up.lane, Lane::kContext);
}

TEST_F(CustodyTest, AnOrderReachesTheVaultWithItsReason) {
  Custody& custody = Start();
  custody.Order(3, Lane::kContext, custody::OrderKind::kKill, "pulled");
  const auto order = std::get<OrderRequest>(*link_->Read());
  EXPECT_EQ(order.device, 3u);
  EXPECT_EQ(order.lane, Lane::kContext);
  EXPECT_EQ(order.order, custody::OrderKind::kKill);
  EXPECT_EQ(order.why, "pulled");
  const auto none = static_cast<uint32_t>(custody::OrderKind::kUpgrade) + 1;
  custody.Order(3, Lane::kMain, static_cast<custody::OrderKind>(none), "");
  EXPECT_TRUE(absl::IsInternal(link_->Read().status())) << "no order of that kind";
}

TEST_F(CustodyTest, StopIsANotice) {
  Custody& custody = Start();
  Tell(custody::Signal{.kind = MessageKind::kStop});
  EXPECT_TRUE(std::holds_alternative<StopRequested>(*custody.ReadNotice()));
}

TEST_F(CustodyTest, AnUnknownNoticeIsAnError) {
  Custody& custody = Start();
  Tell(custody::Signal{.kind = MessageKind::kReady});
  EXPECT_TRUE(absl::IsInternal(custody.ReadNotice().status()));
}

TEST_F(CustodyTest, WhatIsNoLongerHeldWhenItsTurnComesIsLeftOut) {
  link_->QueueGive(KeyOf(Kind::kBlock, 99));
  link_->Queue(custody::Signal{.kind = MessageKind::kStop});
  link_->Flush(held_);
  EXPECT_EQ(ReceiveMessage(broker_.get())->bytes.size(), sizeof(custody::Signal));
}

TEST_F(CustodyTest, TheBrokerCannotPutOrDropWhatIsTheVaults) {
  const int fd = STDERR_FILENO;
  for (const Key key : {KeyOf(custody::Listener::kAdmin), KeyOf(Kind::kStatePage), KeyOf(Kind::kDeviceTable),
                        KeyOf(Kind::kWorker, 0), KeyOf(Kind::kContextWorker, 0), KeyOf(static_cast<Kind>(0)),
                        KeyOf(static_cast<Kind>(77))}) {
    ASSERT_TRUE(
        SendStruct(broker_.get(), KeyMessage{.kind = MessageKind::kPut, .key = key}, std::span(&fd, 1)).ok());
    EXPECT_TRUE(absl::IsInternal(link_->Read().status()));
    ASSERT_TRUE(SendStruct(broker_.get(), KeyMessage{.kind = MessageKind::kDrop, .key = key}).ok());
    EXPECT_TRUE(absl::IsInternal(link_->Read().status()));
  }
}

TEST_F(CustodyTest, AMessageOfAnotherShapeIsAnErrorToTheVault) {
  const int fd = STDERR_FILENO;
  const KeyMessage put = {.kind = MessageKind::kPut, .key = KeyOf(Kind::kBlock, 1)};
  const KeyMessage drop = {.kind = MessageKind::kDrop, .key = KeyOf(Kind::kBlock, 1)};
  ASSERT_TRUE(SendStruct(broker_.get(), put).ok());
  EXPECT_TRUE(absl::IsInternal(link_->Read().status())) << "a put without its fd";
  ASSERT_TRUE(SendStruct(broker_.get(), drop, std::span(&fd, 1)).ok());
  EXPECT_TRUE(absl::IsInternal(link_->Read().status())) << "a drop with an fd";
  ASSERT_TRUE(SendStruct(broker_.get(), custody::Facts{}).ok());
  EXPECT_TRUE(absl::IsInternal(link_->Read().status())) << "another size";
  ASSERT_TRUE(SendStruct(broker_.get(), custody::Signal{.kind = MessageKind::kStop}).ok());
  EXPECT_TRUE(absl::IsInternal(link_->Read().status())) << "another kind";
  EXPECT_TRUE(link_->ended());
}

}  // namespace
}  // namespace berth
