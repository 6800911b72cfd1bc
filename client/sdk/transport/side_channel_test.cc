#include "client/sdk/transport/side_channel.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include <berth/end_notice.h>
#include <berth/error.h>

#include "common/notification.h"
#include "common/os/memfd.h"
#include "common/steady_clock.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

// The test holds the daemon's end.
constexpr absl::Duration kPatience = absl::Seconds(60);

class SideChannelTest : public testing::Test {
 protected:
  void SetUp() override { Start(); }

  void Start(std::function<absl::StatusOr<UniqueFd>()> rejoin = nullptr) {
    side_channel_.reset();
    auto pair = SocketPair();
    ASSERT_TRUE(pair.ok());
    daemon_ = std::move(pair->first);
    client_ = std::move(pair->second);
    ASSERT_TRUE(SetNonBlocking(client_.get()).ok());
    auto side_channel = SideChannel::Start(client_.get(), &fences_,
                                           {.on_lost =
                                                [this](const absl::Status& why) {
                                                  why_ = why;
                                                  if (!lost_.HasBeenNotified()) lost_.Notify();
                                                },
                                            .rejoin = std::move(rejoin),
                                            .on_resumed = [this] { resumed_.Notify(); },
                                            .on_return =
                                                [this] {
                                                  returned_at_ = SteadyNow();
                                                  returned_.Notify();
                                                }});
    ASSERT_TRUE(side_channel.ok());
    side_channel_ = *std::move(side_channel);
  }

  void SendBlock(uint64_t number, uint64_t sequence, uint64_t block, uint64_t import) {
    const auto fd = CreateMemfd("block", 4096);
    ASSERT_TRUE(fd.ok());
    const int raw = fd->get();
    ASSERT_TRUE(SendStruct(daemon_.get(),
                           attach::Delivery{.what = attach::DeliveryKind::kBlock,
                                            .number = number,
                                            .sequence = sequence,
                                            .block = block,
                                            .import = import},
                           std::span(&raw, 1))
                    .ok());
  }
  void SendRecall(uint64_t number, uint64_t block) {
    ASSERT_TRUE(
        SendStruct(daemon_.get(),
                   attach::Delivery{.what = attach::DeliveryKind::kRecall, .number = number, .block = block})
            .ok());
  }

  // Receives the client's next message, which must be a T.
  template <typename T>
  T Receive() {
    absl::StatusOr<Message> message = ReceiveMessage(daemon_.get());
    T result;
    EXPECT_TRUE(message.ok()) << message.status();
    if (!message.ok()) return result;
    EXPECT_EQ(message->bytes.size(), sizeof(T));
    const attach::Kind kind = result.kind;
    memcpy(&result, message->bytes.data(), std::min(sizeof(T), message->bytes.size()));
    EXPECT_EQ(result.kind, kind);
    return result;
  }

  absl::Status Ask(attach::Method method, absl::Time deadline) {
    attach::Ask ask;
    ask.method = method;
    return side_channel_->Ask(ask, deadline, /*cancellation=*/nullptr).status();
  }
  // Receives the client's next message, which must be an Ask.
  attach::Ask ReceiveAsk() {
    const absl::StatusOr<Message> message = ReceiveMessage(daemon_.get());
    attach::Ask ask;
    EXPECT_TRUE(message.ok()) << message.status();
    if (message.ok()) memcpy(&ask, message->bytes.data(), std::min(sizeof(ask), message->bytes.size()));
    EXPECT_EQ(ask.kind, attach::Kind::kAsk);
    return ask;
  }
  void AnswerAsk(uint64_t number) {
    const attach::Answer answer = {.number = number};
    const auto head = std::as_bytes(std::span(&answer, 1)).first(attach::Answer::BytesOf(0));
    EXPECT_TRUE(SendMessage(daemon_.get(), head).ok());
  }

  absl::StatusOr<Arrival> Await(uint64_t sequence) {
    return side_channel_->Await(sequence, SteadyNow() + kPatience);
  }

  absl::Status GiveBack(uint64_t acquisition) {
    return side_channel_->GiveBack(AcquisitionId(acquisition), /*if_idle=*/true, SteadyNow() + kPatience);
  }
  void AnswerGiveBack(uint64_t acquisition, uint32_t taken) {
    EXPECT_TRUE(SendStruct(daemon_.get(), attach::GaveBack{.taken = taken, .acquisition = acquisition}).ok());
  }

