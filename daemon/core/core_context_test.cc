#include "absl/strings/match.h"
#include "daemon/core/core_harness.h"

namespace berth::core {
namespace {

constexpr ExportKinds kIpcOnly = {.fd = false, .cuda_ipc = true};

CallId AllocateIpc(CoreHarness& h, Peer& peer, Bytes bytes = MiB(2)) {
  return h.Allocate(peer, AllocateRequest{.bytes = bytes, .kinds = kIpcOnly});
}

CallId ImportAs(CoreHarness& h, Peer& peer, const BlockHandle& handle, const ExportKinds& kinds,
                bool read_only = false) {
  return h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Import(h.now, call, peer.caller(), peer.Next(),
                {.handle = handle, .read_only = read_only, .kinds = kinds}, effects);
  });
}

// What the vault says of device 0's context worker.
void Up(CoreHarness& h, uint64_t generation = 1) {
  h.Do([&](Core& core, Effects* effects) {
    core.ReportDevice(h.now, 0, Lane::kContext, {.generation = generation, .restarts_left = 3}, effects);
    core.WorkerUp(h.now, 0, Lane::kContext, effects);
  });
}

void Down(CoreHarness& h, uint64_t generation, DeviceState state, bool abandoned = false) {
  std::erase_if(h.jobs, [](const auto& job) {
    return std::visit([](const auto& one) { return one.lane == Lane::kContext; }, job);
  });
  h.Do([&](Core& core, Effects* effects) {
    core.ReportDevice(h.now, 0, Lane::kContext,
                      {.generation = generation, .abandoned = abandoned, .last_failure = "signal 9"},
                      effects);
    core.WorkerDown(h.now, 0, Lane::kContext, state, effects);
  });
}

AllocateResult MustAllocateIpc(CoreHarness& h, Peer& peer, Bytes bytes = MiB(2)) {
  const CallId call = AllocateIpc(h, peer, bytes);
  h.WorkAll();
  return h.Get<AllocateResult>(call);
}

DeviceView::ContextWorker Context(const CoreHarness& h) { return *h.core->ListDevices()[0].context; }

TEST(CoreContextTest, TheFirstWhoNeedsAContextWorkerHasItStarted) {
  CoreHarness h;
  Peer a = h.Open();
  EXPECT_EQ(Context(h).state, DeviceState::kIdle);
  const CallId call = AllocateIpc(h, a);
  AllocateIpc(h, a);
  ASSERT_EQ(h.orders.size(), 1u);
  EXPECT_EQ(h.orders[0].order, DeviceOrder::kStart);
  EXPECT_EQ(Context(h).state, DeviceState::kRebuilding);
  // The device's own worker does not wait for that.
  h.MustAllocate(a, MiB(2));
  EXPECT_FALSE(h.Answered(call));
  Up(h);
  EXPECT_EQ(Context(h).state, DeviceState::kReady);
  h.WorkAll();
  const AllocateResult made = h.Get<AllocateResult>(call);
  EXPECT_EQ(made.block.export_kind, ExportKind::kCudaIpc);
  EXPECT_EQ(made.block.handle.generation, 1u);
  EXPECT_EQ(*made.ipc_handle, CoreHarness::HandleFor(made.block.handle.block));
}

TEST(CoreContextTest, TheImportComesAsADeliveryWithoutAnFd) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  ASSERT_EQ(h.deliveries.size(), 1u);
  EXPECT_EQ(h.deliveries[0].delivery.what, attach::DeliveryKind::kHandleBlock);
  EXPECT_EQ(h.deliveries[0].delivery.import, h.Get<AllocateResult>(call).import.value());
}

TEST(CoreContextTest, WhoTakesBothKindsGetsAnFd) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = h.Allocate(a, AllocateRequest{.bytes = MiB(2), .kinds = {.cuda_ipc = true}});
  h.WorkAll();
  EXPECT_EQ(h.Get<AllocateResult>(call).block.export_kind, ExportKind::kFd);
  EXPECT_FALSE(h.Get<AllocateResult>(call).ipc_handle.has_value());
  EXPECT_TRUE(h.orders.empty());
}

