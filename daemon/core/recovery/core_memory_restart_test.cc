// Memory across a broker crash: the restored state, and its resumption.

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/core/testing/core_harness.h"
#include "daemon/core/types/record_kind.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr ExportKinds kIpcOnly = {.fd = false, .cuda_ipc = true};

// The broker dies, and its commands to the workers are lost.
struct MemoryHarness : CoreHarness {
  explicit MemoryHarness(const Config& config = DefaultConfig()) : CoreHarness(config) {}
  void Die() {
    jobs.clear();
    Restart();
  }
  // Sends the same request once more.
  CallId AllocateAgain(const Peer& peer, const AllocateRequest& request) {
    return Ask([&](Core& core, CallId call, Effects* effects) {
      core.Allocate(now, call, peer.caller(), peer.Again(), request, effects);
    });
  }
  // Returns everything that is shown of memory, without the workers' pending jobs.
  std::string Shown() const {
    const std::string accounts = Accounts();
    return accounts.substr(0, accounts.rfind("jobs "));
  }
  std::vector<BlockView> Blocks() const {
    const Page<BlockView> page = core->ListBlocks(Admin());
    return {page.begin(), page.end()};
  }
};

TEST(CoreMemoryRestartTest, MemoryStateSurvivesRestart) {
  MemoryHarness h;
  Peer a = h.Open(), b = h.Open(1001), c = h.Open(1002);
  const AllocateResult shared = h.MustAllocate(a, MiB(2));
  h.Grant(a, shared.block.handle, b.tenant);
  h.Grant(a, shared.block.handle, c.session);
  h.Get<ImportResult>(h.Import(b, shared.block.handle, /*read_only=*/true));
  const AllocateResult weights = h.MustAllocate(a, MiB(4), 1);
  h.Get<PublishResult>(h.Publish(a, weights.block.handle, "weights", {weights.import}));
  h.Reserve(a, {.items = {{.bytes = MiB(6)}}, .label = "later"});
  const std::string before = h.Shown();
  h.Die();
  EXPECT_EQ(h.Shown(), before);
  // Rights are unchanged and handles valid.
  EXPECT_TRUE(h.StatusOf(h.Import(c, shared.block.handle)).ok());
  EXPECT_TRUE(h.Refused(h.Import(c, weights.block.handle), Reason::kDenied));
  EXPECT_TRUE(h.StatusOf(h.ImportNamed(a, "weights")).ok());
  EXPECT_TRUE(h.Refused(h.Publish(a, shared.block.handle, "weights"), Reason::kNameTaken));
  // A new block gets later numbers.
  const AllocateResult later = h.MustAllocate(a, MiB(2));
  EXPECT_GT(later.block.handle.block_generation, weights.block.handle.block_generation);
  EXPECT_GT(later.import, weights.import);
}

TEST(CoreMemoryRestartTest, FreeWaitsForImporterAcrossRestart) {
  MemoryHarness h;
  Peer a = h.Open(), b = h.JoinTo(a);
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  const ImportId import = h.Get<ImportResult>(h.Import(b, block.block.handle)).import;
  h.Get<FreeResult>(h.Free(a, block.block.handle, {block.import}));
  h.Die();
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(2));
  EXPECT_TRUE(h.jobs.empty()) << "it is mapped still";
  h.LetGo(b, import);
  ASSERT_EQ(h.jobs.size(), 1u);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
  EXPECT_TRUE(h.Blocks().empty());
}

TEST(CoreMemoryRestartTest, ImporterDeathDuringRestartReleasesBlock) {
  MemoryHarness h;
  Peer a = h.Open(), b = h.JoinTo(a);
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  h.Get<ImportResult>(h.Import(b, block.block.handle));
  h.Get<FreeResult>(h.Free(a, block.block.handle, {block.import}));
  h.Die();
  h.Gone(b);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreMemoryRestartTest, PendingBlockIsRequestedAgainAndAnsweredOnce) {
  MemoryHarness h;
  Peer a = h.Open();
  const AllocateRequest request = {.bytes = MiB(2), .label = "block"};
  h.Allocate(a, request);
  const BlockId block = std::get<CreateBlock>(h.jobs.at(0)).block;
  h.Die();
  ASSERT_EQ(h.jobs.size(), 1u);
  EXPECT_EQ(std::get<CreateBlock>(h.jobs[0]).block, block);
  // The caller returns before the block is made, or after.
  const CallId again = h.AllocateAgain(a, request);
  EXPECT_FALSE(h.Answered(again));
  h.WorkAll();
  EXPECT_EQ(h.Get<AllocateResult>(again).block.handle.block, block);
  const CallId more = h.AllocateAgain(a, request);
  EXPECT_EQ(h.Get<AllocateResult>(more).block.handle.block, block);
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(2));
}

