// The monitor's reports on devices, and draining, through the core.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

void Survey(CoreHarness& h, const DeviceSurvey& survey, uint32_t device = 0) {
  h.Do([&](Core& core, Effects* effects) { core.DeviceSurveyed(h.now, device, survey, effects); });
}

void Report(CoreHarness& h, const DeviceReport& report) {
  h.Do([&](Core& core, Effects* effects) { core.ReportDevice(h.now, 0, WorkerKind::kMain, report, effects); });
}

void Down(CoreHarness& h, DeviceState state) {
  h.jobs.clear();
  h.Do([&](Core& core, Effects* effects) { core.WorkerDown(h.now, 0, WorkerKind::kMain, state, effects); });
}

absl::Status Drain(CoreHarness& h, const std::string& reason) {
  absl::Status status;
  h.Do([&](Core& core, Effects* effects) { status = core.DrainDevice(h.now, 0, reason, effects).status(); });
  return status;
}

DeviceView Undrain(CoreHarness& h) {
  absl::StatusOr<DeviceView> view;
  h.Do([&](Core& core, Effects* effects) { view = core.UndrainDevice(h.now, 0, effects); });
  return *view;
}

DeviceView View(const CoreHarness& h) { return h.core->ListDevices()[0]; }

AcquireRequest On(const std::string& uuid, const std::string& key) {
  AcquireRequest request = {.pool = "wide", .holder_key = key};
  request.device = {.pick = uuid.empty() ? DevicePick::kAny : DevicePick::kNamed, .uuid = uuid};
  return request;
}

// ---- Lost and returned devices ------------------------------------------------------------------------------

TEST(CoreInventoryTest, LostDeviceIsTakenOutOnceAndWaitersRejected) {
  CoreHarness h;
  Peer a = h.Open();
  Survey(h, {});
  EXPECT_TRUE(h.commands.empty());
  h.DropWorker();
  const CallId waiting = h.Allocate(a, MiB(2));
  Survey(h, {.lost = true, .trouble = "Xid 79"});
  ASSERT_EQ(h.commands.size(), 1u);
  EXPECT_EQ(h.commands[0].command, WorkerCommand::kLose);
  EXPECT_EQ(h.commands[0].why, "Xid 79");
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceStopped));
  EXPECT_EQ(h.NamedValue(waiting, "why"), "Xid 79");
  EXPECT_EQ(View(h).state, DeviceState::kStopped);
  AcquireRequest constraint = On("DEVICE-0", "k");
  EXPECT_TRUE(h.Refused(h.Acquire(a, constraint), Reason::kDeviceStopped));
  constraint.device.wait_for_device = true;
  EXPECT_FALSE(h.Answered(h.Acquire(a, constraint))) << "it may come back";
  Survey(h, {.lost = true, .trouble = "Xid 79"});
  EXPECT_EQ(h.commands.size(), 1u);
  EXPECT_EQ(h.core->ListDevices()[1].state, DeviceState::kReady);
}

TEST(CoreInventoryTest, ReturnedDeviceIsOnProbationUntilWorkerIsUp) {
  CoreHarness h;
  Peer a = h.Open();
  Survey(h, {.lost = true});
  Report(h, {.generation = 2, .last_failure = "lost"});
  Down(h, DeviceState::kStopped);
  Survey(h, {});
  ASSERT_EQ(h.commands.size(), 3u) << "its context worker is brought back, too";
  EXPECT_EQ(h.commands[1].command, WorkerCommand::kEnable);
  EXPECT_EQ(View(h).state, DeviceState::kProbation);
  Survey(h, {});
  EXPECT_EQ(h.commands.size(), 3u);
  Down(h, DeviceState::kProbation);
  const CallId block = h.Allocate(a, MiB(2));
  const CallId permit = h.Acquire(a, On("DEVICE-0", "k"));
  EXPECT_FALSE(h.Answered(block));
  EXPECT_FALSE(h.Answered(permit));
  ReserveRequest request = {.items = {{.device = 0, .bytes = MiB(2)}}};
  const CallId reserved = h.Reserve(a, request);
  EXPECT_FALSE(h.Answered(reserved));
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(block).ok());
  EXPECT_TRUE(h.StatusOf(permit).ok());
  EXPECT_TRUE(h.StatusOf(reserved).ok());
  EXPECT_EQ(View(h).generation, 2u);
}