  UniqueFd daemon_;
  UniqueFd client_;
  Fences fences_;
  Notification lost_;
  Notification resumed_;
  // Set before `returned_`.
  absl::Time returned_at_;
  Notification returned_;
  absl::Status why_;
  // Declared last: its callbacks use the members above.
  std::unique_ptr<SideChannel> side_channel_;
};

TEST_F(SideChannelTest, BlockReachesItsRequestAndIsAcknowledged) {
  side_channel_->Expect(7);
  side_channel_->Expect(8);
  SendBlock(1, 8, 81, 82);
  SendBlock(2, 7, 71, 72);
  absl::StatusOr<Arrival> seven = Await(7);
  ASSERT_TRUE(seven.ok()) << seven.status();
  EXPECT_EQ(seven->block, BlockId(71));
  EXPECT_EQ(seven->import, ImportId(72));
  EXPECT_GE(::fcntl(seven->fd.get(), F_GETFD) & FD_CLOEXEC, 1);
  EXPECT_EQ(seven->lease->state.load(), Lease::kLive);
  EXPECT_EQ(Await(8)->block, BlockId(81));
  uint64_t acknowledged = 0;
  while (acknowledged < 2) acknowledged = Receive<attach::Ack>().number;
  EXPECT_EQ(acknowledged, 2u);
}

TEST_F(SideChannelTest, ArrivingBlockWakesWaiter) {
  side_channel_->Expect(1);
  absl::StatusOr<Arrival> arrival = absl::UnknownError("nothing yet");
  std::thread waiter([&] { arrival = Await(1); });
  SendBlock(1, 1, 11, 12);
  waiter.join();
  ASSERT_TRUE(arrival.ok()) << arrival.status();
  EXPECT_EQ(arrival->block, BlockId(11));
}

TEST_F(SideChannelTest, UnexpectedBlockIsAcknowledgedAndReleased) {
  SendBlock(1, 5, 51, 52);
  bool acknowledged = false;
  bool let_go = false;
  while (!acknowledged || !let_go) {
    absl::StatusOr<Message> message = ReceiveMessage(daemon_.get());
    ASSERT_TRUE(message.ok());
    attach::Kind kind;
    memcpy(&kind, message->bytes.data(), sizeof(kind));
    acknowledged |= kind == attach::Kind::kAck;
    let_go |= kind == attach::Kind::kLetGo;
  }
}

TEST_F(SideChannelTest, AbandonedBlockIsReleasedBeforeAndAfterArrival) {
  side_channel_->Expect(1);
  SendBlock(1, 1, 11, 12);
  EXPECT_EQ(Receive<attach::Ack>().number, 1u);
  side_channel_->Abandon(1);
  EXPECT_EQ(Receive<attach::LetGo>().import, 12u);
  side_channel_->Expect(2);
  side_channel_->Abandon(2);
  side_channel_->Abandon(99);
}

TEST_F(SideChannelTest, RepeatedDeliveryIsAcknowledgedAndTakenOnce) {
  side_channel_->Expect(1);
  SendBlock(1, 1, 11, 12);
  ASSERT_TRUE(Await(1).ok());
  EXPECT_EQ(Receive<attach::Ack>().number, 1u);
  SendBlock(1, 1, 11, 12);
  EXPECT_EQ(Receive<attach::Ack>().number, 1u);
}

