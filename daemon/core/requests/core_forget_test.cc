#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

AcquireRequest One(const std::string& key) { return {.pool = "gpu-tests", .holder_key = key}; }

ForgetOutcome Outcome(const CoreHarness& h, CallId call) { return h.Get<ForgetResult>(call).outcome; }

TEST(CoreForgetTest, ForgottenWaiterLeavesAndCallIsCancelled) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  h.MustAcquire(a, One("1"));
  h.MustAcquire(a, One("2"));
  const CallId waiting = h.Acquire(b, One("1"));
  const CallId forget = h.Forget(b, b.sequence);
  EXPECT_EQ(Outcome(h, forget), ForgetOutcome::kCancelled);
  EXPECT_TRUE(h.Refused(waiting, Reason::kCancelled));
  EXPECT_EQ(h.Pool().waiters, 0);
  EXPECT_EQ(Outcome(h, h.Forget(b, b.sequence)), ForgetOutcome::kCancelled);
}

TEST(CoreForgetTest, ForgottenPermitIsReleasedOnce) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  h.MustAcquire(a, One("1"));
  h.MustAcquire(b, One("1"));
  const CallId waiting = h.Acquire(b, One("2"));
  EXPECT_EQ(Outcome(h, h.Forget(a, a.sequence)), ForgetOutcome::kUndone);
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  EXPECT_EQ(Outcome(h, h.Forget(a, a.sequence)), ForgetOutcome::kUndone);
  EXPECT_EQ(h.Pool().out, 2);
  // A late arrival of the request is refused.
  const CallId late = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Acquire(h.now, call, a.caller(), a.Again(), One("1"), effects);
  });
  EXPECT_TRUE(h.Refused(late, Reason::kRequestForgotten));
}

TEST(CoreForgetTest, ForgetUndoesNestedAcquireAlone) {
  CoreHarness h;
  Peer a = h.Open();
  const AcquireResult outer = h.MustAcquire(a, One("1"));
  h.MustAcquire(a, One("1"));
  EXPECT_EQ(Outcome(h, h.Forget(a, 2)), ForgetOutcome::kUndone);
  EXPECT_EQ(h.Pool().out, 1);
  h.Release(a, outer.acquisition);
  EXPECT_EQ(Outcome(h, h.Forget(a, 1)), ForgetOutcome::kNothingToDo);
  EXPECT_EQ(h.Pool().out, 0);
}

TEST(CoreForgetTest, ForgottenUnknownRequestIsRejectedOnArrival) {
  CoreHarness h;
  Peer a = h.Open();
  EXPECT_EQ(Outcome(h, h.Forget(a, 1)), ForgetOutcome::kRemembered);
  const std::string before = h.Accounts();
  EXPECT_TRUE(h.Refused(h.Acquire(a, One("1")), Reason::kRequestForgotten));
  EXPECT_EQ(h.Accounts(), before);
  EXPECT_EQ(Outcome(h, h.Forget(a, 1)), ForgetOutcome::kRemembered);
  EXPECT_TRUE(h.Refused(h.Forget(a, 0), Reason::kInvalidField));
}

TEST(CoreForgetTest, TombstonesAreBoundedAndPruned) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.answers.per_channel = 2;
  CoreHarness h(config);
  Peer a = h.Open();
  h.Forget(a, 11);
  h.Forget(a, 12);
  const CallId full = h.Forget(a, 13);
  EXPECT_TRUE(h.Refused(full, Reason::kLimit));
  EXPECT_EQ(h.NamedValue(full, "what"), "forgotten_per_channel");
  a.sequence = 12;
  const CallId pruning = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Acquire(h.now, call, a.caller(), {.sequence = 20, .answered_below = 13}, One("1"), effects);
  });
  EXPECT_TRUE(h.StatusOf(pruning).ok());
  EXPECT_EQ(Outcome(h, h.Forget(a, 13)), ForgetOutcome::kRemembered);
  EXPECT_EQ(Outcome(h, h.Forget(a, 5)), ForgetOutcome::kNothingToDo);
}

