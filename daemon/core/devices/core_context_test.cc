#include "absl/strings/match.h"
#include "daemon/core/testing/core_harness.h"

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

// The supervisor reports device 0's context worker.
void Up(CoreHarness& h, uint64_t generation = 1) {
  h.Do([&](Core& core, Effects* effects) {
    core.ReportDevice(h.now, 0, WorkerKind::kContext, {.generation = generation, .restarts_left = 3}, effects);
    core.WorkerUp(h.now, 0, WorkerKind::kContext, effects);
  });
}

void Down(CoreHarness& h, uint64_t generation, DeviceState state, bool abandoned = false) {
  std::erase_if(h.jobs, [](const auto& job) {
    return std::visit([](const auto& one) { return one.worker_kind == WorkerKind::kContext; }, job);
  });
  h.Do([&](Core& core, Effects* effects) {
    core.ReportDevice(h.now, 0, WorkerKind::kContext,
                      {.generation = generation, .abandoned = abandoned, .last_failure = "signal 9"},
                      effects);
    core.WorkerDown(h.now, 0, WorkerKind::kContext, state, effects);
  });
}

AllocateResult MustAllocateIpc(CoreHarness& h, Peer& peer, Bytes bytes = MiB(2)) {
  const CallId call = AllocateIpc(h, peer, bytes);
  h.WorkAll();
  return h.Get<AllocateResult>(call);
}

DeviceView::ContextWorker Context(const CoreHarness& h) { return *h.core->ListDevices()[0].context; }

TEST(CoreContextTest, FirstIpcRequestStartsContextWorker) {
  CoreHarness h;
  Peer a = h.Open();
  EXPECT_EQ(Context(h).state, DeviceState::kIdle);
  const CallId call = AllocateIpc(h, a);
  AllocateIpc(h, a);
  ASSERT_EQ(h.commands.size(), 1u);
  EXPECT_EQ(h.commands[0].command, WorkerCommand::kStart);
  EXPECT_EQ(Context(h).state, DeviceState::kRebuilding);
  // The device's main worker does not wait for the context worker.
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

TEST(CoreContextTest, IpcImportIsDeliveredWithoutFd) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  ASSERT_EQ(h.deliveries.size(), 1u);
  EXPECT_EQ(h.deliveries[0].delivery.what, attach::DeliveryKind::kHandleBlock);
  EXPECT_EQ(h.deliveries[0].delivery.import, h.Get<AllocateResult>(call).import.value());
}

TEST(CoreContextTest, RequestForEitherKindGetsFd) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = h.Allocate(a, AllocateRequest{.bytes = MiB(2), .kinds = {.cuda_ipc = true}});
  h.WorkAll();
  EXPECT_EQ(h.Get<AllocateResult>(call).block.export_kind, ExportKind::kFd);
  EXPECT_FALSE(h.Get<AllocateResult>(call).ipc_handle.has_value());
  EXPECT_TRUE(h.commands.empty());
}

TEST(CoreContextTest, UnofferedKindIsRejected) {
  Config config = CoreHarness::DefaultConfig();
  config.devices[0].cuda_ipc = false;
  config.devices[0].why_no_cuda_ipc = "the configuration says so";
  CoreHarness h(config);
  Peer a = h.Open();
  const std::string before = h.Accounts();
  const CallId refused = AllocateIpc(h, a);
  EXPECT_TRUE(h.Refused(refused, Reason::kExportKind));
  EXPECT_EQ(h.NamedValue(refused, "kind"), "CUDA_IPC");
  EXPECT_EQ(h.NamedValue(refused, "why"), "device 0: the configuration says so");
  EXPECT_EQ(h.Accounts(), before);
  EXPECT_FALSE(h.core->ListDevices()[0].context.has_value());
  Effects none;
  EXPECT_TRUE(IsRefusal(h.core->RestartContext(h.now, 0, &none).status(), Reason::kExportKind));
  EXPECT_TRUE(none.empty());
}