TEST(CoreMemoryRestartTest, BlockOfEarlierBrokerIsReleasedAfterWorkerDeath) {
  MemoryHarness h;
  Peer a = h.Open(), b = h.Open();
  h.Allocate(a, MiB(2));
  h.Die();
  // The worker gets the command again, the caller ends, and the worker dies before it reports whether the block
  // existed.
  ASSERT_EQ(h.jobs.size(), 1u);
  h.Gone(a);
  h.HangUp(a);
  h.DropWorker();
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  // The same for a block that no worker is asked for again, because the device is out of service.
  h.RaiseWorker();
  const AllocateRequest wanted = {.bytes = MiB(4)};
  h.Allocate(b, wanted);
  h.Die();
  const CallId again = h.AllocateAgain(b, wanted);
  h.DropWorker();
  EXPECT_FALSE(h.Answered(again));
  h.DropWorker(/*stopped=*/true);
  EXPECT_TRUE(h.Refused(again, Reason::kDeviceStopped));
  EXPECT_EQ(h.BytesOf(0).retired, MiB(6));
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
  // A block that the worker reports as not made is gone.
  h.Allocate(b, wanted);
  h.Die();
  h.WorkOnce(absl::InternalError("the driver is unhappy"));
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreMemoryRestartTest, UnclaimedAndFreedBlocksStayChargedUntilReleased) {
  MemoryHarness h;
  Peer a = h.Open(), b = h.Open();
  const AllocateResult freed = h.MustAllocate(a, MiB(2));
  h.Free(a, freed.block.handle, {freed.import});
  h.Allocate(b, MiB(4));
  h.Gone(b);
  h.Die();
  EXPECT_EQ(h.BytesOf(0).retired, MiB(6));
  ASSERT_EQ(h.jobs.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<ReleaseBlock>(h.jobs[0]));
  EXPECT_TRUE(std::holds_alternative<ReleaseBlock>(h.jobs[1]));
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreMemoryRestartTest, FailedReleaseIsRetriedByNextWorker) {
  MemoryHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  h.Free(a, block.block.handle, {block.import});
  h.WorkOnce(absl::InternalError("the driver will not let go"));
  h.Die();
  EXPECT_EQ(h.core->ListDevices()[0].failed_releases, 1u);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreMemoryRestartTest, OperatorLimitsPersistOthersFollowConfig) {
  Config config = CoreHarness::DefaultConfig();
  config.tenant_budget = MiB(8);
  MemoryHarness h(config);
  Peer a = h.Open(), b = h.Open(1001);
  h.MustAllocate(a, MiB(2));
  h.MustAllocate(b, MiB(2));
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.tenant, .limit = MiB(6)}).ok());
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = b.session, .limit = std::nullopt}).ok());
  ASSERT_TRUE(h.SetBudget({.device = 1, .of = {}, .limit = MiB(10)}).ok());
  config.tenant_budget = MiB(12);
  for (DeviceConfig& device : config.devices) device.budget = MiB(20);
  h.Restart(config);
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, a).limit, MiB(6));
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, b).limit, MiB(12));
  EXPECT_EQ(h.Budget(Layer::kSession, 0, b).limit, std::nullopt);
  EXPECT_EQ(h.Budget(Layer::kDevice, 0, a).limit, MiB(20));
  EXPECT_EQ(h.Budget(Layer::kDevice, 1, a).limit, MiB(10));
  // The limit exists without a session, too.
  h.Gone(a);
  h.HangUp(a);
  h.WorkAll();
  h.Die();
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, a).limit, MiB(6));
}

