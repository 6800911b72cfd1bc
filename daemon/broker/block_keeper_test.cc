// The fds of blocks on their way between worker, broker and vault, over real sockets.

#include "daemon/broker/block_keeper.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "daemon/broker/block_keeper_harness.h"
#include "daemon/broker/recorded_call.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST_F(BlockKeeperTest, ABlockGoesBackInTheOrderThatLeavesTheLastCloseToTheWorker) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(worker_.Silent()) << "the vault still has it";
  EXPECT_TRUE(VaultDrops());
  EXPECT_TRUE(MemoryIsHeld());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  EXPECT_FALSE(MemoryIsHeld()) << "somebody kept a copy";
  EXPECT_EQ(Charged(), MiB(2)) << "the worker has not said so yet";
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockKeeperTest, AWorkerKilledBeforeTheVaultLetGoGivesNothingBackAndTheNextOneCloses) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
  EXPECT_EQ(Charged(), MiB(2));
  EXPECT_TRUE(VaultDrops());
  EXPECT_TRUE(MemoryIsHeld()) << "the vault was the last to close";
  EXPECT_EQ(Charged(), MiB(2));
  StartWorker();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(MemoryIsHeld());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  EXPECT_FALSE(MemoryIsHeld());
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockKeeperTest, TheNextWorkerMayComeBeforeTheVaultLetsGoWhichIsAskedOnce) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
  StartWorker();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(worker_.Silent());
  EXPECT_TRUE(VaultDrops());
  EXPECT_TRUE(VaultIsAskedNothing());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
  EXPECT_FALSE(MemoryIsHeld());
}

TEST_F(BlockKeeperTest, WhatTheDriverDidNotTakeStaysChargedAndAReapAsksForItAgain) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block, absl::StatusCode::kInternal);
  const absl::Time deadline = absl::Now() + kPatience;
  while (Stuck() != MiB(2) && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(Stuck(), MiB(2));
  EXPECT_EQ(Charged(), MiB(2));
  RecordedCall call;
  core::Caller admin = Caller();
  admin.admin = true;
  broker_->Submit(broker_->NewCall(), &call,
                  [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                    core.Reap(now, id, admin, effects);
                  });
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  const absl::StatusOr<core::Response> reaped = call.Await();
  ASSERT_TRUE(reaped.ok()) << reaped.status();
  EXPECT_EQ(std::get<core::ReapResult>(*reaped).back_bytes, MiB(2));
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockKeeperTest, AWorkerThatDiesWithTheOnlyCopyHasGivenItBack) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
  EXPECT_FALSE(MemoryIsHeld());
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockKeeperTest, WhatOnlyAnAbandonedWorkerHasComesBackWhenThatIsGone) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  keeper_->OnWorkerNews({.state = custody::WorkerState::kAbandoned});
  EXPECT_EQ(Charged(), MiB(2)) << "the driver has not got it back";
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kStopped});
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockKeeperTest, WhatAWorkerAnsweredBeforeItsEndHolds) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
  EXPECT_EQ(Charged(), Bytes(0));
}

