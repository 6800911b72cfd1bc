// Workers that were at work for brokers before this one: what they answer of that, over real sockets.

#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <variant>

#include "daemon/broker/block_keeper.h"
#include "daemon/broker/block_keeper_harness.h"
#include "daemon/broker/recorded_call.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// A worker that has been at work for an earlier broker.
class EarlierWorkerTest : public BlockKeeperTest {
 protected:
  // An fd whose other end hangs up with its last copy, which is answered for that block.
  UniqueFd AnswerMade(BlockId block) {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    UniqueFd watched(fds[0]);
    worker_.AnswerCreate(block, fds[1]);
    ::close(fds[1]);
    return watched;
  }
  void Replace() {
    worker_.Die();
    keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
    keeper_->WorkerIsUp(0, Lane::kMain, worker_.Start(), /*at_work=*/true);
    EXPECT_EQ(worker_.Next(), worker::Kind::kBegin);
  }
  void Ask(RecordedCall* call) {
    broker_->Submit(broker_->NewCall(), call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Allocate(now, id, Caller(), {.sequence = 7}, {.bytes = MiB(4)}, effects);
                    });
  }
};

TEST_F(EarlierWorkerTest, IsAskedNothingUntilItHasAnsweredTheEarlierBroker) {
  Replace();
  RecordedCall call;
  Ask(&call);
  EXPECT_TRUE(worker_.Silent());
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kCreate);
}

TEST_F(EarlierWorkerTest, ABlockThatItMadeAndNobodyHeardOfIsTheAnswerWhenTheCoreAsksAgain) {
  // The core draws its ids one after the other.
  const BlockId next(last_id_ + 1);
  keeper_->Expect(next);
  Replace();
  RecordedCall call;
  Ask(&call);
  const UniqueFd made = AnswerMade(next);
  worker_.Begun();
  const absl::StatusOr<core::Response> answer = call.Await();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(std::get<core::AllocateResult>(*answer).block.handle.block, next);
  EXPECT_TRUE(worker_.Silent()) << "it is there already";
  const absl::StatusOr<BrokerRequest> put = vault_->Read();
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(std::get<PutRequest>(*put).key.id, next.value());
}

TEST_F(EarlierWorkerTest, WhatItAnswersTheBrokersBeforeIsHeardOutBeforeItIsAskedAgain) {
  const BlockId next(last_id_ + 1);
  keeper_->Expect(next);
  Replace();
  RecordedCall call;
  Ask(&call);
  // It has just been started: one broker began, asked for a block and died before it heard anything.
  worker_.BegunOf(kEarlierEpoch);
  const UniqueFd made = AnswerMade(next);
  EXPECT_TRUE(Readable(vault_->fd(), kPatience)) << "it is kept";
  EXPECT_TRUE(worker_.Silent()) << "it was asked for what it had been asked for, and would make it twice";
  worker_.Begun();
  ASSERT_TRUE(call.Await().ok());
  EXPECT_TRUE(worker_.Silent());
  EXPECT_TRUE(keeper_->Find(next).ok());
}

TEST_F(EarlierWorkerTest, IsEndedIfItMakesABlockTwiceAndTheFirstStaysWhereItIs) {
  Replace();
  const UniqueFd second = AnswerMade(handle_.block);
  EXPECT_TRUE(worker_.IsHungUp());
  EXPECT_TRUE(keeper_->Find(handle_.block).ok());
  EXPECT_TRUE(VaultIsAskedNothing());
  EXPECT_TRUE(MemoryIsHeld());
}

TEST_F(EarlierWorkerTest, ABlockThatItMadeForNobodyGoesBack) {
  Replace();
  const UniqueFd made = AnswerMade(BlockId(99));
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
}

TEST_F(EarlierWorkerTest, WhatTheVaultHasStillIsNotGoneWithTheWorkersCopy) {
  // The earlier broker had it hold the fd, and the vault has not dropped it.
  Replace();
  worker_.AnswerRelease(handle_.block);
  FreeBlock();
  EXPECT_EQ(Charged(), MiB(2));
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(EarlierWorkerTest, WhatItCouldNotReleaseIsAskedOfItOnceMore) {
  // Another broker's core, to which the block is being freed; only the worker has its fd.
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  keeper_ = std::make_unique<BlockKeeper>(loop_.get(), broker_.get(), custody_.get(), kEpoch);
  broker_->Step([](core::Core& core, absl::Time now, core::Effects* effects) {
    core.WorkerDown(now, 0, Lane::kMain, core::DeviceState::kRebuilding, effects);
  });
  keeper_->WorkerIsUp(0, Lane::kMain, worker_.Start(), /*at_work=*/true);
  EXPECT_EQ(worker_.Next(), worker::Kind::kBegin);
  worker_.AnswerRelease(handle_.block, absl::StatusCode::kInternal);
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  EXPECT_EQ(Charged(), MiB(2));
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(EarlierWorkerTest, WhatOnlyItHadAndHasClosedIsReleased) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  keeper_ = std::make_unique<BlockKeeper>(loop_.get(), broker_.get(), custody_.get(), kEpoch);
  broker_->Step([](core::Core& core, absl::Time now, core::Effects* effects) {
    core.WorkerDown(now, 0, Lane::kMain, core::DeviceState::kRebuilding, effects);
  });
  keeper_->WorkerIsUp(0, Lane::kMain, worker_.Start(), /*at_work=*/true);
  EXPECT_EQ(worker_.Next(), worker::Kind::kBegin);
  worker_.AnswerRelease(handle_.block);
  EXPECT_EQ(Charged(), MiB(2)) << "it may have been only one of several copies";
  worker_.Begun();
  EXPECT_TRUE(BecomesFree());
}

}  // namespace
}  // namespace berth