TEST(CoreMemoryRestartTest, RestoredReservationIsDrawnOnUntilExpiry) {
  MemoryHarness h;
  Peer a = h.Open();
  const auto reserved = h.Get<ReserveResult>(h.Reserve(a, {.items = {{.bytes = MiB(8)}}, .ttl = absl::Seconds(10)}));
  h.Allocate(a, {.bytes = MiB(2), .reservation = reserved.reservation.id});
  h.WorkAll();
  h.Die();
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(6));
  const CallId drawn = h.Allocate(a, {.bytes = MiB(2), .reservation = reserved.reservation.id});
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(drawn).ok());
  h.now += absl::Seconds(10);
  h.Tick();
  EXPECT_EQ(h.BytesOf(0).reserved, Bytes(0));
  EXPECT_EQ(h.BytesOf(0).live, MiB(4));
}

// Two requests waited for all bytes when a broker died. The caller of the second is back, and the bytes are free.
struct TwoWhoWaited : MemoryHarness {
  TwoWhoWaited() {
    Peer holder = Open(1001);
    const AllocateResult all = MustAllocate(holder, MiB(16));
    Allocate(a, request);
    Allocate(b, request);
    Die();
    second = AllocateAgain(b, request);
    Free(holder, all.block.handle, {all.import});
    WorkAll();
  }

  const AllocateRequest request = {.bytes = MiB(16), .wait = true};
  Peer a = Open(), b = Open();
  CallId second;
};

TEST(CoreMemoryRestartTest, ByteWaiterKeepsItsPlaceAcrossRestart) {
  TwoWhoWaited h;
  EXPECT_FALSE(h.Answered(h.second)) << "another was before";
  const CallId first = h.AllocateAgain(h.a, h.request);
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(first).ok());
  EXPECT_FALSE(h.Answered(h.second));
}

TEST(CoreMemoryRestartTest, DetachedByteWaiterLosesItsPlace) {
  TwoWhoWaited h;
  EXPECT_FALSE(h.Answered(h.second));
  h.now += absl::Seconds(5);
  h.Tick();
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(h.second).ok());
}

TEST(CoreMemoryRestartTest, ContextCostPersistsUnlessConfiguredOrUnknown) {
  Config config = CoreHarness::MeasuringConfig(MiB(4));
  CoreHarness h(config);
  Peer a = h.Open();
  h.Allocate(a, {.bytes = MiB(2), .kinds = kIpcOnly});
  h.Do([&](Core& core, Effects* effects) {
    core.ReportDevice(h.now, 0, WorkerKind::kContext, {.generation = 1}, effects);
    core.WorkerUp(h.now, 0, WorkerKind::kContext, effects);
    core.ContextMeasured(h.now, 0, MiB(6), effects);
  });
  for (DeviceConfig& device : config.devices) device.context_generation = 1;
  h.Restart(config);
  EXPECT_EQ(h.core->ListDevices()[0].context_cost, MiB(6));
  for (DeviceConfig& device : config.devices) {
    device.measure_context = false;
    device.context = MiB(5);
  }
  h.Restart(config);
  EXPECT_EQ(h.core->ListDevices()[0].context_cost, MiB(5)) << "somebody has configured it since";
}

TEST(CoreMemoryRestartTest, IpcBlockLivesAsLongAsContextWorker) {
  MemoryHarness h;
  Peer a = h.Open(), b = h.JoinTo(a);
  const auto up = [&h](uint64_t generation) {
    h.Do([&](Core& core, Effects* effects) {
      core.ReportDevice(h.now, 0, WorkerKind::kContext, {.generation = generation}, effects);
      core.WorkerUp(h.now, 0, WorkerKind::kContext, effects);
      core.ContextMeasured(h.now, 0, MiB(3), effects);
    });
  };
  const CallId call = h.Allocate(a, {.bytes = MiB(2), .kinds = kIpcOnly});
  up(1);
  h.WorkAll();
  const auto made = h.Get<AllocateResult>(call);
  Config config = CoreHarness::DefaultConfig();
  for (DeviceConfig& device : config.devices) device.context_generation = 1;
  h.Restart(config);
  EXPECT_EQ(h.BytesOf(0).daemon, MiB(3));
  up(1);
  const CallId imported = h.Ask([&](Core& core, CallId id, Effects* effects) {
    core.Import(h.now, id, b.caller(), b.Next(), {.handle = made.block.handle, .kinds = kIpcOnly}, effects);
  });
  EXPECT_EQ(h.Get<ImportResult>(imported).ipc_handle, CoreHarness::HandleFor(made.block.handle.block));
  h.Restart(config);
  // The worker ended while no broker ran.
  h.Do([&](Core& core, Effects* effects) {
    core.ReportDevice(h.now, 0, WorkerKind::kContext, {.generation = 2}, effects);
    core.WorkerDown(h.now, 0, WorkerKind::kContext, DeviceState::kIdle, effects);
  });
  EXPECT_EQ(h.BytesOf(0).daemon, Bytes(0));
  h.Free(a, made.block.handle, {made.import});
  h.Gone(b);
  ASSERT_EQ(h.jobs.size(), 1u);
  EXPECT_TRUE(std::get<ReleaseBlock>(h.jobs[0]).lost);
  // The release was not carried out either.
  h.jobs.clear();
  for (DeviceConfig& device : config.devices) device.context_generation = 2;
  h.Restart(config);
  ASSERT_EQ(h.jobs.size(), 1u);
  EXPECT_TRUE(std::get<ReleaseBlock>(h.jobs[0]).lost);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreMemoryRestartTest, WarmBlocksSurviveRestart) {
  Config config = CoreHarness::DefaultConfig();
  config.warm_blocks_per_size = 2;
  MemoryHarness h(config);
  Peer a = h.Open();
  h.MustAllocate(a, MiB(2));
  h.WorkAll();
  ASSERT_EQ(h.BytesOf(0).warm, MiB(4));
  h.Die();
  EXPECT_EQ(h.BytesOf(0).warm, MiB(4));
  EXPECT_TRUE(h.StatusOf(h.Allocate(a, MiB(2))).ok()) << "at once";
}