TEST(CoreContextTest, ImporterGetsHandleIfItTakesKind) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const BlockHandle handle = h.Get<AllocateResult>(call).block.handle;
  Peer b = h.JoinTo(a);
  const CallId plain = ImportAs(h, b, handle, {});
  EXPECT_TRUE(h.Refused(plain, Reason::kExportKind));
  EXPECT_EQ(h.NamedValue(plain, "kind"), "CUDA_IPC");
  EXPECT_TRUE(h.Refused(ImportAs(h, b, handle, kIpcOnly, /*read_only=*/true), Reason::kExportKind));
  const ImportResult imported = h.Get<ImportResult>(ImportAs(h, b, handle, kIpcOnly));
  EXPECT_EQ(*imported.ipc_handle, CoreHarness::HandleFor(handle.block));
  // A caller that accepts only CUDA_IPC does not get an fd.
  const BlockHandle fd = h.MustAllocate(a, MiB(2)).block.handle;
  const CallId other = ImportAs(h, b, fd, kIpcOnly);
  EXPECT_TRUE(h.Refused(other, Reason::kExportKind));
  EXPECT_EQ(h.NamedValue(other, "kind"), "FD");
}

TEST(CoreContextTest, IpcBlockCannotBePublished) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const AllocateResult made = h.Get<AllocateResult>(call);
  EXPECT_TRUE(h.Refused(h.Publish(a, made.block.handle, "weights", {made.import}), Reason::kExportKind));
}

TEST(CoreContextTest, FreedIpcBlockIsReleasedAfterLastImporter) {
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
  EXPECT_EQ(std::get<ReleaseBlock>(h.jobs[0]).worker_kind, WorkerKind::kContext);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts{});
}

TEST(CoreContextTest, DeathMakesOnlyItsBlocksStale) {
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
  EXPECT_EQ(h.NamedValue(stale, "why"), "context rebuilt");
  EXPECT_TRUE(h.StatusOf(h.Import(a, fd.block.handle)).ok());
  EXPECT_EQ(h.core->ListDevices()[0].state, DeviceState::kReady);
  // The bytes stay charged until the owner frees them; then no worker releases them.
  EXPECT_EQ(h.BytesOf(0).live, MiB(4));
  EXPECT_TRUE(h.StatusOf(h.Free(a, ipc.block.handle, {ipc.import})).ok());
  ASSERT_EQ(h.jobs.size(), 1u);
  EXPECT_TRUE(std::get<ReleaseBlock>(h.jobs[0]).lost);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).outstanding(), MiB(2));
}

TEST(CoreContextTest, NextContextWorkerCreatesPendingBlocks) {
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
  // A request waits, so the core has a new context worker started.
  EXPECT_EQ(h.commands.back().command, WorkerCommand::kStart);
  EXPECT_EQ(h.commands.size(), 2u);
  Up(h, 2);
  h.WorkAll();
  EXPECT_EQ(h.Get<AllocateResult>(making).block.handle.generation, 2u);
}

TEST(CoreContextTest, KilledContextWorkerStaysChargedUntilItEnds) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId first = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const AllocateResult made = h.Get<AllocateResult>(first);
  // The supervisor has killed the worker.
  h.Do([&](Core& core, Effects* effects) {
    core.ReportDevice(h.now, 0, WorkerKind::kContext, {.generation = 2}, effects);
  });
  EXPECT_EQ(Context(h).state, DeviceState::kRebuilding);
  h.Free(a, made.block.handle, {made.import});
  const CallId waiting = AllocateIpc(h, a);
  EXPECT_TRUE(h.jobs.empty());
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  // The worker does not end.
  Down(h, 2, DeviceState::kStopped, /*abandoned=*/true);
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceStopped));
  EXPECT_EQ(h.NamedValue(waiting, "why"), "signal 9");
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  EXPECT_FALSE(h.core->EnableDevice(h.now, 0, nullptr).ok());
  // Now the worker ends.
  Down(h, 2, DeviceState::kStopped);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts{});
  // FD blocks are unaffected.
  h.MustAllocate(a, MiB(2));
}

