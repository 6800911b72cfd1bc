#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

Config WarmConfig() {
  Config config = CoreHarness::DefaultConfig();
  config.warm_blocks_per_size = 2;
  config.warm_refill_delay = absl::ZeroDuration();
  config.warm_sizes = 2;
  config.warm_limit = MiB(8);
  return config;
}

TEST(CoreAllocateTest, BlockIsReservedMadeAndDeliveredBeforeAnswer) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = h.Allocate(a, Bytes(1));
  EXPECT_EQ(h.last_effects, "create");
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(2));
  EXPECT_EQ(std::get<CreateBlock>(h.jobs[0]).bytes, MiB(2));
  h.WorkOnce();
  EXPECT_EQ(h.last_effects, "deliver reply");
  const AllocateResult result = h.Get<AllocateResult>(call);
  EXPECT_EQ(result.block.bytes, MiB(2));
  EXPECT_EQ(result.block.state, BlockState::kLive);
  EXPECT_EQ(result.block.owner, a.session);
  EXPECT_EQ(result.block.live_since, h.now);
  EXPECT_EQ(result.block.handle.node, 7);
  EXPECT_EQ(result.block.handle.incarnation, 9);
  EXPECT_EQ(result.block.handle.device_uuid, "DEVICE-0");
  EXPECT_EQ(result.block.handle.generation, 1);
  EXPECT_EQ(result.block.handle.block_generation, 1);
  const Deliver& deliver = h.deliveries.at(0);
  EXPECT_EQ(deliver.channel, a.channel);
  EXPECT_EQ(deliver.delivery.what, attach::DeliveryKind::kBlock);
  EXPECT_EQ(deliver.delivery.number, 1);
  EXPECT_EQ(deliver.delivery.sequence, a.sequence);
  EXPECT_EQ(deliver.delivery.block, result.block.handle.block.value());
  EXPECT_EQ(deliver.delivery.import, result.import.value());
  EXPECT_FALSE(deliver.read_only);
  EXPECT_EQ(h.BytesOf(0).live, MiB(2));
  EXPECT_EQ(h.BytesOf(0).reserved, Bytes(0));
}

TEST(CoreAllocateTest, ExactBudgetIsGrantedLargerRequestIsRejected) {
  CoreHarness h;
  Peer a = h.Open();
  h.MustAllocate(a, MiB(10));
  std::string before = h.Accounts();
  const CallId call = h.Allocate(a, Bytes(MiB(6).count() + 1));
  EXPECT_TRUE(h.Refused(call, Reason::kOverBudget));
  EXPECT_EQ(h.NamedValue(call, "layer"), "device");
  EXPECT_EQ(h.NamedValue(call, "device"), "0");
  EXPECT_EQ(h.NamedValue(call, "requested"), std::to_string(MiB(8).count()));
  EXPECT_EQ(h.NamedValue(call, "current"), std::to_string(MiB(10).count()));
  EXPECT_EQ(h.NamedValue(call, "remaining"), std::to_string(MiB(6).count()));
  EXPECT_EQ(h.NamedValue(call, "limit"), std::to_string(MiB(16).count()));
  EXPECT_EQ(h.Accounts(), before);
  h.MustAllocate(a, MiB(6));
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(16));
  before = h.Accounts();
  EXPECT_TRUE(h.Refused(h.Allocate(a, Bytes(1)), Reason::kOverBudget));
  EXPECT_TRUE(h.Refused(h.Allocate(a, GiB(1)), Reason::kOverBudget));
  EXPECT_EQ(h.Accounts(), before);
  // The other device has its own budget.
  h.MustAllocate(a, MiB(16), 1);
}