TEST_F(BlockKeeperTest, WithoutAWorkerABlockStaysWhereItIsUntilThereIsOne) {
  worker_.Die();
  keeper_->OnWorkerNews({.state = custody::WorkerState::kGone});
  FreeBlock();
  EXPECT_TRUE(VaultIsAskedNothing());
  EXPECT_TRUE(MemoryIsHeld());
  StartWorker();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(VaultDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockKeeperTest, WhatIsOnItsWayIntoCustodyIsNotAskedForOnceMore) {
  RecordedCall call;
  broker_->Submit(broker_->NewCall(), &call,
                  [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                    core.Allocate(now, id, Caller(), {.sequence = 2}, {.bytes = MiB(4)}, effects);
                  });
  ASSERT_EQ(worker_.Next(), worker::Kind::kCreate);
  const BlockId block = sink_.made;
  // The vault's socket is full, so the fd waits for room.
  for (uint64_t id = 1; id < 2'000; ++id) custody_->Drop(custody::KeyOf(custody::Kind::kPidfd, id));
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd watched(fds[0]);
  worker_.AnswerCreate(block, fds[1]);
  ::close(fds[1]);
  ASSERT_TRUE(worker_.IsHeard());
  // What the core had asked the worker before.
  keeper_->Create({.device = 0, .lane = Lane::kMain, .block = block, .bytes = MiB(4)});
  EXPECT_TRUE(worker_.Silent());
  bool put = false;
  while (!put && Readable(vault_->fd(), kPatience)) {
    absl::StatusOr<BrokerRequest> request = vault_->Read();
    ASSERT_TRUE(request.ok()) << request.status();
    put = std::holds_alternative<PutRequest>(*request);
    if (put) in_vault_[std::get<PutRequest>(*request).key] = std::move(std::get<PutRequest>(*request).fd);
  }
  EXPECT_TRUE(call.Await().ok());
  EXPECT_TRUE(keeper_->Find(block).ok());
  EXPECT_TRUE(worker_.Silent());
}

TEST_F(BlockKeeperTest, AWorkerThatMakesABlockTwiceIsEndedAndTheFirstStaysWhereItIs) {
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd watched(fds[0]);
  worker_.AnswerCreate(handle_.block, fds[1]);
  ::close(fds[1]);
  EXPECT_TRUE(worker_.IsHungUp());
  EXPECT_TRUE(keeper_->Find(handle_.block).ok());
  EXPECT_TRUE(VaultIsAskedNothing());
  EXPECT_TRUE(MemoryIsHeld());
}

// A second worker of the device, which exports by handles.
class ContextKeeperTest : public BlockKeeperTest {
 protected:
  void StartContext() {
    keeper_->OnWorkerNews({.lane = Lane::kContext, .generation = 1});
    keeper_->WorkerIsUp(0, Lane::kContext, context_.Start());
    EXPECT_EQ(context_.Next(), worker::Kind::kBegin);
  }
  void Ask(RecordedCall* call) {
    broker_->Submit(broker_->NewCall(), call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Allocate(now, id, Caller(), {.sequence = 5},
                                    {.bytes = MiB(4), .kinds = {.fd = false, .cuda_ipc = true}}, effects);
                    });
  }
  // Frees what Ask() was answered with.
  void Free(const core::AllocateResult& made) {
    RecordedCall call;
    broker_->Submit(broker_->NewCall(), &call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Free(now, id, Caller(), {.sequence = 6},
                                {.handle = made.block.handle, .let_go = {made.import}}, effects);
                    });
    ASSERT_TRUE(call.Await().ok());
    broker_->CarryOn();
  }
  bool Becomes(Bytes charged) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (Charged() != charged && absl::Now() < deadline) std::this_thread::yield();
    return Charged() == charged;
  }

  FakeWorker context_;
};

TEST_F(ContextKeeperTest, AHandleComesAndTheBlockGoesWithoutAnythingInCustody) {
  RecordedCall call;
  Ask(&call);
  StartContext();
  ASSERT_EQ(context_.Next(), worker::Kind::kCreate);
  context_.AnswerByHandle(sink_.made);
  const absl::StatusOr<core::Response> made = call.Await();
  ASSERT_TRUE(made.ok()) << made.status();
  const auto& result = std::get<core::AllocateResult>(*made);
  EXPECT_EQ(result.ipc_handle->bytes[0], std::byte{9});
  EXPECT_TRUE(VaultIsAskedNothing());
  Free(result);
  EXPECT_EQ(context_.Next(), worker::Kind::kRelease);
  EXPECT_TRUE(worker_.Silent()) << "the other one has nothing to do with it";
  context_.AnswerRelease(sink_.made);
  EXPECT_TRUE(Becomes(MiB(2)));
}