TEST(CoreMemoryRestartTest, LostWarmBlocksAreNotGranted) {
  Config config = CoreHarness::DefaultConfig();
  config.warm_blocks_per_size = 2;
  MemoryHarness h(config);
  Peer a = h.Open();
  h.MustAllocate(a, MiB(2));
  h.WorkAll();
  ASSERT_EQ(h.BytesOf(0).warm, MiB(4));
  // The device lost its memory, and the broker died before the report arrived.
  h.jobs.clear();
  config.devices[0].generation = 2;
  h.Restart(config);
  EXPECT_EQ(h.BytesOf(0).warm, Bytes(0));
  h.WorkAll();
  EXPECT_EQ(h.MustAllocate(a, MiB(2)).block.handle.generation, 2u);
}

TEST(CoreMemoryRestartTest, WarmBlocksOfUncachedSizeAreReleased) {
  Config config = CoreHarness::DefaultConfig();
  config.warm_blocks_per_size = 1;
  MemoryHarness h(config);
  Peer a = h.Open();
  for (const uint64_t mebibytes : {2, 4}) {
    h.MustAllocate(a, MiB(mebibytes));
    h.WorkAll();
  }
  ASSERT_EQ(h.BytesOf(0).warm, MiB(6));
  h.jobs.clear();
  config.warm_sizes = 0;
  h.Restart(config);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).warm, Bytes(0));
}

TEST(CoreMemoryRestartTest, BlockOfLostMemoryIsCreatedAnew) {
  // The memory is lost before the next broker starts, or after.
  for (const bool before : {true, false}) {
    Config config = CoreHarness::DefaultConfig();
    MemoryHarness h(config);
    Peer a = h.Open();
    const AllocateRequest request = {.bytes = MiB(2)};
    h.Allocate(a, request);
    ASSERT_EQ(h.jobs.size(), 1u);
    const BlockId old = std::get<CreateBlock>(h.jobs[0]).block;
    h.jobs.clear();
    if (before) config.devices[0].generation = 2;
    h.Restart(config);
    if (!before) {
      h.DropWorker();
      h.LoseMemory(0, 2);
      h.RaiseWorker();
    }
    const CallId again = h.AllocateAgain(a, request);
    h.WorkAll();
    const AllocateResult made = h.Get<AllocateResult>(again);
    EXPECT_NE(made.block.handle.block, old) << "its memory may be there, and lost";
    EXPECT_EQ(made.block.handle.generation, 2u);
    EXPECT_EQ(h.BytesOf(0).live, MiB(2));
    EXPECT_EQ(h.BytesOf(0).charged(), MiB(2));
  }
}

TEST(CoreMemoryRestartTest, DrainIsRepeatedToSupervisor) {
  MemoryHarness h;
  Peer a = h.Open();
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DrainDevice(h.now, 0, "a new fan", effects).ok()); });
  h.commands.clear();
  h.Die();
  ASSERT_EQ(h.commands.size(), 1u);
  EXPECT_EQ(h.commands[0].command, WorkerCommand::kDrain);
  EXPECT_EQ(h.commands[0].why, "a new fan");
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(2)), Reason::kDeviceDraining));
}

