// Fds of blocks between worker, broker and supervisor, over real sockets.

#include "daemon/broker/block_manager.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "daemon/broker/testing/block_manager_harness.h"
#include "daemon/broker/testing/recorded_call.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST_F(BlockManagerTest, BlockReleaseLeavesLastCloseToWorker) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(worker_.Silent()) << "the supervisor still has it";
  EXPECT_TRUE(SupervisorDrops());
  EXPECT_TRUE(MemoryIsHeld());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  EXPECT_FALSE(MemoryIsHeld()) << "a copy remains open";
  EXPECT_EQ(Charged(), MiB(2)) << "the worker has not said so yet";
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockManagerTest, KilledWorkersBlockIsReleasedByNextWorker) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  worker_.Die();
  manager_->OnWorkerNews({.state = fd_store::WorkerState::kGone});
  EXPECT_EQ(Charged(), MiB(2));
  EXPECT_TRUE(SupervisorDrops());
  EXPECT_TRUE(MemoryIsHeld()) << "the supervisor was the last to close";
  EXPECT_EQ(Charged(), MiB(2));
  StartWorker();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(MemoryIsHeld());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  EXPECT_FALSE(MemoryIsHeld());
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockManagerTest, NextWorkerMayStartBeforeSupervisorDropsFd) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  worker_.Die();
  manager_->OnWorkerNews({.state = fd_store::WorkerState::kGone});
  StartWorker();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(worker_.Silent());
  EXPECT_TRUE(SupervisorDrops());
  EXPECT_TRUE(SupervisorIsAskedNothing());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
  EXPECT_FALSE(MemoryIsHeld());
}

TEST_F(BlockManagerTest, FailedReleaseStaysChargedUntilReap) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(SupervisorDrops());
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