TEST_F(SideChannelTest, BlockWithoutFreeFdFailsAndChannelContinues) {
  side_channel_->Expect(1);
  side_channel_->Expect(2);
  const auto block = CreateMemfd("block", 4096);
  ASSERT_TRUE(block.ok());
  const int raw = block->get();
  // All fds below the lowest free fd are taken, so none is available under this limit.
  const int lowest_free = ::dup(raw);
  ASSERT_GE(lowest_free, 0);
  ASSERT_EQ(::close(lowest_free), 0);
  rlimit old_limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old_limit), 0);
  const rlimit none_free = {.rlim_cur = static_cast<rlim_t>(lowest_free), .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none_free), 0);
  const attach::Delivery delivery = {
      .what = attach::DeliveryKind::kBlock, .number = 1, .sequence = 1, .block = 11, .import = 12};
  // Without CAP_SYS_ADMIN and CAP_SYS_RESOURCE, it also limits the fds that all of this user's messages carry.
  absl::Status sent;
  for (const absl::Time end = SteadyNow() + kPatience; SteadyNow() < end;) {
    sent = SendStruct(daemon_.get(), delivery, std::span(&raw, 1));
    if (!absl::IsResourceExhausted(sent)) break;
  }
  ASSERT_TRUE(sent.ok()) << sent;
  const absl::Status status = Await(1).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(Receive<attach::Ack>().number, 1u);
  EXPECT_EQ(Receive<attach::LetGo>().import, 12u);
  SendBlock(2, 2, 21, 22);
  EXPECT_EQ(Await(2)->block, BlockId(21));
}

TEST_F(SideChannelTest, RecallMarksOnlyItsBlock) {
  side_channel_->Expect(1);
  side_channel_->Expect(2);
  SendBlock(1, 1, 11, 12);
  SendBlock(2, 2, 21, 22);
  SendRecall(3, 21);
  SendRecall(4, 404);
  const auto first = Await(1);
  const auto second = Await(2);
  ASSERT_TRUE(first.ok() && second.ok());
  while (Receive<attach::Ack>().number < 4) {
  }
  EXPECT_EQ(first->lease->state.load(), Lease::kLive);
  EXPECT_EQ(second->lease->state.load(), Lease::kFreed);
}

TEST_F(SideChannelTest, RecallLeavesLeaseValid) {
  side_channel_->Expect(1);
  SendBlock(1, 1, 11, 12);
  const auto arrival = Await(1);
  ASSERT_TRUE(arrival.ok());
  EXPECT_FALSE(arrival->lease->asked_back);
  for (const uint64_t block : {404u, 11u}) {
    const uint64_t number = block == 11 ? 3 : 2;
    ASSERT_TRUE(
        SendStruct(daemon_.get(),
                   attach::Delivery{.what = attach::DeliveryKind::kAskBack, .number = number, .block = block})
            .ok());
  }
  while (Receive<attach::Ack>().number < 3) {
  }
  EXPECT_TRUE(arrival->lease->asked_back);
  EXPECT_EQ(arrival->lease->state.load(), Lease::kLive);
}

TEST_F(SideChannelTest, MappedBlockIsReleasableAfterSessionEnd) {
  side_channel_->Expect(1);
  side_channel_->Expect(2);
  SendBlock(1, 1, 11, 12);
  SendBlock(2, 2, 21, 22);
  SendRecall(3, 21);
  ASSERT_TRUE(
      SendStruct(daemon_.get(), attach::Delivery{.what = attach::DeliveryKind::kEnded, .number = 4}).ok());
  const auto first = Await(1);
  const auto second = Await(2);
  ASSERT_TRUE(first.ok() && second.ok());
  while (Receive<attach::Ack>().number < 4) {
  }
  EXPECT_EQ(first->lease->state.load(), Lease::kEnded);
  EXPECT_EQ(second->lease->state.load(), Lease::kFreed) << "the first reason stays";
  side_channel_->LetGo(ImportId(12));
  EXPECT_EQ(Receive<attach::LetGo>().import, 12u);
}