TEST(CoreForgetTest, ForgottenReleaseFreeGrantOrRefusalUndoesNothing) {
  CoreHarness h;
  Peer a = h.Open();
  const AcquireResult held = h.MustAcquire(a, One("1"));
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  h.Get<GrantResult>(h.Grant(a, block.block.handle, a.tenant));
  EXPECT_EQ(Outcome(h, h.Forget(a, a.sequence)), ForgetOutcome::kNothingToDo);
  h.Release(a, held.acquisition);
  EXPECT_EQ(Outcome(h, h.Forget(a, a.sequence)), ForgetOutcome::kNothingToDo);
  h.Free(a, block.block.handle);
  EXPECT_EQ(Outcome(h, h.Forget(a, a.sequence)), ForgetOutcome::kNothingToDo);
  h.Acquire(a, {.pool = "none", .holder_key = "1"});
  EXPECT_EQ(Outcome(h, h.Forget(a, a.sequence)), ForgetOutcome::kNothingToDo);
}

TEST(CoreForgetTest, ForgottenPendingBlockIsReleasedOnCreation) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId making = h.Allocate(a, MiB(2));
  EXPECT_EQ(Outcome(h, h.Forget(a, a.sequence)), ForgetOutcome::kUndone);
  EXPECT_TRUE(h.Refused(making, Reason::kCancelled));
  h.WorkOnce();
  EXPECT_EQ(h.last_effects, "release");
  h.WorkOnce();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
  EXPECT_TRUE(h.deliveries.empty());
}

TEST(CoreForgetTest, ForgottenAllocationLeavesDeviceQueue) {
  CoreHarness h;
  Peer a = h.Open();
  h.Do([&](Core& core, Effects* effects) {
    core.WorkerDown(h.now, 0, WorkerKind::kMain, DeviceState::kRebuilding, effects);
  });
  const CallId waiting = h.Allocate(a, MiB(2));
  EXPECT_EQ(Outcome(h, h.Forget(a, a.sequence)), ForgetOutcome::kCancelled);
  EXPECT_TRUE(h.Refused(waiting, Reason::kCancelled));
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreForgetTest, ForgottenDeliveredBlockWaitsForRelease) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  EXPECT_EQ(Outcome(h, h.Forget(a, a.sequence)), ForgetOutcome::kUndone);
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(2));
  EXPECT_EQ(h.deliveries.back().delivery.what, attach::DeliveryKind::kRecall);
  h.LetGo(a, block.import);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreForgetTest, ForgottenBlockWithUnsentFdIsReleasedAtOnce) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.unacknowledged_fds_per_channel = 1;
  CoreHarness h(config);
  Peer a = h.Open();
  h.MustAllocate(a, MiB(2));
  h.MustAllocate(a, MiB(4));
  ASSERT_EQ(h.deliveries.size(), 1);
  EXPECT_EQ(Outcome(h, h.Forget(a, a.sequence)), ForgetOutcome::kUndone);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).outstanding(), MiB(2));
  h.Acknowledge(a, 1);
  EXPECT_EQ(h.deliveries.size(), 1);
}

TEST(CoreForgetTest, ForgottenImportEndsUnlessItsFdWasSent) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.unacknowledged_fds_per_channel = 2;
  CoreHarness h(config);
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  const ImportId sent = h.Get<ImportResult>(h.Import(a, block.block.handle)).import;
  const uint64_t sent_sequence = a.sequence;
  h.Get<ImportResult>(h.Import(a, block.block.handle));
  EXPECT_EQ(Outcome(h, h.Forget(a, a.sequence)), ForgetOutcome::kUndone);
  EXPECT_EQ(h.core->ListBlocks(a.caller())[0].imports.size(), 2);
  EXPECT_EQ(Outcome(h, h.Forget(a, sent_sequence)), ForgetOutcome::kUndone);
  EXPECT_EQ(h.core->ListBlocks(a.caller())[0].imports.size(), 2);
  h.LetGo(a, sent);
  EXPECT_EQ(h.core->ListBlocks(a.caller())[0].imports.size(), 1);
  EXPECT_EQ(h.BytesOf(0).live, MiB(2));
}

}  // namespace
}  // namespace berth::core