TEST(CoreContextTest, AKindThatIsNotOfferedIsRefusedAndNotReplaced) {
  Config config = CoreHarness::DefaultConfig();
  config.devices[0].cuda_ipc = false;
  config.devices[0].why_no_cuda_ipc = "the configuration says so";
  CoreHarness h(config);
  Peer a = h.Open();
  const std::string before = h.Books();
  const CallId refused = AllocateIpc(h, a);
  EXPECT_TRUE(h.Refused(refused, Reason::kExportKind));
  EXPECT_EQ(h.Figure(refused, "kind"), "CUDA_IPC");
  EXPECT_EQ(h.Figure(refused, "why"), "device 0: the configuration says so");
  EXPECT_EQ(h.Books(), before);
  EXPECT_FALSE(h.core->ListDevices()[0].context.has_value());
  Effects none;
  EXPECT_TRUE(IsRefusal(h.core->RestartContext(h.now, 0, &none).status(), Reason::kExportKind));
  EXPECT_TRUE(none.empty());
}

TEST(CoreContextTest, AnImporterGetsTheHandleIfItTakesTheKind) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const BlockHandle handle = h.Get<AllocateResult>(call).block.handle;
  Peer b = h.JoinTo(a);
  const CallId plain = ImportAs(h, b, handle, {});
  EXPECT_TRUE(h.Refused(plain, Reason::kExportKind));
  EXPECT_EQ(h.Figure(plain, "kind"), "CUDA_IPC");
  EXPECT_TRUE(h.Refused(ImportAs(h, b, handle, kIpcOnly, /*read_only=*/true), Reason::kExportKind));
  const ImportResult imported = h.Get<ImportResult>(ImportAs(h, b, handle, kIpcOnly));
  EXPECT_EQ(*imported.ipc_handle, CoreHarness::HandleFor(handle.block));
  // And whoever takes CUDA_IPC alone does not get an fd.
  const BlockHandle fd = h.MustAllocate(a, MiB(2)).block.handle;
  const CallId other = ImportAs(h, b, fd, kIpcOnly);
  EXPECT_TRUE(h.Refused(other, Reason::kExportKind));
  EXPECT_EQ(h.Figure(other, "kind"), "FD");
}

TEST(CoreContextTest, SuchABlockIsNotPublished) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const AllocateResult made = h.Get<AllocateResult>(call);
  EXPECT_TRUE(h.Refused(h.Publish(a, made.block.handle, "weights", {made.import}), Reason::kExportKind));
}

TEST(CoreContextTest, AFreedBlockIsFreedByTheContextWorkerOnceItsLastImporterHasLetGo) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const AllocateResult made = h.Get<AllocateResult>(call);
  EXPECT_TRUE(h.StatusOf(h.Free(a, made.block.handle)).ok());
  EXPECT_TRUE(h.jobs.empty());
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(2));
  h.LetGo(a, made.import);
  ASSERT_EQ(h.jobs.size(), 1u);
  EXPECT_EQ(std::get<ReleaseBlock>(h.jobs[0]).lane, Lane::kContext);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts{});
}

TEST(CoreContextTest, WhenItDiesItsBlocksAreStaleAndTheOthersAreNot) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult fd = h.MustAllocate(a, MiB(2));
  const CallId call = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const AllocateResult ipc = h.Get<AllocateResult>(call);
  Down(h, 2, DeviceState::kIdle);
  EXPECT_EQ(Context(h).state, DeviceState::kIdle);
  EXPECT_EQ(Context(h).last_failure, "signal 9");
  const CallId stale = ImportAs(h, a, ipc.block.handle, kIpcOnly);
  EXPECT_TRUE(h.Refused(stale, Reason::kStale));
  EXPECT_EQ(h.Figure(stale, "why"), "context rebuilt");
  EXPECT_TRUE(h.StatusOf(h.Import(a, fd.block.handle)).ok());
  EXPECT_EQ(h.core->ListDevices()[0].state, DeviceState::kReady);
  // Its bytes are its owner's to give back, and then nobody is asked to.
  EXPECT_EQ(h.BytesOf(0).live, MiB(4));
  EXPECT_TRUE(h.StatusOf(h.Free(a, ipc.block.handle, {ipc.import})).ok());
  ASSERT_EQ(h.jobs.size(), 1u);
  EXPECT_TRUE(std::get<ReleaseBlock>(h.jobs[0]).lost);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).outstanding(), MiB(2));
}

