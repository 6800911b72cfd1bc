// Workers that were at work for earlier brokers, and their answers to those brokers' requests, over real sockets.

#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <variant>

#include "daemon/broker/block_manager.h"
#include "daemon/broker/testing/block_manager_harness.h"
#include "daemon/broker/testing/recorded_call.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// A worker that has been at work for an earlier broker.
class EarlierWorkerTest : public BlockManagerTest {
 protected:
  // Answers that block's create with an fd. Returns its other end, which hangs up when the last copy is closed.
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
    manager_->OnWorkerNews({.state = fd_store::WorkerState::kGone});
    manager_->WorkerIsUp(0, WorkerKind::kMain, worker_.Start(), /*at_work=*/true);
    EXPECT_EQ(worker_.Next(), worker::Kind::kBegin);
  }
  void Ask(RecordedCall* call) {
    broker_->Submit(broker_->NewCall(), call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Allocate(now, id, Caller(), {.sequence = 7}, {.bytes = MiB(4)}, effects);
                    });
  }
};

TEST_F(EarlierWorkerTest, NewRequestsWaitForEarlierAnswers) {
  Replace();
  RecordedCall call;
  Ask(&call);
  EXPECT_TRUE(worker_.Silent());
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kCreate);
}

TEST_F(EarlierWorkerTest, UnreportedBlockAnswersRepeatedRequest) {
  // The core draws consecutive ids.
  const BlockId next(last_id_ + 1);
  manager_->Expect(next);
  Replace();
  RecordedCall call;
  Ask(&call);
  const UniqueFd made = AnswerMade(next);
  worker_.Begun();
  const absl::StatusOr<core::Response> answer = call.Await();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(std::get<core::AllocateResult>(*answer).block.handle.block, next);
  EXPECT_TRUE(worker_.Silent()) << "it is there already";
  const absl::StatusOr<BrokerRequest> put = supervisor_->Read();
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(std::get<PutRequest>(*put).key.id, next.value());
}

TEST_F(EarlierWorkerTest, PendingAnswersAreReadBeforeNewRequests) {
  const BlockId next(last_id_ + 1);
  manager_->Expect(next);
  Replace();
  RecordedCall call;
  Ask(&call);
  // The worker has just been started: one broker sent Begin, requested a block and died before any answer.
  worker_.BegunOf(kEarlierEpoch);
  const UniqueFd made = AnswerMade(next);
  EXPECT_TRUE(Readable(supervisor_->fd(), kPatience)) << "the connection remains open";
  EXPECT_TRUE(worker_.Silent()) << "it was asked for what it had been asked for, and would make it twice";
  worker_.Begun();
  ASSERT_TRUE(call.Await().ok());
  EXPECT_TRUE(worker_.Silent());
  EXPECT_TRUE(manager_->Find(next).ok());
}

TEST_F(EarlierWorkerTest, DuplicateBlockEndsWorkerAndFirstStays) {
  Replace();
  const UniqueFd second = AnswerMade(handle_.block);
  EXPECT_TRUE(worker_.IsHungUp());
  EXPECT_TRUE(manager_->Find(handle_.block).ok());
  EXPECT_TRUE(SupervisorIsAskedNothing());
  EXPECT_TRUE(MemoryIsHeld());
}

TEST_F(EarlierWorkerTest, BlockMadeForNoRequestIsReleased) {
  Replace();
  const UniqueFd made = AnswerMade(BlockId(99));
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
}

TEST_F(EarlierWorkerTest, BlockInServiceManagerFdStoreOutlivesWorkersCopy) {
  // The earlier broker made the worker hold the fd, and the supervisor has not dropped it.
  Replace();
  worker_.AnswerRelease(handle_.block);
  FreeBlock();
  EXPECT_EQ(Charged(), MiB(2));
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(SupervisorDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(EarlierWorkerTest, FailedReleaseIsRequestedAgain) {
  // Simulates another broker's core that is freeing the block; only the worker has its fd.
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(SupervisorDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  manager_ = std::make_unique<BlockManager>(loop_.get(), broker_.get(), fd_store_.get(), kEpoch);
  broker_->Step([](core::Core& core, absl::Time now, core::Effects* effects) {
    core.WorkerDown(now, 0, WorkerKind::kMain, core::DeviceState::kRebuilding, effects);
  });
  manager_->WorkerIsUp(0, WorkerKind::kMain, worker_.Start(), /*at_work=*/true);
  EXPECT_EQ(worker_.Next(), worker::Kind::kBegin);
  worker_.AnswerRelease(handle_.block, absl::StatusCode::kInternal);
  worker_.Begun();
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  EXPECT_EQ(Charged(), MiB(2));
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(EarlierWorkerTest, BlockClosedByItsOnlyWorkerIsReleased) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(SupervisorDrops());
  manager_ = std::make_unique<BlockManager>(loop_.get(), broker_.get(), fd_store_.get(), kEpoch);
  broker_->Step([](core::Core& core, absl::Time now, core::Effects* effects) {
    core.WorkerDown(now, 0, WorkerKind::kMain, core::DeviceState::kRebuilding, effects);
  });
  manager_->WorkerIsUp(0, WorkerKind::kMain, worker_.Start(), /*at_work=*/true);
  EXPECT_EQ(worker_.Next(), worker::Kind::kBegin);
  worker_.AnswerRelease(handle_.block);
  EXPECT_EQ(Charged(), MiB(2)) << "it may have been only one of several copies";
  worker_.Begun();
  EXPECT_TRUE(BecomesFree());
}

}  // namespace
}  // namespace berth
