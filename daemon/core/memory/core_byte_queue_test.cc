#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

AllocateRequest Patient(Bytes bytes, absl::Time deadline = absl::InfiniteFuture()) {
  return {.bytes = bytes, .wait = true, .deadline = deadline};
}

struct Full : CoreHarness {
  explicit Full(const Config& config = DefaultConfig()) : CoreHarness(config) {
    holder = Open(1001);
    big = MustAllocate(holder, MiB(12));
    small = MustAllocate(holder, MiB(4));
  }
  void FreeBig() {
    Free(holder, big.block.handle, {big.import});
    WorkAll();
  }
  void FreeSmall() {
    Free(holder, small.block.handle, {small.import});
    WorkAll();
  }
  Peer holder;
  AllocateResult big;
  AllocateResult small;
};

TEST(CoreByteQueueTest, PatientRequestGetsReleasedBytes) {
  Full h;
  Peer a = h.Open();
  const CallId waiting = h.Allocate(a, Patient(MiB(8)));
  EXPECT_FALSE(h.Answered(waiting));
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(8)), Reason::kOverBudget));
  h.FreeSmall();
  EXPECT_FALSE(h.Answered(waiting));
  h.FreeBig();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
}

TEST(CoreByteQueueTest, RequestAboveLimitNeverWaits) {
  Full h;
  Peer a = h.Open();
  EXPECT_TRUE(h.Refused(h.Allocate(a, Patient(MiB(18))), Reason::kOverBudget));
  // Lowering a limit below the waiting request ends its wait.
  const CallId waiting = h.Allocate(a, Patient(MiB(8)));
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.session, .limit = MiB(6)}, &a).ok());
  EXPECT_TRUE(h.Refused(waiting, Reason::kOverBudget));
  EXPECT_EQ(h.NamedValue(waiting, "layer"), "session");
}

TEST(CoreByteQueueTest, WaitTimesOutNamingMissingBytes) {
  Full h;
  Peer a = h.Open();
  const std::string before = h.Accounts();
  const CallId waiting = h.Allocate(a, Patient(MiB(8), h.now + absl::Seconds(2)));
  EXPECT_EQ(h.core->next_deadline(), h.now + absl::Seconds(2));
  h.now += absl::Seconds(2);
  h.Do([&](Core& core, Effects* effects) { core.Tick(h.now, effects); });
  EXPECT_TRUE(h.Refused(waiting, Reason::kWaitTimedOut));
  EXPECT_EQ(h.NamedValue(waiting, "layer"), "device");
  EXPECT_EQ(h.NamedValue(waiting, "requested"), std::to_string(MiB(8).count()));
  EXPECT_EQ(h.NamedValue(waiting, "remaining"), "0");
  EXPECT_EQ(h.Accounts(), before);
  EXPECT_EQ(h.core->next_deadline(), absl::InfiniteFuture());
}

TEST(CoreByteQueueTest, LateBytesGrantNoTimedOutWaiter) {
  Full h;
  Peer a = h.Open();
  const CallId waiting = h.Allocate(a, Patient(MiB(8), h.now + absl::Seconds(2)));
  h.Free(h.holder, h.big.block.handle, {h.big.import});
  h.now += absl::Seconds(3);
  h.WorkOnce();
  EXPECT_TRUE(h.Refused(waiting, Reason::kWaitTimedOut));
}

TEST(CoreByteQueueTest, RetryTakesPlaceWithItsDeadline) {
  Full h;
  Peer a = h.Open(), b = h.Open();
  const CallId first = h.Allocate(a, Patient(MiB(8), h.now + absl::Seconds(2)));
  const CallId behind = h.Allocate(b, Patient(MiB(8)));
  const CallId again = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Allocate(h.now, call, a.caller(), a.Again(), Patient(MiB(8), h.now + absl::Seconds(9)), effects);
  });
  EXPECT_TRUE(h.Refused(first, Reason::kCancelled));
  EXPECT_EQ(h.core->next_deadline(), h.now + absl::Seconds(9));
  h.FreeBig();
  EXPECT_TRUE(h.StatusOf(again).ok());
  EXPECT_FALSE(h.Answered(behind));
}

TEST(CoreByteQueueTest, CancelledByteWaitLeavesNoTrace) {
  Full h;
  Peer a = h.Open();
  const std::string before = h.Accounts();
  const CallId waiting = h.Allocate(a, Patient(MiB(8)));
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, waiting, effects); });
  EXPECT_TRUE(h.Refused(waiting, Reason::kCancelled));
  EXPECT_EQ(h.Accounts(), before);
  const CallId other = h.Allocate(a, Patient(MiB(8)));
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(a, a.sequence)).outcome, ForgetOutcome::kCancelled);
  EXPECT_TRUE(h.Refused(other, Reason::kCancelled));
  const CallId ended = h.Allocate(a, Patient(MiB(8)));
  h.HangUp(a);
  EXPECT_TRUE(h.Refused(ended, Reason::kSessionEnded));
  h.FreeBig();
  EXPECT_EQ(h.BytesOf(0).live, MiB(4));
}

TEST(CoreByteQueueTest, EqualByteWaitersAreServedInOrder) {
  Full h;
  Peer a = h.Open(), b = h.Open(), c = h.Open();
  const CallId first = h.Allocate(a, Patient(MiB(6)));
  const CallId second = h.Allocate(b, Patient(MiB(6)));
  const CallId third = h.Allocate(c, Patient(MiB(6)));
  h.FreeBig();
  EXPECT_TRUE(h.StatusOf(first).ok());
  EXPECT_TRUE(h.StatusOf(second).ok());
  EXPECT_FALSE(h.Answered(third));
}

