#include "absl/strings/match.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

void Report(CoreHarness& h, const DeviceReport& report) {
  h.Do([&](Core& core, Effects* effects) { core.ReportDevice(h.now, 0, WorkerKind::kMain, report, effects); });
}

using Verb = absl::StatusOr<DeviceView> (Core::*)(absl::Time, uint32_t, Effects*);

absl::StatusOr<DeviceView> Operate(CoreHarness& h, Verb verb, uint32_t device = 0) {
  absl::StatusOr<DeviceView> view;
  h.Do([&](Core& core, Effects* effects) { view = (core.*verb)(h.now, device, effects); });
  return view;
}

DeviceView View(const CoreHarness& h) { return h.core->ListDevices()[0]; }

TEST(CoreDeviceTest, HungWorkerIsKilledAndNextRepeatsCall) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId making = h.Allocate(a, MiB(2));
  const absl::Time due = h.core->next_deadline();
  EXPECT_GE(due, h.now + absl::Seconds(10));
  h.now = due - absl::Nanoseconds(1);
  h.Tick();
  EXPECT_TRUE(h.commands.empty());
  h.now = due;
  h.Tick();
  ASSERT_EQ(h.commands.size(), 1u);
  EXPECT_EQ(h.commands[0].device, 0u);
  EXPECT_EQ(h.commands[0].command, WorkerCommand::kKill);
  EXPECT_TRUE(absl::StrContains(h.commands[0].why, "a driver call did not end within 10s")) << h.commands[0].why;
  EXPECT_EQ(View(h).state, DeviceState::kRebuilding);
  EXPECT_EQ(View(h).last_failure, h.commands[0].why);
  EXPECT_EQ(h.core->next_deadline(), absl::InfiniteFuture()) << "it is ended once";
  // Meanwhile a new request waits.
  const CallId waiting = h.Allocate(a, MiB(2));
  h.DropWorker();
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(making).ok());
  EXPECT_TRUE(h.StatusOf(waiting).ok());
}

TEST(CoreDeviceTest, AnsweringWorkerIsNotHung) {
  CoreHarness h;
  Peer a = h.Open();
  for (int i = 0; i < 4; ++i) h.Allocate(a, MiB(2));
  for (int i = 0; i < 4; ++i) {
    h.now += absl::Seconds(9);
    h.Tick();
    h.WorkOnce();
  }
  EXPECT_TRUE(h.commands.empty());
  EXPECT_EQ(h.core->next_deadline(), absl::InfiniteFuture());
}

TEST(CoreDeviceTest, HungReleaseIsDetected) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  h.Free(a, block.block.handle, {block.import});
  h.now = h.core->next_deadline();
  h.Tick();
  EXPECT_EQ(h.last_effects, "order");
  h.DropWorker();
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreDeviceTest, LateAnswerOfHungWorkerIsAccepted) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId making = h.Allocate(a, MiB(2));
  h.now = h.core->next_deadline();
  h.Tick();
  h.WorkOnce();
  EXPECT_TRUE(h.StatusOf(making).ok());
  h.DropWorker();
  h.RaiseWorker();
  EXPECT_EQ(h.last_effects, "");
}

TEST(CoreDeviceTest, SupervisorReportIsShown) {
  CoreHarness h;
  const uint64_t before = h.device_changes;
  Report(h, {.restarts_left = 2, .last_failure = "signal 11"});
  EXPECT_EQ(View(h).restarts_left, 2u);
  EXPECT_EQ(View(h).last_failure, "signal 11");
  EXPECT_GT(h.device_changes, before);
  h.Do([&](Core& core, Effects* effects) { core.ReportDevice(h.now, 77, WorkerKind::kMain, {}, effects); });
}