TEST(CoreAllocateTest, ImpossibleRequestIsRejectedAndChangesNothing) {
  CoreHarness h;
  Peer a = h.Open();
  const std::string before = h.Accounts();
  const CallId zero = h.Allocate(a, Bytes(0));
  EXPECT_TRUE(h.Refused(zero, Reason::kInvalidField));
  EXPECT_EQ(h.NamedValue(zero, "field"), "bytes");
  EXPECT_TRUE(h.Refused(h.Allocate(a, Bytes(UINT64_MAX)), Reason::kOutOfRange));
  EXPECT_TRUE(h.Refused(h.Allocate(a, Bytes(uint64_t{1} << 63)), Reason::kOutOfRange));
  EXPECT_TRUE(h.Refused(h.Allocate(a, Bytes((uint64_t{1} << 63) - 1)), Reason::kOutOfRange));
  EXPECT_TRUE(h.Refused(h.Allocate(a, Bytes((uint64_t{1} << 63) - MiB(2).count())), Reason::kOverBudget));
  const CallId ordinal = h.Allocate(a, MiB(2), kMaxDeviceOrdinals);
  EXPECT_TRUE(h.Refused(ordinal, Reason::kOutOfRange));
  EXPECT_NE(h.StatusOf(ordinal).message().find("64"), absl::string_view::npos) << h.StatusOf(ordinal);
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(2), kMaxDeviceOrdinals - 1), Reason::kNotFound));
  EXPECT_TRUE(h.Refused(h.Allocate(a, {.device_uuid = "GPU-none", .bytes = MiB(2)}), Reason::kNotFound));
  EXPECT_EQ(h.Accounts(), before);
}

TEST(CoreAllocateTest, UuidNamesDeviceAtAnyOrdinal) {
  CoreHarness h;
  Peer a = h.Open();
  h.Allocate(a, {.device = 0, .device_uuid = "DEVICE-1", .bytes = MiB(2)});
  EXPECT_EQ(std::get<CreateBlock>(h.jobs.at(0)).device, 1);
}

TEST(CoreAllocateTest, OverBudgetRequestWaitsOnlyForPendingReleases) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AllocateResult big = h.MustAllocate(a, MiB(12));
  h.Free(a, big.block.handle, {big.import});
  EXPECT_EQ(h.BytesOf(0).retired, MiB(12));
  const CallId waiting = h.Allocate(b, MiB(8));
  const CallId behind = h.Allocate(b, MiB(2));
  EXPECT_FALSE(h.Answered(waiting));
  EXPECT_EQ(h.jobs.size(), 1);
  // The worker releases first, then makes both blocks.
  h.WorkOnce();
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(10));
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  EXPECT_TRUE(h.StatusOf(behind).ok());
}

TEST(CoreAllocateTest, WaitingAllocationFailsWhenReleaseFails) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult big = h.MustAllocate(a, MiB(16));
  h.Free(a, big.block.handle, {big.import});
  const CallId waiting = h.Allocate(a, MiB(2));
  h.WorkOnce(absl::InternalError("no"));
  EXPECT_TRUE(h.Refused(waiting, Reason::kOverBudget));
  EXPECT_EQ(h.BytesOf(0).retired, MiB(16));
  EXPECT_EQ(h.core->ListDevices()[0].failed_releases, 1);
}

TEST(CoreAllocateTest, FullByteQueueRejectsRequest) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.waiting_allocations_per_device = 1;
  CoreHarness h(config);
  Peer a = h.Open();
  const AllocateResult big = h.MustAllocate(a, MiB(16));
  h.Free(a, big.block.handle, {big.import});
  const CallId waiting = h.Allocate(a, MiB(2));
  const std::string before = h.Accounts();
  const CallId refused = h.Allocate(a, MiB(2));
  EXPECT_TRUE(h.Refused(refused, Reason::kLimit));
  EXPECT_EQ(h.NamedValue(refused, "what"), "waiting_allocations_per_device");
  EXPECT_EQ(h.Accounts(), before);
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
}

TEST(CoreAllocateTest, RequestDoesNotWaitForQuarantinedBytes) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult big = h.MustAllocate(a, MiB(16));
  EXPECT_EQ(h.Get<FreeResult>(h.Free(a, big.block.handle)).state, BlockState::kQuarantined);
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(2)), Reason::kOverBudget));
}