TEST(CoreInventoryTest, ResetLeavesProbationToSupervisor) {
  CoreHarness h;
  Peer a = h.Open();
  Survey(h, {.lost = true});
  Down(h, DeviceState::kStopped);
  Survey(h, {});
  const CallId reserved = h.Reserve(a, {.items = {{.device = 0, .bytes = MiB(2)}}});
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.ResetDevice(h.now, 0, effects).ok()); });
  EXPECT_EQ(h.commands.back().command, WorkerCommand::kReset);
  EXPECT_EQ(View(h).state, DeviceState::kProbation);
  EXPECT_TRUE(h.core->CheckInvariants().ok()) << h.core->CheckInvariants();
  EXPECT_FALSE(h.Answered(reserved));
  Down(h, DeviceState::kRebuilding);
  EXPECT_TRUE(h.StatusOf(reserved).ok());
}

TEST(CoreInventoryTest, DeviceReturnsWithoutAbandonedContextWorker) {
  CoreHarness h;
  Survey(h, {.lost = true});
  Down(h, DeviceState::kStopped);
  h.Do([&](Core& core, Effects* effects) {
    core.ReportDevice(h.now, 0, WorkerKind::kContext, {.generation = 2, .abandoned = true}, effects);
  });
  h.commands.clear();
  Survey(h, {});
  ASSERT_EQ(h.commands.size(), 1u);
  EXPECT_EQ(h.commands[0].command, WorkerCommand::kEnable);
  EXPECT_EQ(h.commands[0].worker_kind, WorkerKind::kMain);
}

TEST(CoreInventoryTest, FailedSelfTestIsNotRepeatedUntilNextLoss) {
  CoreHarness h;
  Survey(h, {.lost = true});
  Down(h, DeviceState::kStopped);
  Survey(h, {});
  const size_t commands = h.commands.size();
  Down(h, DeviceState::kProbation);
  Report(h, {.last_failure = "the self-test failed"});
  Down(h, DeviceState::kStopped);
  Survey(h, {});
  EXPECT_EQ(h.commands.size(), commands);
  EXPECT_EQ(View(h).state, DeviceState::kStopped);
  EXPECT_EQ(View(h).last_failure, "the self-test failed");
  Survey(h, {.lost = true});
  Survey(h, {});
  EXPECT_GT(h.commands.size(), commands);
}

TEST(CoreInventoryTest, ReturnIgnoredBySupervisorIsRepeated) {
  CoreHarness h;
  Survey(h, {.lost = true});
  // The device returns before its worker has ended: the supervisor ignores the command, and later reports the end.
  Survey(h, {});
  const size_t commands = h.commands.size();
  EXPECT_EQ(View(h).state, DeviceState::kProbation);
  Down(h, DeviceState::kStopped);
  Survey(h, {});
  EXPECT_GT(h.commands.size(), commands);
  EXPECT_EQ(View(h).state, DeviceState::kProbation);
}

TEST(CoreInventoryTest, StoppedDeviceNeverLostStaysStopped) {
  CoreHarness h;
  h.DropWorker(/*stopped=*/true);
  Survey(h, {});
  EXPECT_TRUE(h.commands.empty());
  EXPECT_EQ(View(h).state, DeviceState::kStopped);
}

// ---- The monitor --------------------------------------------------------------------------------------------

TEST(CoreInventoryTest, SilentMonitorIsEndedWithGrowingPatience) {
  CoreHarness h;
  EXPECT_EQ(h.core->next_deadline(), absl::InfiniteFuture()) << "there is none";
  const auto up = [&] { h.Do([&](Core& core, Effects* effects) { core.MonitorUp(h.now, effects); }); };
  up();
  for (const int64_t patience : {10, 20, 40}) {
    const absl::Time due = h.core->next_deadline();
    EXPECT_EQ(due, h.now + absl::Seconds(10)) << "device 1's";
    h.now = due - absl::Nanoseconds(1);
    Survey(h, {}, /*device=*/1);
    // From here on only device 0 is silent.
    while (h.now < due - absl::Nanoseconds(1) + absl::Seconds(patience - 10)) {
      h.now += absl::Seconds(5);
      Survey(h, {}, /*device=*/1);
      h.Tick();
    }
    EXPECT_TRUE(h.commands.empty()) << patience;
    h.now += absl::Nanoseconds(1);
    h.Tick();
    ASSERT_EQ(h.commands.size(), 1u) << patience;
    EXPECT_EQ(h.commands[0].command, WorkerCommand::kKillMonitor);
    EXPECT_EQ(h.commands[0].device, 0u);
    h.commands.clear();
    EXPECT_EQ(h.core->next_deadline(), absl::InfiniteFuture());
    h.Do([&](Core& core, Effects* effects) { core.MonitorDown(h.now, effects); });
    up();
  }
  EXPECT_EQ(View(h).state, DeviceState::kReady) << "nobody is hurt by it";
}