TEST(CoreMemoryRestartTest, BlockWithoutFdIsLostAndRecalled) {
  MemoryHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  h.Die();
  h.Do([&](Core& core, Effects* effects) { core.BlockLost(h.now, block.block.handle.block, effects); });
  EXPECT_EQ(h.last_effects, "recall");
  EXPECT_EQ(h.log.back().cause, LogCause::kLost);
  EXPECT_EQ(h.deliveries.back().delivery.why, static_cast<uint64_t>(EndReason::kStateLost));
  EXPECT_TRUE(h.Refused(h.Import(a, block.block.handle), Reason::kDenied));
  // The block stays lost under later brokers, and is never reported as freed.
  h.Die();
  EXPECT_EQ(h.NamedValue(h.Free(a, block.block.handle), "why"), kLostWithDaemon);
  const std::vector<BlockView> blocks = h.core->ListBlocks(h.Admin());
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_TRUE(blocks[0].lost);
  h.LetGo(a, block.import);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreMemoryRestartTest, WorkerHungAtEarlierCallIsKilled) {
  MemoryHarness h;
  h.DropWorker();
  const auto at_work = [&h] {
    h.Do([&](Core& core, Effects* effects) { core.WorkerAtWork(h.now, 0, WorkerKind::kMain, effects); });
  };
  at_work();
  h.now += absl::Seconds(9);
  at_work();
  h.now += absl::Seconds(9);
  h.Tick();
  EXPECT_TRUE(h.commands.empty()) << "it gets on";
  h.now += absl::Seconds(1);
  h.Tick();
  ASSERT_EQ(h.commands.size(), 1u);
  EXPECT_EQ(h.commands[0].command, WorkerCommand::kKill);
}

// Two processes with a stream each, and a block that both have imported.
struct FenceHarness : MemoryHarness {
  FenceHarness() : a(Open()), b(JoinTo(a)), made(MustAllocate(a, MiB(2))), block(made.block.handle.block) {
    sa = Get<OpenStreamResult>(OpenStream(a)).stream.slot;
    sb = Get<OpenStreamResult>(OpenStream(b)).stream.slot;
    const CallId call = Import(b, made.block.handle);
    HandOver(a, block);
    imported = Get<ImportResult>(call).import;
  }
  Peer a;
  Peer b;
  const AllocateResult made;
  const BlockId block;
  uint32_t sa = 0;
  uint32_t sb = 0;
  ImportId imported;
};

TEST(CoreMemoryRestartTest, UseBegunBeforeRestartIsAwaited) {
  FenceHarness h;
  const Prepared write = h.Get<Prepared>(h.Prepare(h.a, h.sa, {{h.block, Access::kWrite}}));
  h.Die();
  const CallId read = h.Prepare(h.b, h.sb, {{h.block, Access::kRead}});
  EXPECT_FALSE(h.Answered(read)) << "the write is open";
  EXPECT_TRUE(h.StatusOf(h.Finish(h.a, write.use, 7)).ok());
  const Prepared waiting = h.Get<Prepared>(read);
  ASSERT_EQ(waiting.waits.size(), 1u);
  EXPECT_EQ(waiting.waits[0], (FenceWait{{h.a.channel, h.sa}, 7}));
  EXPECT_GT(waiting.use, write.use);
  // After the next restart, uses still wait for a finished use whose work has not ended.
  h.Die();
  EXPECT_TRUE(h.StatusOf(h.Finish(h.b, waiting.use, 3)).ok());
  const Prepared again = h.Get<Prepared>(h.Prepare(h.b, h.sb, {{h.block, Access::kRead}}));
  ASSERT_EQ(again.waits.size(), 1u);
  EXPECT_EQ(again.waits[0], (FenceWait{{h.a.channel, h.sa}, 7}));
  EXPECT_EQ(h.Get<OpenStreamResult>(h.OpenStream(h.a)).stream.slot, h.sa + 1);
}