TEST(CoreAllocateTest, FailedCreationIsUndoneAndReported) {
  CoreHarness h;
  Peer a = h.Open();
  const std::string before = h.Accounts();
  const CallId call = h.Allocate(a, MiB(2));
  h.WorkOnce(Refuse(Reason::kDriver, "cuMemCreate failed"));
  EXPECT_TRUE(h.Refused(call, Reason::kDriver));
  const CallId full = h.Allocate(a, MiB(2));
  // No release is pending, so the core does not retry.
  h.WorkOnce(Refuse(Reason::kOutOfMemory, "full"));
  EXPECT_TRUE(h.Refused(full, Reason::kOutOfMemory));
  EXPECT_EQ(h.Accounts(), before);
}

TEST(CoreAllocateTest, OutOfMemoryReapsAndRetriesOnce) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult old = h.MustAllocate(a, MiB(4));
  const CallId call = h.Allocate(a, MiB(2));
  const std::variant<CreateBlock, ReleaseBlock> create = h.jobs.front();
  h.Free(a, old.block.handle, {old.import});
  h.WorkOnce(Refuse(Reason::kOutOfMemory, "full"));
  EXPECT_FALSE(h.Answered(call));
  h.WorkOnce();
  EXPECT_EQ(h.last_effects, "create");
  EXPECT_EQ(std::get<CreateBlock>(h.jobs.front()).block, std::get<CreateBlock>(create).block);
  h.WorkOnce(Refuse(Reason::kOutOfMemory, "still full"));
  EXPECT_TRUE(h.Refused(call, Reason::kOutOfMemory));
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreAllocateTest, WarmBlockOfExactSizeIsUsedAndReplaced) {
  CoreHarness h(WarmConfig());
  Peer a = h.Open();
  const AllocateResult first = h.MustAllocate(a, MiB(2));
  EXPECT_EQ(h.BytesOf(0).warm, MiB(4));
  EXPECT_TRUE(h.core->ListBlocks(h.Admin()).size() == 1);
  const CallId call = h.Allocate(a, MiB(2));
  EXPECT_EQ(h.last_effects, "deliver reply create");
  EXPECT_NE(h.Get<AllocateResult>(call).block.handle.block, first.block.handle.block);
  EXPECT_EQ(h.BytesOf(0).live, MiB(4));
  EXPECT_EQ(h.BytesOf(0).warm, MiB(4));
  // The cached blocks do not serve another size.
  h.Allocate(a, MiB(4));
  EXPECT_EQ(h.last_effects, "create");
}

TEST(CoreAllocateTest, WarmCacheIsRefilledAfterDelay) {
  Config config = WarmConfig();
  config.warm_blocks_per_size = 4;
  config.warm_refill_delay = absl::Milliseconds(10);
  CoreHarness h(config);
  Peer a = h.Open();
  // The cache was empty: the refill is immediate.
  h.MustAllocate(a, MiB(2));
  EXPECT_EQ(h.BytesOf(0).warm, MiB(8));
  for (int i = 0; i < 3; ++i) {
    h.now += absl::Milliseconds(6);
    h.Allocate(a, MiB(2));
    EXPECT_EQ(h.last_effects, "deliver reply");
    EXPECT_EQ(h.core->next_deadline(), h.now + absl::Milliseconds(10));
  }
  // One block of four is left: not yet less than a quarter.
  EXPECT_EQ(h.BytesOf(0).warm, MiB(2));
  h.now += absl::Milliseconds(10);
  h.Tick();
  EXPECT_EQ(h.last_effects, "create create create");
  h.WorkAll();
  EXPECT_EQ(h.core->next_deadline(), absl::InfiniteFuture());
}

TEST(CoreAllocateTest, PendingWarmBlockIsTakenOverByRequest) {
  CoreHarness h(WarmConfig());
  Peer a = h.Open();
  h.Allocate(a, MiB(2));
  h.WorkOnce();
  ASSERT_EQ(h.jobs.size(), 2);
  const CallId call = h.Allocate(a, MiB(2));
  EXPECT_EQ(h.last_effects, "");
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(2));
  h.WorkOnce();
  EXPECT_EQ(h.last_effects, "deliver reply create");
  EXPECT_TRUE(h.StatusOf(call).ok());
}