TEST(CoreInventoryTest, IslandsJoinDirectAndIndirectLinks) {
  Config config = CoreHarness::DefaultConfig();
  const DeviceConfig first = config.devices[0];
  for (uint32_t i = 2; i < 5; ++i) {
    config.devices.push_back(first);
    config.devices.back().ordinal = i;
    config.devices.back().uuid = "DEVICE-" + std::to_string(i);
  }
  // 4 links to 2, which links to 1.
  config.devices[4].facts.nvlink_peers = 1u << 2;
  config.devices[2].facts.nvlink_peers = 1u << 1;
  CoreHarness h(config);
  const auto islands = [&] {
    std::vector<uint32_t> all;
    for (const IslandView& view : h.core->ListIslands()) all.push_back(view.island);
    return all;
  };
  EXPECT_EQ(islands(), (std::vector<uint32_t>{0, 1, 1, 3, 1}));
  const uint64_t changes = h.device_changes;
  Survey(h, {.nvlink_peers = 0}, /*device=*/2);
  EXPECT_EQ(islands(), (std::vector<uint32_t>{0, 1, 2, 3, 2}));
  EXPECT_GT(h.device_changes, changes);
  Survey(h, {}, /*device=*/2);
  EXPECT_EQ(islands(), (std::vector<uint32_t>{0, 1, 2, 3, 2})) << "nothing was said of links";
}

TEST(CoreInventoryTest, DroppedDeviceSplitsIsland) {
  // Only 0 connects 1 and 2. An operator drops the device, or the supervisor reports it dropped.
  for (const bool by_supervisor : {false, true}) {
    Config config = CoreHarness::DefaultConfig();
    config.devices.push_back(config.devices[0]);
    config.devices[2].ordinal = 2;
    config.devices[2].uuid = "DEVICE-2";
    config.devices[0].facts.nvlink_peers = 1u << 1 | 1u << 2;
    CoreHarness h(config);
    Peer a = h.Open();
    const PlanRequest together = {.units = 10, .one_island = true};
    const auto tiles = [&] { return h.Get<PlanResult>(h.MakePlan(a, together)).layout->tiles.size(); };
    EXPECT_EQ(tiles(), 3u);
    if (by_supervisor) {
      Report(h, {.dropped = true});
    } else {
      h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DropDevice(h.now, 0, effects).ok()); });
    }
    const std::vector<IslandView> islands = h.core->ListIslands();
    ASSERT_EQ(islands.size(), 2u);
    EXPECT_EQ(islands[0].island, 1u);
    EXPECT_EQ(islands[1].island, 2u);
    EXPECT_EQ(tiles(), 1u) << "they reach each other no more";
    // The island of 1 is 1 alone.
    AcquireRequest near = On("", "near");
    near.device.island_of = "DEVICE-1";
    EXPECT_EQ(h.MustAcquire(a, near).device->uuid, "DEVICE-1");
    near.holder_key = "nearer";
    EXPECT_EQ(h.MustAcquire(a, near).device->uuid, "DEVICE-1");
    // The peers' further reports of links to the dropped device change nothing; a link between the peers does.
    Survey(h, {.nvlink_peers = 1}, /*device=*/1);
    EXPECT_EQ(tiles(), 1u);
    Survey(h, {.nvlink_peers = 1u << 0 | 1u << 1}, /*device=*/2);
    EXPECT_EQ(tiles(), 2u);
  }
}

// ---- Draining -----------------------------------------------------------------------------------------------