TEST(CoreDeviceTest, StoppedDeviceNamesReasonAndOperatorEnablesIt) {
  CoreHarness h;
  Peer a = h.Open();
  Report(h, {.last_failure = "signal 11"});
  h.DropWorker(/*stopped=*/true);
  const CallId refused = h.Allocate(a, MiB(2));
  EXPECT_TRUE(h.Refused(refused, Reason::kDeviceStopped));
  EXPECT_EQ(h.NamedValue(refused, "why"), "signal 11");
  const absl::Status no_restart = Operate(h, &Core::RestartDevice).status();
  EXPECT_TRUE(IsRefusal(no_restart, Reason::kDeviceStopped)) << no_restart;
  EXPECT_TRUE(h.commands.empty());

  const absl::StatusOr<DeviceView> enabled = Operate(h, &Core::EnableDevice);
  ASSERT_TRUE(enabled.ok()) << enabled.status();
  EXPECT_EQ(enabled->state, DeviceState::kProbation);
  ASSERT_EQ(h.commands.size(), 1u);
  EXPECT_EQ(h.commands[0].command, WorkerCommand::kEnable);
  const CallId waiting = h.Allocate(a, MiB(2));
  EXPECT_FALSE(h.Answered(waiting));
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  // A device in service is unchanged.
  EXPECT_EQ(Operate(h, &Core::EnableDevice)->state, DeviceState::kReady);
  EXPECT_EQ(h.commands.size(), 1u);
}

TEST(CoreDeviceTest, DeviceWithLivingWorkerCannotBeEnabled) {
  CoreHarness h;
  Report(h, {.abandoned = true, .last_failure = "it did not end"});
  h.DropWorker(/*stopped=*/true);
  const absl::Status refused = Operate(h, &Core::EnableDevice).status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kDeviceStopped)) << refused;
  EXPECT_TRUE(h.commands.empty());
  Report(h, {});
  h.DropWorker(/*stopped=*/true);
  EXPECT_TRUE(Operate(h, &Core::EnableDevice).ok());
}

TEST(CoreDeviceTest, RestartedWorkerRepeatsPendingCalls) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult live = h.MustAllocate(a, MiB(2));
  const CallId making = h.Allocate(a, MiB(4));
  ASSERT_TRUE(Operate(h, &Core::RestartDevice).ok());
  EXPECT_EQ(h.commands.back().command, WorkerCommand::kRestart);
  // A second restart finds no worker to restart yet.
  ASSERT_TRUE(Operate(h, &Core::RestartDevice).ok());
  EXPECT_EQ(h.commands.size(), 1u);
  h.DropWorker();
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(making).ok());
  EXPECT_TRUE(h.StatusOf(h.Import(a, live.block.handle)).ok()) << "its memory is what it was";
}

TEST(CoreDeviceTest, NewGenerationMakesBlocksStaleButFreeable) {
  Config config = CoreHarness::DefaultConfig();
  config.warm_blocks_per_size = 1;
  config.warm_refill_delay = absl::ZeroDuration();
  CoreHarness h(config);
  Peer a = h.Open();
  const AllocateResult old = h.MustAllocate(a, MiB(2));
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).warm, MiB(2));
  ASSERT_TRUE(Operate(h, &Core::ResetDevice).ok());
  EXPECT_EQ(h.commands.back().command, WorkerCommand::kReset);
  Report(h, {.generation = 2, .restarts_left = 3});
  EXPECT_EQ(h.BytesOf(0).warm, Bytes(0)) << "nobody is given what is lost";
  EXPECT_EQ(h.BytesOf(0).live, MiB(2)) << "nobody has given it back";
  h.DropWorker();
  h.RaiseWorker();
  h.WorkAll();
  const CallId import = h.Import(a, old.block.handle);
  EXPECT_TRUE(h.Refused(import, Reason::kStale));
  EXPECT_EQ(h.NamedValue(import, "why"), "context rebuilt");
  EXPECT_TRUE(h.Refused(h.Grant(a, old.block.handle, a.session), Reason::kStale));
  const AllocateResult fresh = h.MustAllocate(a, MiB(2));
  EXPECT_EQ(old.block.handle.generation, 1u);
  EXPECT_EQ(fresh.block.handle.generation, 2u);
  EXPECT_TRUE(h.StatusOf(h.Import(a, fresh.block.handle)).ok());
  EXPECT_TRUE(h.StatusOf(h.Free(a, old.block.handle, {old.import})).ok());
  // A generation does not move back.
  Report(h, {.generation = 1});
  EXPECT_EQ(View(h).generation, 2u);
}