TEST_F(BlockManagerTest, BlockEndsWithWorkerHoldingOnlyCopy) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(SupervisorDrops());
  worker_.Die();
  manager_->OnWorkerNews({.state = fd_store::WorkerState::kGone});
  EXPECT_FALSE(MemoryIsHeld());
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockManagerTest, BlockOfAbandonedWorkerIsReleasedAtItsEnd) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(SupervisorDrops());
  manager_->OnWorkerNews({.state = fd_store::WorkerState::kAbandoned});
  EXPECT_EQ(Charged(), MiB(2)) << "the driver has not got it back";
  worker_.Die();
  manager_->OnWorkerNews({.state = fd_store::WorkerState::kStopped});
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockManagerTest, AnswerBeforeWorkersEndCounts) {
  FreeBlock();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(SupervisorDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  worker_.Die();
  manager_->OnWorkerNews({.state = fd_store::WorkerState::kGone});
  EXPECT_EQ(Charged(), Bytes(0));
}

TEST_F(BlockManagerTest, BlockWithoutWorkerWaitsForNext) {
  worker_.Die();
  manager_->OnWorkerNews({.state = fd_store::WorkerState::kGone});
  FreeBlock();
  EXPECT_TRUE(SupervisorIsAskedNothing());
  EXPECT_TRUE(MemoryIsHeld());
  StartWorker();
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(SupervisorDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockManagerTest, FdlessReleaseReachesWorkerLater) {
  // The worker's socket is full, so an fd for the worker needs a duplicate.
  constexpr uint64_t kRequests = 1'000;
  for (uint64_t i = 0; i < kRequests; ++i) {
    manager_->Create({.device = 0, .worker_kind = WorkerKind::kMain, .block = BlockId(1'000 + i), .bytes = MiB(2)});
  }
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  // A duplicate is never a standard fd, and fd 3 is taken.
  ASSERT_GE(::fcntl(3, F_GETFD), 0);
  const rlimit none = {.rlim_cur = 4, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  FreeBlock();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(SupervisorIsAskedNothing());
  for (uint64_t i = 0; i < kRequests; ++i) ASSERT_EQ(worker_.Next(), worker::Kind::kCreate);
  EXPECT_EQ(worker_.Next(), worker::Kind::kHold);
  EXPECT_TRUE(SupervisorDrops());
  EXPECT_EQ(worker_.Next(), worker::Kind::kRelease);
  worker_.AnswerRelease(handle_.block);
  EXPECT_TRUE(BecomesFree());
}

TEST_F(BlockManagerTest, PendingPutIsNotRequestedAgain) {
  RecordedCall call;
  broker_->Submit(broker_->NewCall(), &call,
                  [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                    core.Allocate(now, id, Caller(), {.sequence = 2}, {.bytes = MiB(4)}, effects);
                  });
  ASSERT_EQ(worker_.Next(), worker::Kind::kCreate);
  const BlockId block = sink_.made;
  // The supervisor's socket is full, so the fd waits for space.
  for (uint64_t id = 1; id < 2'000; ++id) fd_store_->Drop(fd_store::KeyOf(fd_store::Kind::kPidfd, id));
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd watched(fds[0]);
  worker_.AnswerCreate(block, fds[1]);
  ::close(fds[1]);
  ASSERT_TRUE(worker_.IsHeard());
  // The core had sent the worker this request before.
  manager_->Create({.device = 0, .worker_kind = WorkerKind::kMain, .block = block, .bytes = MiB(4)});
  EXPECT_TRUE(worker_.Silent());
  bool put = false;
  while (!put && Readable(supervisor_->fd(), kPatience)) {
    absl::StatusOr<BrokerRequest> request = supervisor_->Read();
    ASSERT_TRUE(request.ok()) << request.status();
    put = std::holds_alternative<PutRequest>(*request);
    if (put) in_supervisor_[std::get<PutRequest>(*request).key] = std::move(std::get<PutRequest>(*request).fd);
  }
  EXPECT_TRUE(call.Await().ok());
  EXPECT_TRUE(manager_->Find(block).ok());
  EXPECT_TRUE(worker_.Silent());
}

TEST_F(BlockManagerTest, DuplicateBlockEndsWorkerAndFirstStays) {
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd watched(fds[0]);
  worker_.AnswerCreate(handle_.block, fds[1]);
  ::close(fds[1]);
  EXPECT_TRUE(worker_.IsHungUp());
  EXPECT_TRUE(manager_->Find(handle_.block).ok());
  EXPECT_TRUE(SupervisorIsAskedNothing());
  EXPECT_TRUE(MemoryIsHeld());
}

// A second worker of the device, which exports by handles.
class ContextManagerTest : public BlockManagerTest {
 protected:
  void StartContext() {
    manager_->OnWorkerNews({.worker_kind = WorkerKind::kContext, .generation = 1});
    manager_->WorkerIsUp(0, WorkerKind::kContext, context_.Start());
    EXPECT_EQ(context_.Next(), worker::Kind::kBegin);
  }
  void Ask(RecordedCall* call) {
    broker_->Submit(broker_->NewCall(), call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Allocate(now, id, Caller(), {.sequence = 5},
                                    {.bytes = MiB(4), .kinds = {.fd = false, .cuda_ipc = true}}, effects);
                    });
  }
  // Frees the block that Ask() allocated.
  void Free(const core::AllocateResult& made) {
    RecordedCall call;
    broker_->Submit(broker_->NewCall(), &call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Free(now, id, Caller(), {.sequence = 6},
                                {.handle = made.block.handle, .let_go = {made.import}}, effects);
                    });
    ASSERT_TRUE(call.Await().ok());
    broker_->Continue();
  }
  bool Becomes(Bytes charged) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (Charged() != charged && absl::Now() < deadline) std::this_thread::yield();
    return Charged() == charged;
  }

  FakeWorker context_;
};

TEST_F(ContextManagerTest, IpcBlockNeedsNoServiceManagerFdStore) {
  RecordedCall call;
  Ask(&call);
  StartContext();
  ASSERT_EQ(context_.Next(), worker::Kind::kCreate);
  context_.AnswerByHandle(sink_.made);
  const absl::StatusOr<core::Response> made = call.Await();
  ASSERT_TRUE(made.ok()) << made.status();
  const auto& result = std::get<core::AllocateResult>(*made);
  EXPECT_EQ(result.ipc_handle->bytes[0], std::byte{9});
  EXPECT_TRUE(SupervisorIsAskedNothing());
  Free(result);
  EXPECT_EQ(context_.Next(), worker::Kind::kRelease);
  EXPECT_TRUE(worker_.Silent()) << "the other one has nothing to do with it";
  context_.AnswerRelease(sink_.made);
  EXPECT_TRUE(Becomes(MiB(2)));
}

TEST_F(ContextManagerTest, DeathOfContextWorkerFreesOnlyItsBlocks) {
  RecordedCall call;
  Ask(&call);
  StartContext();
  ASSERT_EQ(context_.Next(), worker::Kind::kCreate);
  context_.AnswerByHandle(sink_.made);
  const absl::StatusOr<core::Response> made = call.Await();
  ASSERT_TRUE(made.ok());
  context_.Die();
  manager_->OnWorkerNews({.worker_kind = WorkerKind::kContext, .state = fd_store::WorkerState::kIdle, .generation = 2});
  EXPECT_EQ(Charged(), MiB(6)) << "its owner has it";
  Free(std::get<core::AllocateResult>(*made));
  EXPECT_TRUE(Becomes(MiB(2)));
  EXPECT_TRUE(MemoryIsHeld());
}

TEST_F(ContextManagerTest, ContextBytesAreCharged) {
  StartContext();
  context_.Begun(MiB(8));
  EXPECT_TRUE(Becomes(MiB(10)));
  context_.Die();
  manager_->OnWorkerNews({.worker_kind = WorkerKind::kContext, .state = fd_store::WorkerState::kIdle, .generation = 2});
  EXPECT_TRUE(Becomes(MiB(2)));
}

TEST_F(ContextManagerTest, WorkerWithUnrequestedBlockIsEnded) {
  StartContext();
  context_.AnswerByHandle(BlockId(77));
  EXPECT_TRUE(context_.IsHungUp());
}

TEST_F(ContextManagerTest, BlockMadeForEarlierBrokerIsReleasedOnce) {
  manager_->OnWorkerNews({.worker_kind = WorkerKind::kContext, .generation = 1});
  const BlockId next(last_id_ + 1);
  manager_->Expect(next);
  manager_->WorkerIsUp(0, WorkerKind::kContext, context_.Start(), /*at_work=*/true);
  EXPECT_EQ(context_.Next(), worker::Kind::kBegin);
  RecordedCall call;
  Ask(&call);
  // The worker has just been started: one broker sent Begin, requested a block and died before any answer.
  context_.BegunOf(kEarlierEpoch, MiB(1));
  context_.AnswerByHandle(next);
  context_.Retains(next);
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

TEST_F(ContextManagerTest, EarlierBlocksUnknownToCoreAreReleased) {
  manager_->OnWorkerNews({.worker_kind = WorkerKind::kContext, .generation = 1});
  manager_->Expect(BlockId(5));
  manager_->WorkerIsUp(0, WorkerKind::kContext, context_.Start(), /*at_work=*/true);
  EXPECT_EQ(context_.Next(), worker::Kind::kBegin);
  // Made for the earlier broker, so the following list has it too.
  context_.AnswerByHandle(BlockId(77));
  context_.Retains(BlockId(5));
  context_.Retains(BlockId(77));
  RecordedCall call;
  Ask(&call);
  context_.Begun(MiB(1));
  EXPECT_EQ(context_.Next(), worker::Kind::kRelease) << "what nobody knows";
  EXPECT_EQ(context_.Next(), worker::Kind::kCreate) << "and then what was asked meanwhile";
  EXPECT_TRUE(Becomes(MiB(7)));
}

}  // namespace
}  // namespace berth