TEST(CoreContextTest, StoppedContextWorkerIsEnabledWithItsDevice) {
  CoreHarness h;
  Peer a = h.Open();
  AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  Down(h, 2, DeviceState::kStopped);
  EXPECT_TRUE(h.Refused(AllocateIpc(h, a), Reason::kDeviceStopped));
  h.MustAllocate(a, MiB(2));
  h.commands.clear();
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.EnableDevice(h.now, 0, effects).ok()); });
  ASSERT_EQ(h.commands.size(), 1u);
  EXPECT_EQ(h.commands[0].command, WorkerCommand::kEnable);
  EXPECT_EQ(h.commands[0].worker_kind, WorkerKind::kContext);
  Down(h, 2, DeviceState::kIdle);
  const CallId call = AllocateIpc(h, a);
  EXPECT_EQ(h.commands.back().command, WorkerCommand::kStart);
  Up(h, 2);
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(call).ok());
}

TEST(CoreContextTest, IdleContextWorkerIsEnded) {
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
  // Meanwhile a request uses the context worker.
  const AllocateResult again = MustAllocateIpc(h, a);
  h.now += absl::Seconds(40);
  h.Tick();
  EXPECT_EQ(h.commands.size(), 1u);
  h.Free(a, again.block.handle, {again.import});
  h.WorkAll();
  h.now = h.core->next_deadline();
  h.Tick();
  ASSERT_EQ(h.commands.size(), 2u);
  EXPECT_EQ(h.commands[1].command, WorkerCommand::kEnd);
  // A later request has the next context worker started.
  const CallId late = AllocateIpc(h, a);
  EXPECT_EQ(h.commands.size(), 2u);
  Down(h, 2, DeviceState::kIdle);
  ASSERT_EQ(h.commands.size(), 3u);
  EXPECT_EQ(h.commands[2].command, WorkerCommand::kStart);
  Up(h, 2);
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(late).ok());
}

TEST(CoreContextTest, HungContextWorkerIsKilled) {
  CoreHarness h;
  Peer a = h.Open();
  AllocateIpc(h, a);
  Up(h);
  h.now += absl::Seconds(11);
  h.Tick();
  ASSERT_EQ(h.commands.size(), 2u);
  EXPECT_EQ(h.commands[1].command, WorkerCommand::kKill);
  EXPECT_EQ(h.commands[1].worker_kind, WorkerKind::kContext);
  EXPECT_EQ(h.core->ListDevices()[0].state, DeviceState::kReady);
}

TEST(CoreContextTest, ContextBytesAreChargedWhileContextExists) {
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
  EXPECT_EQ(h.NamedValue(refused, "current"), absl::StrCat(MiB(8).count()));
  Down(h, 2, DeviceState::kIdle);
  EXPECT_EQ(h.BytesOf(0).daemon, Bytes(0));
  h.MustAllocate(a, MiB(10));
}

TEST(CoreContextTest, WaiterTooLargeBesideMeasuredContextIsRejected) {
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

TEST(CoreContextTest, UnmeasuredContextIsChargedAtConfiguredCost) {
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

TEST(CoreContextTest, WaitersForContextWorkerAreLimited) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.waiting_allocations_per_device = 4;
  CoreHarness h(config);
  Peer a = h.Open();
  AllocateIpc(h, a);
  AllocateIpc(h, a);
  EXPECT_TRUE(h.Refused(AllocateIpc(h, a), Reason::kDeviceRebuilding));
}

TEST(CoreContextTest, ForgottenIpcBlockIsReleasedOnProcessReport) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId call = AllocateIpc(h, a);
  Up(h);
  h.WorkAll();
  const AllocateResult made = h.Get<AllocateResult>(call);
  // The process may have the handle already: the memory waits for its report.
  h.Forget(a, a.sequence);
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(2));
  h.LetGo(a, made.import);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts{});
}

TEST(CoreContextTest, DroppedDeviceDropsItsContextWorker) {
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