TEST_F(SideChannelTest, SessionEndWithReasonEndsPermitsAndPlans) {
  std::vector<EndNotice> ends;
  Notification notified, stale;
  const auto permit = side_channel_->permits().Watch(7, [&](const PermitEvent& event) {
    ends.push_back(event.end);
    notified.Notify();
  });
  const auto plan = side_channel_->plans().Watch(8, [&] { stale.Notify(); });
  attach::Delivery ended = {.what = attach::DeliveryKind::kEnded, .number = 1};
  // Without a reason: this process has requested the end.
  ASSERT_TRUE(SendStruct(daemon_.get(), ended).ok());
  ended = {.what = attach::DeliveryKind::kEnded,
           .number = std::numeric_limits<uint64_t>::max(),
           .owner = 1234,
           .why = static_cast<uint64_t>(EndReason::kStopped)};
  ASSERT_TRUE(SendStruct(daemon_.get(), ended).ok());
  ASSERT_TRUE(notified.WaitForNotificationWithTimeout(kPatience));
  ASSERT_TRUE(stale.WaitForNotificationWithTimeout(kPatience));
  const EndNotice expected = {.reason = EndReason::kStopped, .uid = 1234};
  EXPECT_EQ(ends, std::vector<EndNotice>{expected});
  EXPECT_EQ(permit->ended_by(), expected);
  EXPECT_TRUE(plan->ended);
  // A later loss changes nothing.
  daemon_.reset();
  EXPECT_TRUE(lost_.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(permit->ended_by(), expected);
}

TEST_F(SideChannelTest, BrokenChannelNotifiesHoldersAndDaemon) {
  const std::vector<std::pair<const char*, std::function<void()>>> breaks = {
      {"message of another size", [&] { ASSERT_TRUE(SendStruct(daemon_.get(), attach::Ack{.number = 1}).ok()); }},
      {"block without its fd",
       [&] { ASSERT_TRUE(SendStruct(daemon_.get(), attach::Delivery{.number = 1, .sequence = 1}).ok()); }},
      {"unknown kind of delivery",
       [&] {
         const attach::Delivery unknown = {.what = static_cast<attach::DeliveryKind>(99), .number = 1};
         ASSERT_TRUE(SendStruct(daemon_.get(), unknown).ok());
       }},
      {"refusal",
       [&] { ASSERT_TRUE(SendStruct(daemon_.get(), attach::Refused{.text = "no such message"}).ok()); }},
      {"end of the stream", [&] { ::shutdown(daemon_.get(), SHUT_WR); }},
  };
  for (const auto& [name, break_it] : breaks) {
    SCOPED_TRACE(name);
    Start();
    Notification notified, stale;
    const auto permit = side_channel_->permits().Watch(7, [&](const PermitEvent&) { notified.Notify(); });
    const auto plan = side_channel_->plans().Watch(8, [&] { stale.Notify(); });
    break_it();
    ASSERT_TRUE(notified.WaitForNotificationWithTimeout(kPatience));
    ASSERT_TRUE(stale.WaitForNotificationWithTimeout(kPatience));
    EXPECT_EQ(permit->ended_by(), EndNotice{.reason = EndReason::kChannelBroken});
    EXPECT_TRUE(plan->ended);
    // The daemon reads to the end of the stream, and so learns of the loss.
    char bytes[1024];
    ssize_t got;
    while ((got = ::recv(daemon_.get(), bytes, sizeof(bytes), 0)) > 0) {
    }
    EXPECT_EQ(got, 0);
    side_channel_.reset();
  }
}

TEST_F(SideChannelTest, LostAndFreedBlocksHaveDifferentReasons) {
  side_channel_->Expect(1);
  side_channel_->Expect(2);
  SendBlock(1, 1, 11, 12);
  SendBlock(2, 2, 21, 22);
  SendRecall(3, 21);
  ASSERT_TRUE(SendStruct(daemon_.get(), attach::Delivery{.what = attach::DeliveryKind::kRecall,
                                                         .number = 4,
                                                         .block = 11,
                                                         .why = static_cast<uint64_t>(EndReason::kStateLost)})
                  .ok());
  const auto lost = Await(1);
  const auto freed = Await(2);
  ASSERT_TRUE(lost.ok() && freed.ok());
  while (Receive<attach::Ack>().number < 4) {
  }
  EXPECT_EQ(lost->lease->state.load(), Lease::kLost);
  EXPECT_EQ(freed->lease->state.load(), Lease::kFreed);
}

TEST_F(SideChannelTest, LateBlockIsAbandoned) {
  side_channel_->Expect(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(side_channel_->Await(1, SteadyNow()).status()));
  SendBlock(1, 1, 11, 12);
  EXPECT_EQ(Receive<attach::Ack>().number, 1u);
  EXPECT_EQ(Receive<attach::LetGo>().import, 12u);
}

TEST_F(SideChannelTest, StreamEndEndsLeasesAndWaitsOnce) {
  side_channel_->Expect(1);
  side_channel_->Expect(2);
  SendBlock(1, 1, 11, 12);
  const auto arrival = Await(1);
  ASSERT_TRUE(arrival.ok());
  daemon_.reset();
  EXPECT_TRUE(absl::IsUnavailable(Await(2).status()));
  EXPECT_TRUE(lost_.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(absl::IsUnavailable(why_));
  EXPECT_EQ(arrival->lease->state.load(), Lease::kEnded);
  side_channel_->Expect(3);
  EXPECT_TRUE(absl::IsUnavailable(Await(3).status())) << "and so does what is expected later";
}

TEST_F(SideChannelTest, NewBrokerIsReportedAndChannelContinues) {
  side_channel_->Expect(1);
  const absl::Time notified = SteadyNow();
  ASSERT_TRUE(SendStruct(daemon_.get(), attach::Resumed{.return_after = 70}).ok());
  EXPECT_TRUE(resumed_.WaitForNotificationWithTimeout(kPatience));
  ASSERT_TRUE(returned_.WaitForNotificationWithTimeout(kPatience));
  EXPECT_GE(returned_at_, notified + absl::Milliseconds(70));
  SendBlock(1, 1, 11, 12);
  EXPECT_TRUE(Await(1).ok());
}

TEST_F(SideChannelTest, InvalidMessageBreaksChannel) {
  ASSERT_TRUE(SendStruct(daemon_.get(), attach::Ack{.number = 1}).ok());
  EXPECT_TRUE(lost_.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(why_.code(), absl::StatusCode::kInternal);
}

TEST_F(SideChannelTest, BlockWithoutFdBreaksChannel) {
  side_channel_->Expect(1);
  ASSERT_TRUE(SendStruct(daemon_.get(), attach::Delivery{.number = 1, .sequence = 1}).ok());
  EXPECT_EQ(Await(1).status().code(), absl::StatusCode::kInternal);
}

TEST_F(SideChannelTest, AckBlockedByFullSocketIsSentLater) {
  // Sends empty acknowledgements until the socket is full.
  while (SendStruct(client_.get(), attach::Ack{.number = 0}).ok()) {
  }
  side_channel_->Expect(1);
  SendBlock(1, 1, 11, 12);
  ASSERT_TRUE(Await(1).ok());
  while (Receive<attach::Ack>().number != 1) {
  }
}

TEST_F(SideChannelTest, ReturnedPermitIsAnswered) {
  absl::Status given = absl::UnknownError("not yet");
  std::thread giver([&] { given = GiveBack(7); });
  const auto said = Receive<attach::GiveBack>();
  EXPECT_EQ(said.acquisition, 7u);
  EXPECT_EQ(said.if_idle, 1u);
  // An answer for another acquisition and a repeated answer have no effect.
  for (const uint64_t acquisition : {8, 7, 7}) AnswerGiveBack(acquisition, /*taken=*/1);
  giver.join();
  EXPECT_TRUE(given.ok()) << given;
  // The channel continues to work.
  SendRecall(1, 11);
  EXPECT_EQ(Receive<attach::Ack>().number, 1u);
}

TEST_F(SideChannelTest, ConcurrentReturnsGetOwnAnswers) {
  constexpr uint64_t kThreads = 16;
  std::vector<std::thread> givers;
  for (uint64_t i = 0; i < kThreads; ++i) {
    givers.emplace_back([&, i] { EXPECT_EQ(GiveBack(i).ok(), i % 2 == 0) << i; });
  }
  std::vector<uint64_t> said;
  for (uint64_t i = 0; i < kThreads; ++i) said.push_back(Receive<attach::GiveBack>().acquisition);
  // Answer the first caller last: it has polled for the others until then.
  for (uint64_t i = kThreads; i-- > 0;) AnswerGiveBack(said[i], said[i] % 2 == 0 ? 1 : 0);
  for (std::thread& giver : givers) giver.join();
}

TEST_F(SideChannelTest, UnansweredReturnFails) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(side_channel_->GiveBack(AcquisitionId(7), false, SteadyNow())));
  absl::Status given;
  std::thread giver([&] { given = GiveBack(8); });
  Receive<attach::GiveBack>();
  Receive<attach::GiveBack>();
  daemon_.reset();
  giver.join();
  EXPECT_TRUE(absl::IsUnavailable(given)) << given;
  EXPECT_TRUE(lost_.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(absl::IsUnavailable(GiveBack(9)));
}

// The notice of a wait asks about the acquire of another thread, and must not end that wait.
TEST_F(SideChannelTest, OnlyUnansweredAcquireIsCancelled) {
  for (const attach::Method method :
       {attach::Method::kExplainWait, attach::Method::kEndSession, attach::Method::kAcquirePermit}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(method, SteadyNow())));
  }
  for (const attach::Method method : {attach::Method::kExplainWait, attach::Method::kEndSession,
                                      attach::Method::kAcquirePermit, attach::Method::kCancel}) {
    EXPECT_EQ(ReceiveAsk().method, method);
  }
}