TEST(CoreDeviceTest, BlockMadeByOldWorkerHasOldGeneration) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId made_before = h.Allocate(a, MiB(2));
  const CallId made_after = h.Allocate(a, MiB(4));
  Report(h, {.generation = 2});
  h.WorkOnce();
  EXPECT_EQ(h.Get<AllocateResult>(made_before).block.handle.generation, 1u);
  h.DropWorker();
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_EQ(h.Get<AllocateResult>(made_after).block.handle.generation, 2u);
}

TEST(CoreDeviceTest, DroppedDeviceRejectsWaitersForGood) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult live = h.MustAllocate(a, MiB(2));
  const CallId making = h.Allocate(a, MiB(2));
  h.DropWorker();
  const CallId waiting = h.Allocate(a, MiB(4));
  const absl::StatusOr<DeviceView> dropped = Operate(h, &Core::DropDevice);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(dropped->state, DeviceState::kDropped);
  EXPECT_EQ(h.commands.back().command, WorkerCommand::kDrop);
  EXPECT_TRUE(h.Refused(making, Reason::kDeviceStopped));
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceStopped));
  h.RaiseWorker();
  EXPECT_EQ(View(h).state, DeviceState::kDropped) << "a worker that had been started before";
  Report(h, {.dropped = true, .last_failure = "gone"});
  h.DropWorker(/*stopped=*/true);
  EXPECT_EQ(View(h).state, DeviceState::kDropped);
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(2)), Reason::kDeviceStopped));
  const CallId import = h.Import(a, live.block.handle);
  EXPECT_TRUE(h.Refused(import, Reason::kStale));
  EXPECT_EQ(h.NamedValue(import, "why"), "device state dropped");
  for (const Verb verb : {&Core::EnableDevice, &Core::RestartDevice, &Core::RestartContext,
                          &Core::ResetDevice, &Core::DropDevice}) {
    EXPECT_TRUE(IsRefusal(Operate(h, verb).status(), Reason::kDeviceStopped));
  }
  EXPECT_TRUE(h.StatusOf(h.Free(a, live.block.handle, {live.import})).ok());
  h.MustAllocate(a, MiB(2), 1);
}

TEST(CoreDeviceTest, DeviceLostByNodeRejectsWaiters) {
  CoreHarness h;
  Peer a = h.Open();
  h.DropWorker();
  const CallId waiting = h.Allocate(a, MiB(4));
  Report(h, {.generation = 2, .dropped = true, .last_failure = "the node has this device no more"});
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceStopped));
  EXPECT_EQ(h.NamedValue(waiting, "why"), "the node has this device no more");
  EXPECT_EQ(View(h).state, DeviceState::kDropped);
}

TEST(CoreDeviceTest, UnknownDeviceIsNotFound) {
  CoreHarness h;
  for (const Verb verb : {&Core::EnableDevice, &Core::RestartDevice, &Core::RestartContext,
                          &Core::ResetDevice, &Core::DropDevice}) {
    EXPECT_TRUE(IsRefusal(Operate(h, verb, 9).status(), Reason::kNotFound));
  }
  EXPECT_TRUE(h.commands.empty());
}

TEST(CoreDeviceTest, ShutdownRejectsWaitersForWorker) {
  CoreHarness h;
  Peer a = h.Open();
  const CallId making = h.Allocate(a, MiB(2));
  h.DropWorker();
  const CallId waiting = h.Allocate(a, MiB(4));
  h.Do([&](Core& core, Effects* effects) { core.ShutDown(h.now, effects); });
  EXPECT_TRUE(h.Refused(making, Reason::kShuttingDown));
  EXPECT_TRUE(h.Refused(waiting, Reason::kShuttingDown));
}

}  // namespace
}  // namespace berth::core