TEST(CoreByteQueueTest, LargeWaiterHasLimitedPassesAndHoldTime) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_reserve = 2;
  config.limits.longest_reserve = absl::Seconds(3);
  Full h(config);
  Peer a = h.Open();
  const CallId large = h.Allocate(a, Patient(MiB(16)));
  Peer b = h.Open();
  h.FreeSmall();
  for (int i = 0; i < 2; ++i) {
    const AllocateResult passing = h.MustAllocate(b, MiB(4));
    h.Free(b, passing.block.handle, {passing.import});
    h.WorkAll();
  }
  // The capacity is free, but reserved.
  const CallId behind = h.Allocate(b, MiB(4));
  EXPECT_FALSE(h.Answered(behind));
  EXPECT_EQ(h.core->next_deadline(), h.now + absl::Seconds(3));
  h.now += absl::Seconds(3);
  h.Do([&](Core& core, Effects* effects) { core.Tick(h.now, effects); });
  h.WorkAll();
  const AllocateResult passed = h.Get<AllocateResult>(behind);
  EXPECT_FALSE(h.Answered(large));
  // After two more passes the capacity is reserved for it again, and now it is served.
  h.Free(b, passed.block.handle, {passed.import});
  h.WorkAll();
  const AllocateResult last = h.MustAllocate(b, MiB(4));
  const CallId late = h.Allocate(b, MiB(4));
  EXPECT_TRUE(h.Refused(late, Reason::kOverBudget));
  h.Free(b, last.block.handle, {last.import});
  const CallId waits = h.Allocate(b, MiB(2));
  h.FreeBig();
  EXPECT_TRUE(h.StatusOf(large).ok());
  EXPECT_TRUE(h.Refused(waits, Reason::kOverBudget));
}

TEST(CoreByteQueueTest, WaiterLackingOwnBudgetDelaysNoOthers) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_reserve = 1;
  CoreHarness h(config);
  Peer a = h.Open(1000), sibling = h.Open(1000), other = h.Open(1001);
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.tenant, .limit = MiB(4)}).ok());
  h.MustAllocate(a, MiB(2));
  const CallId waiting = h.Allocate(a, Patient(MiB(4)));
  h.MustAllocate(sibling, MiB(2));
  h.MustAllocate(other, MiB(4));
  h.MustAllocate(other, MiB(4));
  EXPECT_FALSE(h.Answered(waiting));
}

TEST(CoreByteQueueTest, WarmBlockGoesToRequesterWithBudget) {
  Config config = CoreHarness::DefaultConfig();
  config.warm_blocks_per_size = 1;
  CoreHarness h(config);
  Peer a = h.Open(), b = h.Open();
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.session, .limit = MiB(2)}).ok());
  h.MustAllocate(a, MiB(2));
  EXPECT_EQ(h.BytesOf(0).warm, MiB(2));
  const CallId refused = h.Allocate(a, MiB(2));
  EXPECT_EQ(h.NamedValue(refused, "layer"), "session");
  EXPECT_EQ(h.BytesOf(0).warm, MiB(2));
  const CallId call = h.Allocate(b, MiB(2));
  EXPECT_EQ(h.last_effects, "deliver reply create");
  EXPECT_TRUE(h.StatusOf(call).ok());
}

TEST(CoreByteQueueTest, BudgetLeftByQuarantinedBlockServesWaiter) {
  CoreHarness h;
  Peer a = h.Open(1000), other = h.Open(1001);
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.tenant, .limit = MiB(4)}).ok());
  const AllocateResult made = h.MustAllocate(a, MiB(4));
  h.Grant(a, made.block.handle, other.tenant);
  h.Get<ImportResult>(h.Import(other, made.block.handle));
  const CallId waiting = h.Allocate(a, Patient(MiB(4)));
  EXPECT_FALSE(h.Answered(waiting));
  // From now on only its importer's tenant is charged.
  h.Free(a, made.block.handle, {made.import});
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(4));
}

TEST(CoreByteQueueTest, FullQueueRejectsOnlyRequestsThatMustWait) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.waiting_allocations_per_device = 2;
  CoreHarness h(config);
  Peer a = h.Open(1000), b = h.Open(1001), c = h.Open(1002);
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.tenant, .limit = MiB(4)}).ok());
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = b.tenant, .limit = MiB(4)}).ok());
  h.MustAllocate(a, MiB(4));
  h.MustAllocate(b, MiB(4));
  const CallId waiting = h.Allocate(a, Patient(MiB(2)));
  EXPECT_EQ(h.NamedValue(h.Allocate(a, Patient(MiB(2))), "what"), "waiting_allocations_per_device");
  EXPECT_FALSE(h.Answered(h.Allocate(b, Patient(MiB(2)))));
  h.MustAllocate(c, MiB(6));
  EXPECT_EQ(h.NamedValue(h.Allocate(c, Patient(MiB(4))), "what"), "waiting_allocations_per_device");
  EXPECT_FALSE(h.Answered(waiting));
}

TEST(CoreByteQueueTest, StoppedDeviceRejectsByteWaiters) {
  Full h;
  Peer a = h.Open();
  const CallId waiting = h.Allocate(a, Patient(MiB(8)));
  h.Do([&](Core& core, Effects* effects) {
    core.WorkerDown(h.now, 0, WorkerKind::kMain, DeviceState::kStopped, effects);
  });
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceStopped));
}

}  // namespace
}  // namespace berth::core