TEST(CoreInventoryTest, DrainedDeviceGrantsNothingAndLeasesStay) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  const AcquireResult permit = h.MustAcquire(a, On("DEVICE-0", "k"));
  ASSERT_TRUE(Drain(h, "loud").ok());
  ASSERT_EQ(h.commands.size(), 1u);
  EXPECT_EQ(h.commands[0].command, WorkerCommand::kDrain);
  EXPECT_EQ(h.commands[0].why, "loud");
  EXPECT_EQ(View(h).state, DeviceState::kDraining);
  EXPECT_EQ(View(h).drain_reason, "loud");
  const CallId refused = h.Allocate(a, MiB(2));
  EXPECT_TRUE(h.Refused(refused, Reason::kDeviceDraining));
  EXPECT_EQ(h.NamedValue(refused, "why"), "loud");
  EXPECT_TRUE(h.Refused(h.Acquire(a, On("DEVICE-0", "l")), Reason::kDeviceDraining));
  EXPECT_TRUE(h.Refused(h.Reserve(a, {.items = {{.device = 0, .bytes = MiB(2)}}}), Reason::kDeviceDraining));
  EXPECT_EQ(h.MustAcquire(a, On("", "m")).device->uuid, "DEVICE-1");
  // Leases return as usual.
  h.Release(a, permit.acquisition);
  h.Free(a, block.block.handle, {block.import});
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
  EXPECT_EQ(Undrain(h).state, DeviceState::kReady);
  EXPECT_EQ(h.commands.back().command, WorkerCommand::kUndrain);
  h.MustAllocate(a, MiB(2));
}

TEST(CoreInventoryTest, WaiterForDrainedDeviceIsRejectedUnlessAny) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  AcquireRequest named = On("DEVICE-0", "k");
  named.pool = "gpu-tests";
  h.MustAcquire(a, {.pool = "gpu-tests", .units = 2, .holder_key = "all"});
  const CallId waiting = h.Acquire(b, named);
  const CallId any = h.Acquire(b, [] {
    AcquireRequest request = On("", "any");
    request.pool = "gpu-tests";
    return request;
  }());
  h.MustAllocate(a, MiB(16));
  AllocateRequest patient = {.bytes = MiB(2), .wait = true};
  const CallId bytes = h.Allocate(b, patient);
  ASSERT_TRUE(Drain(h, "").ok());
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceDraining));
  EXPECT_TRUE(h.Refused(bytes, Reason::kDeviceDraining));
  EXPECT_EQ(h.NamedValue(bytes, "why"), "drained by an operator");
  EXPECT_FALSE(h.Answered(any));
}

TEST(CoreInventoryTest, PatientWaiterForDrainedDeviceIsGrantedAfterTheDrain) {
  for (const bool list : {false, true}) {
    CoreHarness h;
    Peer a = h.Open(), b = h.Open();
    AcquireRequest hasty = On(list ? "" : "DEVICE-0", "hasty");
    if (list) hasty.device.among = {"DEVICE-0"};
    hasty.pool = "gpu-tests";
    AcquireRequest patient = hasty;
    patient.holder_key = "patient";
    patient.device.wait_for_device = true;
    const AcquireResult all = h.MustAcquire(a, {.pool = "gpu-tests", .units = 2, .holder_key = "all"});
    const CallId early = h.Acquire(b, hasty), waits_on = h.Acquire(b, patient);
    ASSERT_TRUE(Drain(h, "loud").ok());
    EXPECT_TRUE(h.Refused(early, Reason::kDeviceDraining));
    EXPECT_TRUE(h.Refused(h.Acquire(b, hasty), Reason::kDeviceDraining));
    patient.holder_key = "late";
    const CallId late = h.Acquire(b, patient);
    h.Release(a, all.acquisition);
    EXPECT_FALSE(h.Answered(waits_on) || h.Answered(late));
    Undrain(h);
    EXPECT_TRUE(h.StatusOf(waits_on).ok()) << h.StatusOf(waits_on);
    EXPECT_TRUE(h.StatusOf(late).ok()) << h.StatusOf(late);
  }
}

TEST(CoreInventoryTest, RefusalNamesDrainedDevices) {
  CoreHarness h;
  Peer a = h.Open();
  for (const uint32_t device : {0u, 1u}) {
    h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DrainDevice(h.now, device, "fans", effects).ok()); });
  }
  for (const Bytes declared : {Bytes(), MiB(1)}) {
    AcquireRequest request = On("", "k");
    request.wait = false;
    request.device.declared = declared;
    const CallId refused = h.Acquire(a, request);
    EXPECT_TRUE(h.Refused(refused, Reason::kNoPermit));
    const std::string text(h.StatusOf(refused).message());
    EXPECT_TRUE(absl::StrContains(text, "device 0 is being drained: fans; device 1 is being drained: fans")) << text;
    EXPECT_TRUE(absl::StrContains(text, "`berth device undrain`")) << text;
    EXPECT_FALSE(absl::StrContains(text, "bytes free")) << text;
  }
}