TEST(CoreMemoryRestartTest, PendingPageIsNotSentAgain) {
  FenceHarness h;
  h.Get<FinishUseResult>(h.Finish(h.a, h.Get<Prepared>(h.Prepare(h.a, h.sa, {{h.block, Access::kWrite}})).use, 7));
  const auto read = [&] {
    const Prepared use = h.Get<Prepared>(h.Prepare(h.b, h.sb, {{h.block, Access::kRead}}));
    h.Get<FinishUseResult>(h.Finish(h.b, use.use, 3));
  };
  read();
  const Deliver page = h.deliveries.back();
  ASSERT_EQ(page.delivery.what, attach::DeliveryKind::kForeignPage);
  h.deliveries.clear();
  h.Die();
  read();
  // The unacknowledged page is sent again unchanged, and no other page with it.
  const auto pages = [&] {
    return std::count_if(h.deliveries.begin(), h.deliveries.end(), [](const Deliver& deliver) {
      return deliver.delivery.what == attach::DeliveryKind::kForeignPage;
    });
  };
  EXPECT_EQ(pages(), 1);
  EXPECT_EQ(h.deliveries.back().delivery.number, page.delivery.number);
  // An acknowledged delivery is forgotten.
  h.Acknowledge(h.b, page.delivery.number);
  h.deliveries.clear();
  h.Die();
  read();
  EXPECT_EQ(pages(), 1);
}

TEST(CoreMemoryRestartTest, MemoryStaysUntilEarlierUsesEnd) {
  FenceHarness h;
  const Prepared write = h.Get<Prepared>(h.Prepare(h.a, h.sa, {{h.block, Access::kWrite}}));
  h.Finish(h.a, write.use, 7);
  h.LetGo(h.b, h.imported);
  h.Free(h.a, h.made.block.handle, {h.made.import});
  h.Die();
  EXPECT_TRUE(h.jobs.empty());
  EXPECT_EQ(h.core->ListBudgets(CoreHarness::Admin()).at(0).busy, MiB(2));
  h.fence_values[{h.a.channel, h.sa}].done = 7;
  h.now += absl::Seconds(1);
  h.Tick();
  ASSERT_EQ(h.jobs.size(), 1u);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreMemoryRestartTest, DeathDuringWriteLeavesBlockTorn) {
  FenceHarness h;
  h.Get<Prepared>(h.Prepare(h.a, h.sa, {{h.block, Access::kWrite}}));
  h.Die();
  h.Gone(h.a);
  const Prepared after = h.Get<Prepared>(h.Prepare(h.b, h.sb, {{h.block, Access::kRead}}));
  EXPECT_EQ(after.torn, std::vector<BlockId>({h.block}));
  h.Die();
  EXPECT_TRUE(h.Blocks().at(0).torn);
}

TEST(CoreMemoryRestartTest, BlockInHandOverWaitsAcrossRestart) {
  MemoryHarness h;
  Peer a = h.Open(), b = h.JoinTo(a);
  const AllocateResult made = h.MustAllocate(a, MiB(2));
  const BlockId block = made.block.handle.block;
  const uint32_t slot = h.Get<OpenStreamResult>(h.OpenStream(a)).stream.slot;
  h.Import(b, made.block.handle);
  h.Die();
  const CallId again = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Import(h.now, call, b.caller(), b.Again(), {.handle = made.block.handle}, effects);
  });
  EXPECT_FALSE(h.Answered(again));
  h.HandOver(a, block, {{.slot = slot, .value = 5, .access = Access::kWrite}});
  EXPECT_TRUE(h.StatusOf(again).ok());
  const uint32_t other = h.Get<OpenStreamResult>(h.OpenStream(b)).stream.slot;
  const Prepared read = h.Get<Prepared>(h.Prepare(b, other, {{block, Access::kRead}}));
  ASSERT_EQ(read.waits.size(), 1u);
  EXPECT_EQ(read.waits[0].value, 5u);
}

TEST(CoreMemoryRestartTest, TruncatedRecordsAreNamed) {
  MemoryHarness h;
  Peer a = h.Open();
  h.MustAllocate(a, MiB(2));
  for (const auto& [key, content] : h.records) {
    if (key.kind < static_cast<uint32_t>(RecordKind::kMemoryCounters)) continue;
    LedgerRecords cut = h.records;
    cut[key].pop_back();
    Core core(CoreHarness::DefaultConfig(), [] { return uint64_t{1}; },
              [](StreamKey) { return FenceValues(); }, [](ChannelId) { return nullptr; });
    const absl::Status status = Restore(cut, &core);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find(std::to_string(key.kind)), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace berth::core