TEST(CoreAllocateTest, DeliveredBlockNeverBecomesWarmAgain) {
  CoreHarness h(WarmConfig());
  Peer a = h.Open();
  const AllocateResult first = h.MustAllocate(a, MiB(2));
  h.Free(a, first.block.handle, {first.import});
  ASSERT_EQ(h.jobs.size(), 1);
  EXPECT_EQ(std::get<ReleaseBlock>(h.jobs[0]).block, first.block.handle.block);
  std::set<BlockId> seen = {first.block.handle.block};
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(seen.insert(h.MustAllocate(a, MiB(2)).block.handle.block).second);
}

TEST(CoreAllocateTest, WarmBytesAreBoundedAndReleasedOnDemand) {
  CoreHarness h(WarmConfig());
  Peer a = h.Open();
  h.MustAllocate(a, MiB(4));
  EXPECT_EQ(h.BytesOf(0).warm, MiB(8));
  // The budget has 4 MiB free and the warm cache 8 MiB: the request needs both.
  const CallId call = h.Allocate(a, MiB(12));
  EXPECT_EQ(h.last_effects, "release release");
  EXPECT_FALSE(h.Answered(call));
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(call).ok());
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(16));
  EXPECT_EQ(h.BytesOf(0).warm, Bytes(0));
}

TEST(CoreAllocateTest, RefusalLeavesWarmBlocks) {
  CoreHarness h(WarmConfig());
  Peer a = h.Open();
  h.MustAllocate(a, MiB(4));
  const std::string before = h.Accounts();
  const CallId call = h.Allocate(a, MiB(14));
  EXPECT_TRUE(h.Refused(call, Reason::kOverBudget));
  EXPECT_EQ(h.NamedValue(call, "remaining"), std::to_string(MiB(12).count()));
  EXPECT_EQ(h.Accounts(), before);
}

TEST(CoreAllocateTest, SizesNotRequestedRecentlyAreNotWarm) {
  CoreHarness h(WarmConfig());
  Peer a = h.Open();
  for (const uint64_t size : {1, 3, 5}) {
    const AllocateResult block = h.MustAllocate(a, MiB(size));
    h.Free(a, block.block.handle, {block.import});
    h.WorkAll();
  }
  // 2, 4 and 6 MiB were requested. No warm block of 2 MiB is left, one of 4 MiB fits, and 6 MiB no longer fits.
  EXPECT_EQ(h.BytesOf(0).warm, MiB(4));
}

TEST(CoreAllocateTest, FailedRefillIsNotRetriedBeforeNextAllocation) {
  CoreHarness h(WarmConfig());
  Peer a = h.Open();
  h.Allocate(a, MiB(2));
  h.WorkOnce();
  h.WorkOnce(absl::InternalError("no"));
  h.WorkOnce(Refuse(Reason::kOutOfMemory, "full"));
  EXPECT_TRUE(h.jobs.empty());
  EXPECT_EQ(h.BytesOf(0).warm, Bytes(0));
  h.MustAllocate(a, MiB(2));
  EXPECT_EQ(h.BytesOf(0).warm, MiB(4));
}

TEST(CoreAllocateTest, WarmBlocksAreReleasedWhenDeviceIsFull) {
  CoreHarness h(WarmConfig());
  Peer a = h.Open();
  h.MustAllocate(a, MiB(2));
  const CallId call = h.Allocate(a, MiB(4));
  h.WorkOnce(Refuse(Reason::kOutOfMemory, "full"));
  EXPECT_EQ(h.last_effects, "release release");
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(call).ok());
}