TEST(CoreContextTest, WhatItWasMakingTheNextOneMakesAndWhatItWasReleasingIsGone) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId first = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const AllocateResult made = h.Get<AllocateResult>(first);
  h.Free(a, made.block.handle, {made.import});
  const CallId making = AllocateIpc(h, a, MiB(4));
  Down(h, 2, DeviceState::kIdle);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).retired, Bytes(0));
  // Somebody waits, so there is to be another.
  EXPECT_EQ(h.orders.back().order, DeviceOrder::kStart);
  EXPECT_EQ(h.orders.size(), 2u);
  Up(h, 2);
  h.WorkAll();
  EXPECT_EQ(h.Get<AllocateResult>(making).block.handle.generation, 2u);
}

TEST(CoreContextTest, OneThatWasKilledIsAskedNothingAndKeepsItsBytesUntilItIsGone) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId first = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const AllocateResult made = h.Get<AllocateResult>(first);
  // The vault has killed it.
  h.Do([&](Core& core, Effects* effects) {
    core.ReportDevice(h.now, 0, Lane::kContext, {.generation = 2}, effects);
  });
  EXPECT_EQ(Context(h).state, DeviceState::kRebuilding);
  h.Free(a, made.block.handle, {made.import});
  const CallId waiting = AllocateIpc(h, a);
  EXPECT_TRUE(h.jobs.empty());
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  // It does not end.
  Down(h, 2, DeviceState::kStopped, /*abandoned=*/true);
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceStopped));
  EXPECT_EQ(h.Figure(waiting, "why"), "signal 9");
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  EXPECT_FALSE(h.core->EnableDevice(h.now, 0, nullptr).ok());
  // Now it does.
  Down(h, 2, DeviceState::kStopped);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts{});
  // FD blocks never noticed.
  h.MustAllocate(a, MiB(2));
}

TEST(CoreContextTest, AStoppedOneIsEnabledWithItsDeviceAndStartsWhenItIsNeeded) {
  CoreHarness h;
  Peer a = h.Open();
  AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  Down(h, 2, DeviceState::kStopped);
  EXPECT_TRUE(h.Refused(AllocateIpc(h, a), Reason::kDeviceStopped));
  h.MustAllocate(a, MiB(2));
  h.orders.clear();
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.EnableDevice(h.now, 0, effects).ok()); });
  ASSERT_EQ(h.orders.size(), 1u);
  EXPECT_EQ(h.orders[0].order, DeviceOrder::kEnable);
  EXPECT_EQ(h.orders[0].lane, Lane::kContext);
  Down(h, 2, DeviceState::kIdle);
  const CallId call = AllocateIpc(h, a);
  EXPECT_EQ(h.orders.back().order, DeviceOrder::kStart);
  Up(h, 2);
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(call).ok());
}

TEST(CoreContextTest, OneThatNobodyNeedsIsEndedAfterAWhile) {
  CoreHarness h;
  Peer a = h.Open();
  AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  EXPECT_EQ(h.core->next_deadline(), absl::InfiniteFuture());
  const AllocateResult made = h.Get<AllocateResult>(CallId(1));
  h.Free(a, made.block.handle, {made.import});
  h.WorkAll();
  h.now = h.core->next_deadline() - absl::Seconds(1);
  h.Tick();
  // Somebody does, meanwhile.
  const AllocateResult again = MustAllocateIpc(h, a);
  h.now += absl::Seconds(40);
  h.Tick();
  EXPECT_EQ(h.orders.size(), 1u);
  h.Free(a, again.block.handle, {again.import});
  h.WorkAll();
  h.now = h.core->next_deadline();
  h.Tick();
  ASSERT_EQ(h.orders.size(), 2u);
  EXPECT_EQ(h.orders[1].order, DeviceOrder::kEnd);
  // Who comes now has the next one started.
  const CallId late = AllocateIpc(h, a);
  EXPECT_EQ(h.orders.size(), 2u);
  Down(h, 2, DeviceState::kIdle);
  ASSERT_EQ(h.orders.size(), 3u);
  EXPECT_EQ(h.orders[2].order, DeviceOrder::kStart);
  Up(h, 2);
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(late).ok());
}

TEST(CoreContextTest, OneThatHangsIsEnded) {
  CoreHarness h;
  Peer a = h.Open();
  AllocateIpc(h, a);
  Up(h);
  h.now += absl::Seconds(11);
  h.Tick();
  ASSERT_EQ(h.orders.size(), 2u);
  EXPECT_EQ(h.orders[1].order, DeviceOrder::kKill);
  EXPECT_EQ(h.orders[1].lane, Lane::kContext);
  EXPECT_EQ(h.core->ListDevices()[0].state, DeviceState::kReady);
}