TEST(CoreInventoryTest, SupervisorReportsDrainToBroker) {
  CoreHarness h;
  Report(h, {.drain_reason = "loud"});
  EXPECT_EQ(View(h).state, DeviceState::kDraining);
  EXPECT_TRUE(h.commands.empty());
  h.DropWorker(/*stopped=*/true);
  EXPECT_EQ(View(h).state, DeviceState::kStopped) << "which says more";
  EXPECT_EQ(View(h).drain_reason, "loud");
  // A later report may precede the supervisor's receipt of the command.
  Undrain(h);
  Report(h, {.drain_reason = "loud"});
  EXPECT_EQ(View(h).drain_reason, "");
  EXPECT_TRUE(Drain(h, std::string(200, 'x')).ok());
  EXPECT_EQ(View(h).drain_reason, std::string(128, 'x'));
}

TEST(CoreInventoryTest, GangForDrainedDeviceIsRejected) {
  CoreHarness h;
  Peer a = h.Open();
  ASSERT_TRUE(Drain(h, "loud").ok());
  GangRequest gang = {.members = {{.pool = "wide"}}, .holder_key = "g"};
  gang.members[0].device = {.pick = DevicePick::kNamed, .uuid = "DEVICE-0"};
  EXPECT_TRUE(h.Refused(h.AcquireGang(a, gang), Reason::kDeviceDraining));
  gang.members[0].device = {.pick = DevicePick::kAny};
  gang.reserve = {{.device = 0, .bytes = MiB(2)}};
  EXPECT_TRUE(h.Refused(h.AcquireGang(a, gang), Reason::kDeviceDraining));
}

TEST(CoreInventoryTest, DrainMakesPlanStaleAndPlansFollowCurrentLinks) {
  CoreHarness h;
  Peer a = h.Open();
  const PlanId plan = h.Get<PlanResult>(h.MakePlan(a, {.units = 10})).layout->id;
  ASSERT_TRUE(Drain(h, "loud").ok());
  EXPECT_EQ(h.core->GetPlan(a.caller(), plan)->stale, PlanStale::kDeviceDraining);
  const auto devices_of = [&](const PlanRequest& request) {
    std::vector<uint32_t> devices;
    const PlanResult result = h.Get<PlanResult>(h.MakePlan(a, request));
    for (const Tile& tile : result.layout->tiles) {
      devices.push_back(result.layout->devices[tile.device].ordinal);
    }
    return devices;
  };
  EXPECT_EQ(devices_of({.units = 10}), (std::vector<uint32_t>{1}));
  Undrain(h);
  EXPECT_EQ(devices_of({.units = 10}).size(), 2u);
  EXPECT_EQ(devices_of({.units = 10, .one_island = true}).size(), 1u) << "they are not linked";
  Survey(h, {.nvlink_peers = 2});
  EXPECT_EQ(devices_of({.units = 10, .one_island = true}).size(), 2u);
}

// ---- Blocks on a picked device ------------------------------------------------------------------------------

TEST(CoreInventoryTest, BlockGoesToPickedDeviceWithCapacity) {
  CoreHarness h;
  Peer a = h.Open();
  const auto device_of = [&](CallId call) {
    h.WorkAll();
    return h.Get<AllocateResult>(call).block.device;
  };
  const AllocateRequest constraint = {.bytes = MiB(10), .constraint = {.pick = DevicePick::kRoundRobin}};
  EXPECT_EQ(device_of(h.Allocate(a, constraint)), 0u);
  EXPECT_EQ(device_of(h.Allocate(a, constraint)), 1u);
  // Device 0 has 6 MiB of its budget left: it is skipped, as is device 1. The refusal then names the first device.
  const CallId full = h.Allocate(a, constraint);
  EXPECT_TRUE(h.Refused(full, Reason::kOverBudget));
  AllocateRequest small = constraint;
  small.bytes = MiB(6);
  EXPECT_EQ(device_of(h.Allocate(a, small)), 1u);
  AllocateRequest never = constraint;
  never.constraint.min_capability = 90;
  EXPECT_TRUE(h.Refused(h.Allocate(a, never), Reason::kNoDevice));
  AllocateRequest now = constraint;
  now.constraint.min_free = GiB(1);
  const CallId lacking = h.Allocate(a, now);
  EXPECT_TRUE(h.Refused(lacking, Reason::kNoDevice));
  EXPECT_TRUE(absl::StrContains(h.NamedValue(lacking, "lacking"), "device 0 is short of bytes"));
}

}  // namespace
}  // namespace berth::core