TEST(CoreAllocateTest, LoweredBudgetDrainsAndRejectsHopelessWaiters) {
  CoreHarness h(WarmConfig());
  Peer a = h.Open();
  const AllocateResult held = h.MustAllocate(a, MiB(4));
  const AllocateResult freed = h.MustAllocate(a, MiB(4));
  h.Free(a, freed.block.handle, {freed.import});
  const CallId waiting = h.Allocate(a, MiB(8));
  EXPECT_TRUE(h.SetBudget({.device = 0, .limit = MiB(4)}).ok());
  EXPECT_TRUE(h.Refused(waiting, Reason::kOverBudget));
  EXPECT_EQ(h.NamedValue(waiting, "limit"), std::to_string(MiB(4).count()));
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(4));
  EXPECT_EQ(h.BytesOf(0).live, held.block.bytes);
  EXPECT_TRUE(IsRefusal(h.SetBudget({.device = 0, .limit = MiB(65)}).status(), Reason::kOutOfRange));
  EXPECT_TRUE(IsRefusal(h.SetBudget({.device = 9, .limit = MiB(6)}).status(), Reason::kNotFound));
  EXPECT_EQ(h.SetBudget({.device = 0, .limit = MiB(64)})->at(0).limit, MiB(64));
  h.MustAllocate(a, MiB(60));
}

TEST(CoreAllocateTest, BlocksAndUnsentFdsHaveLimits) {
  Config config = CoreHarness::DefaultConfig();
  // One user may have half.
  config.limits.blocks = 6;
  config.limits.unacknowledged_fds_per_channel = 1;
  config.limits.queued_deliveries_per_channel = 1;
  CoreHarness h(config);
  Peer a = h.Open(), b = h.Open();
  h.MustAllocate(a, MiB(2));
  h.MustAllocate(a, MiB(2));
  EXPECT_EQ(h.deliveries.size(), 1);
  std::string before = h.Accounts();
  const CallId unsent = h.Allocate(a, MiB(2));
  EXPECT_TRUE(h.Refused(unsent, Reason::kLimit));
  EXPECT_EQ(h.NamedValue(unsent, "what"), "queued_deliveries_per_channel");
  EXPECT_EQ(h.Accounts(), before);
  h.Acknowledge(a, 1);
  EXPECT_EQ(h.deliveries.size(), 2);
  h.MustAllocate(b, MiB(2));
  before = h.Accounts();
  const CallId blocks = h.Allocate(b, MiB(2));
  EXPECT_TRUE(h.Refused(blocks, Reason::kLimit));
  EXPECT_EQ(h.NamedValue(blocks, "what"), "blocks");
  EXPECT_EQ(h.Accounts(), before);
}

TEST(CoreAllocateTest, RetryFindsBlockOfCancelledCall) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateRequest request{.bytes = MiB(2)};
  const CallId call = h.Allocate(a, request);
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, call, effects); });
  EXPECT_TRUE(h.Refused(call, Reason::kCancelled));
  h.WorkAll();
  EXPECT_EQ(h.last_effects, "deliver");
  const CallId retry = h.Ask([&](Core& core, CallId again, Effects* effects) {
    core.Allocate(h.now, again, a.caller(), a.Again(), request, effects);
  });
  EXPECT_EQ(h.Get<AllocateResult>(retry).block.handle.block.value(), h.deliveries[0].delivery.block);
  EXPECT_EQ(h.BytesOf(0).live, MiB(2));
}

TEST(CoreAllocateTest, BlockOfEndedSessionIsReleasedOnCreation) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = h.Allocate(a, MiB(2));
  h.HangUp(a);
  EXPECT_TRUE(h.Refused(call, Reason::kSessionEnded));
  h.Gone(a);
  EXPECT_TRUE(h.core->ListSessions(h.Admin()).empty());
  h.WorkOnce();
  EXPECT_EQ(h.last_effects, "release");
  h.WorkOnce();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
  ASSERT_EQ(h.deliveries.size(), 1u);
  EXPECT_EQ(h.deliveries[0].delivery.what, attach::DeliveryKind::kEnded);
}

}  // namespace
}  // namespace berth::core