TEST(CoreContextTest, WhatTheContextTakesIsChargedToTheDeviceWhileItIsThere) {
  CoreHarness h;
  Peer a = h.Open();
  AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  h.Do([&](Core& core, Effects* effects) { core.ContextMeasured(h.now, 0, MiB(6), effects); });
  EXPECT_EQ(h.BytesOf(0).daemon, MiB(6));
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(8));
  const CallId refused = h.Allocate(a, MiB(10));
  EXPECT_TRUE(h.Refused(refused, Reason::kOverBudget));
  EXPECT_EQ(h.Figure(refused, "current"), absl::StrCat(MiB(8).count()));
  Down(h, 2, DeviceState::kIdle);
  EXPECT_EQ(h.BytesOf(0).daemon, Bytes(0));
  h.MustAllocate(a, MiB(10));
}

TEST(CoreContextTest, WhoDeclaresMoreThanFitsBesideAContextThatWasMeasuredWaitsNoMore) {
  CoreHarness h(CoreHarness::MeasuringConfig(Bytes()));
  Peer a = h.Open(), b = h.Open();
  const auto ask = [](const std::string& key, Bytes declared) {
    AcquireRequest request = {.pool = "wide", .holder_key = key};
    request.device = {.pick = DevicePick::kAny, .declared = declared};
    return request;
  };
  h.MustAcquire(a, ask("1", MiB(40)));
  h.MustAcquire(a, ask("2", MiB(40)));
  const CallId fits = h.Acquire(b, ask("1", MiB(50)));
  const CallId waiting = h.Acquire(b, ask("2", MiB(62)));
  AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  EXPECT_FALSE(h.Answered(waiting));
  h.Do([&](Core& core, Effects* effects) { core.ContextMeasured(h.now, 0, MiB(6), effects); });
  EXPECT_TRUE(h.Refused(waiting, Reason::kOverCap));
  EXPECT_FALSE(h.Answered(fits));
}

TEST(CoreContextTest, AContextThatNobodyCouldMeasureIsChargedAsWhatItIsTakenToTake) {
  CoreHarness h(CoreHarness::MeasuringConfig(MiB(4)));
  Peer a = h.Open();
  AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  EXPECT_EQ(h.core->ListDevices()[0].context_cost, MiB(4));
  h.Do([&](Core& core, Effects* effects) { core.ContextMeasured(h.now, 0, Bytes(), effects); });
  EXPECT_EQ(h.BytesOf(0).daemon, MiB(4));
  EXPECT_EQ(h.core->ListDevices()[0].context_cost, MiB(4));
  h.Do([&](Core& core, Effects* effects) { core.ContextMeasured(h.now, 0, MiB(6), effects); });
  EXPECT_EQ(h.BytesOf(0).daemon, MiB(6));
  EXPECT_EQ(h.core->ListDevices()[0].context_cost, MiB(6));
}

TEST(CoreContextTest, WhoWaitsForItIsBoundedAndTold) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.waiting_allocations_per_device = 2;
  CoreHarness h(config);
  Peer a = h.Open();
  AllocateIpc(h, a);
  AllocateIpc(h, a);
  EXPECT_TRUE(h.Refused(AllocateIpc(h, a), Reason::kDeviceRebuilding));
}

TEST(CoreContextTest, AForgottenRequestEndsWhenItsProcessSaysSo) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const AllocateResult made = h.Get<AllocateResult>(call);
  // Its handle may have reached it: the memory waits for its word.
  h.Forget(a, a.sequence);
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(2));
  h.LetGo(a, made.import);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts{});
}

TEST(CoreContextTest, ADroppedDeviceTakesItsContextWorkerAlong) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const AllocateResult made = h.Get<AllocateResult>(call);
  const CallId waiting = AllocateIpc(h, a);
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DropDevice(h.now, 0, effects).ok()); });
  EXPECT_EQ(Context(h).state, DeviceState::kDropped);
  Down(h, 2, DeviceState::kStopped);
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceStopped));
  h.Free(a, made.block.handle, {made.import});
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts{});
}

}  // namespace
}  // namespace berth::core