TEST_F(SideChannelTest, SecondAcquireIsNotSentWhileFirstWaits) {
  absl::Status first;
  std::thread waiter([&] { first = Ask(attach::Method::kAcquirePermit, SteadyNow() + kPatience); });
  const uint64_t number = ReceiveAsk().number;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(absl::IsUnimplemented(Ask(attach::Method::kAcquirePermit, SteadyNow() + kPatience)));
  }
  AnswerAsk(number);
  waiter.join();
  EXPECT_TRUE(first.ok()) << first;
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(attach::Method::kAcquirePermit, SteadyNow())));
  EXPECT_EQ(ReceiveAsk().number, number + 1);
}

TEST_F(SideChannelTest, ReturnOverFullSocketFails) {
  while (SendStruct(client_.get(), attach::Ack{.number = 0}).ok()) {
  }
  EXPECT_FALSE(GiveBack(7).ok());
}

TEST_F(SideChannelTest, ReleasesBlockedByFullSocketAreSentLater) {
  constexpr int kImports = 2000;
  for (int i = 1; i <= kImports; ++i) side_channel_->LetGo(ImportId(i));
  for (int i = 1; i <= kImports; ++i) ASSERT_EQ(Receive<attach::LetGo>().import, static_cast<uint64_t>(i));
}