TEST_F(ContextKeeperTest, WhatItMadeIsFreeWithItsEndAndTheOtherWorkersBlocksAreThere) {
  RecordedCall call;
  Ask(&call);
  StartContext();
  ASSERT_EQ(context_.Next(), worker::Kind::kCreate);
  context_.AnswerByHandle(sink_.made);
  const absl::StatusOr<core::Response> made = call.Await();
  ASSERT_TRUE(made.ok());
  context_.Die();
  keeper_->OnWorkerNews({.lane = Lane::kContext, .state = custody::WorkerState::kIdle, .generation = 2});
  EXPECT_EQ(Charged(), MiB(6)) << "its owner has it";
  Free(std::get<core::AllocateResult>(*made));
  EXPECT_TRUE(Becomes(MiB(2)));
  EXPECT_TRUE(MemoryIsHeld());
}

TEST_F(ContextKeeperTest, WhatItsContextTakesIsCharged) {
  StartContext();
  context_.Begun(MiB(8));
  EXPECT_TRUE(Becomes(MiB(10)));
  context_.Die();
  keeper_->OnWorkerNews({.lane = Lane::kContext, .state = custody::WorkerState::kIdle, .generation = 2});
  EXPECT_TRUE(Becomes(MiB(2)));
}

TEST_F(ContextKeeperTest, AWorkerThatMakesWhatNobodyAskedForIsEnded) {
  StartContext();
  context_.AnswerByHandle(BlockId(77));
  EXPECT_TRUE(context_.IsHungUp());
}

TEST_F(ContextKeeperTest, WhatItMadeForTheBrokersBeforeIsGivenBackOnce) {
  keeper_->OnWorkerNews({.lane = Lane::kContext, .generation = 1});
  const BlockId next(last_id_ + 1);
  keeper_->Expect(next);
  keeper_->WorkerIsUp(0, Lane::kContext, context_.Start(), /*at_work=*/true);
  EXPECT_EQ(context_.Next(), worker::Kind::kBegin);
  RecordedCall call;
  Ask(&call);
  // It has just been started: one broker began, asked for a block and died before it heard anything.
  context_.BegunOf(kEarlierEpoch, MiB(1));
  context_.AnswerByHandle(next);
  context_.Keeps(next);
  context_.Begun(MiB(1));
  ASSERT_EQ(context_.Next(), worker::Kind::kCreate) << "it has it, and says so once more";
  context_.AnswerByHandle(next);
  const absl::StatusOr<core::Response> made = call.Await();
  ASSERT_TRUE(made.ok()) << made.status();
  Free(std::get<core::AllocateResult>(*made));
  EXPECT_EQ(context_.Next(), worker::Kind::kRelease);
  context_.AnswerRelease(next);
  EXPECT_TRUE(Becomes(MiB(3)));
  EXPECT_TRUE(context_.Silent());
}

TEST_F(ContextKeeperTest, OfWhatAnEarlierBrokerLeftThereOnlyWhatTheCoreKnowsStays) {
  keeper_->OnWorkerNews({.lane = Lane::kContext, .generation = 1});
  keeper_->Expect(BlockId(5));
  keeper_->WorkerIsUp(0, Lane::kContext, context_.Start(), /*at_work=*/true);
  EXPECT_EQ(context_.Next(), worker::Kind::kBegin);
  // Made for the earlier broker, which the list that follows has as well.
  context_.AnswerByHandle(BlockId(77));
  context_.Keeps(BlockId(5));
  context_.Keeps(BlockId(77));
  RecordedCall call;
  Ask(&call);
  context_.Begun(MiB(1));
  EXPECT_EQ(context_.Next(), worker::Kind::kRelease) << "what nobody knows";
  EXPECT_EQ(context_.Next(), worker::Kind::kCreate) << "and then what was asked meanwhile";
  EXPECT_TRUE(Becomes(MiB(7)));
}

}  // namespace
}  // namespace berth