TEST_F(SideChannelTest, SessionWaitsForItsNextDaemonOnce) {
  for (const absl::Status& answer :
       {absl::UnavailableError("connect: No such file or directory"), Refuse(Reason::kLedgerUnreadable, "ledger")}) {
    SCOPED_TRACE(answer.ToString());
    Start([&]() -> absl::StatusOr<UniqueFd> { return answer; });
    EXPECT_EQ(side_channel_->AwaitReturn(absl::Hours(1)), SideChannel::Return::kPresent);
    daemon_.reset();
    EXPECT_EQ(side_channel_->AwaitReturn(absl::Milliseconds(50)), SideChannel::Return::kAbsent);
    // A wait of its own would outlast the test.
    EXPECT_EQ(side_channel_->AwaitReturn(absl::Hours(1)), SideChannel::Return::kAbsent);
    side_channel_.reset();
  }
}

TEST_F(SideChannelTest, WaitForNextDaemonEndsWithSession) {
  Start([]() -> absl::StatusOr<UniqueFd> { return Refuse(Reason::kSessionEnded, "over"); });
  daemon_.reset();
  EXPECT_EQ(side_channel_->AwaitReturn(absl::Hours(1)), SideChannel::Return::kLost);
}

TEST_F(SideChannelTest, WaitForNextDaemonEndsWhenItAnswers) {
  UniqueFd next;
  Notification serves;
  Start([&]() -> absl::StatusOr<UniqueFd> {
    if (!serves.HasBeenNotified()) return absl::UnavailableError("connect: No such file or directory");
    auto pair = SocketPair();
    if (!pair.ok()) return pair.status();
    EXPECT_TRUE(SetNonBlocking(pair->second.get()).ok());
    next = std::move(pair->first);
    return std::move(pair->second);
  });
  daemon_.reset();
  EXPECT_EQ(side_channel_->AwaitReturn(absl::Milliseconds(50)), SideChannel::Return::kAbsent);
  serves.Notify();
  resumed_.WaitForNotification();
  EXPECT_EQ(side_channel_->AwaitReturn(absl::Hours(1)), SideChannel::Return::kPresent);
  side_channel_.reset();
}

}  // namespace
}  // namespace berth::internal
