#include <cstdint>
#include <functional>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

TEST(CoreWorkerTest, DeviceIsRebuildingUntilWorkerIsUp) {
  const Config config = CoreHarness::DefaultConfig();
  Core core(
      config, [] { return 1; }, [](StreamKey) { return FenceValues(); });
  EXPECT_EQ(core.ListDevices()[0].state, DeviceState::kRebuilding);
  Effects effects;
  core.WorkerUp(absl::UnixEpoch(), 0, WorkerKind::kMain, &effects);
  core.WorkerUp(absl::UnixEpoch(), 77, WorkerKind::kMain, &effects);
  EXPECT_EQ(core.ListDevices()[0].state, DeviceState::kReady);
  EXPECT_EQ(core.ListDevices()[1].state, DeviceState::kRebuilding);
}

TEST(CoreWorkerTest, PendingWorkIsRepeatedToNextWorker) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult live = h.MustAllocate(a, MiB(2));
  const AllocateResult freed = h.MustAllocate(a, MiB(4));
  h.Free(a, freed.block.handle, {freed.import});
  const CallId making = h.Allocate(a, MiB(6));
  h.DropWorker();
  EXPECT_EQ(h.core->ListDevices()[0].state, DeviceState::kRebuilding);
  EXPECT_EQ(h.BytesOf(0).retired, MiB(4)) << "nobody said that the memory is back";
  EXPECT_EQ(h.BytesOf(0).live, live.block.bytes);
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(6));
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(making).ok());
  EXPECT_EQ(h.BytesOf(0).retired, Bytes(0));
}

TEST(CoreWorkerTest, RequestThatEndsTwoWorkersIsRefused) {
  struct Row {
    const char* name;
    // Commands before the request's, and how many of them each worker answers before it ends.
    int before;
    int answered;
    int deaths;
    bool refused;
  };
  for (const Row& row : {Row{"one death", 0, 0, 1, false}, Row{"two deaths", 0, 0, 2, true},
                         Row{"two deaths behind another command", 1, 0, 2, false},
                         Row{"two deaths after another command", 1, 1, 2, true}}) {
    SCOPED_TRACE(row.name);
    CoreHarness h;
    Peer a = h.Open(1000);
    Peer b = h.Open(1001);
    Peer c = h.Open(1002);
    for (int i = 0; i < row.before; ++i) h.Allocate(b, MiB(2));
    const CallId request = h.Allocate(a, MiB(4));
    const CallId behind = h.Allocate(c, MiB(6));
    for (int i = 0; i < row.answered; ++i) h.WorkOnce();
    for (int death = 0; death < row.deaths; ++death) {
      EXPECT_FALSE(h.Answered(request)) << death;
      h.DropWorker();
      h.RaiseWorker();
    }
    EXPECT_EQ(h.Answered(request), row.refused);
    if (row.refused) {
      EXPECT_TRUE(h.Refused(request, Reason::kDriver));
      EXPECT_EQ(h.NamedValue(request, "requested"), absl::StrCat(MiB(4).count()));
    }
    h.WorkAll();
    EXPECT_EQ(h.StatusOf(request).ok(), !row.refused);
    EXPECT_TRUE(h.StatusOf(behind).ok());
    EXPECT_EQ(h.BytesOf(0).reserved, Bytes(0));
  }
}

TEST(CoreWorkerTest, UserIsHeldBackAfterTwoEndedWorkers) {
  CoreHarness h;
  Peer a = h.Open(1000);
  Peer same_user = h.Open(1000);
  Peer other = h.Open(1001);
  const AllocateResult own = h.MustAllocate(a, MiB(2));
  const AllocateResult others = h.MustAllocate(other, MiB(2));
  // Two requests, each fatal to one worker.
  const CallId first = h.Allocate(a, MiB(4));
  h.DropWorker();
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(first).ok());
  const CallId second = h.Allocate(a, MiB(2));
  const CallId waiting = h.Allocate(same_user, MiB(2));
  h.DropWorker();
  h.RaiseWorker();
  for (const CallId call : {second, waiting, h.Allocate(a, MiB(2)), h.Allocate(same_user, MiB(2))}) {
    ASSERT_TRUE(h.Answered(call));
    EXPECT_TRUE(h.Refused(call, Reason::kDriver)) << h.StatusOf(call);
    EXPECT_EQ(h.NamedValue(call, "user"), "1000");
    EXPECT_EQ(h.NamedValue(call, "seconds"), "60");
    EXPECT_TRUE(GetErrorDetails(h.StatusOf(call))->retry_after.has_value());
  }
  // The user's releases wait for the end of the hold, too; other users are served.
  h.Free(a, own.block.handle, {own.import});
  h.Free(other, others.block.handle, {others.import});
  h.WorkAll();
  h.MustAllocate(other, MiB(6));
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  EXPECT_EQ(h.core->ListDevices()[0].failed_releases, 1u);
  h.now += absl::Seconds(60);
  h.Tick();
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).retired, Bytes(0));
  h.MustAllocate(a, MiB(2));
}

TEST(CoreWorkerTest, ReplacedWorkersAreChargedToNobody) {
  CoreHarness h;
  Peer a = h.Open(1000);
  const AllocateResult freed = h.MustAllocate(a, MiB(4));
  h.Free(a, freed.block.handle, {freed.import});
  const CallId request = h.Allocate(a, MiB(2));
  for (int replaced = 0; replaced < 3; ++replaced) {
    h.Do([&](Core& core, Effects* effects) {
      core.ReportDevice(h.now, 0, WorkerKind::kMain, {.replaced = true}, effects);
    });
    h.DropWorker();
    EXPECT_FALSE(h.Answered(request)) << replaced;
    h.RaiseWorker();
  }
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(request).ok()) << h.StatusOf(request);
  EXPECT_EQ(h.BytesOf(0).retired, Bytes(0));
  h.MustAllocate(a, MiB(2));
}

TEST(CoreWorkerTest, ReleaseThatEndsTwoWorkersWaitsForReap) {
  CoreHarness h;
  Peer a = h.Open(1000);
  Peer other = h.Open(1001);
  const AllocateResult freed = h.MustAllocate(a, MiB(4));
  h.Free(a, freed.block.handle, {freed.import});
  for (int death = 0; death < 2; ++death) {
    h.DropWorker();
    h.RaiseWorker();
  }
  EXPECT_TRUE(h.jobs.empty());
  EXPECT_EQ(h.BytesOf(0).retired, MiB(4));
  EXPECT_EQ(h.core->ListDevices()[0].failed_releases, 1u);
  h.MustAllocate(other, MiB(4));
  // Neither another worker nor the end of the hold repeats it.
  h.DropWorker();
  h.RaiseWorker();
  h.now += absl::Seconds(60);
  h.Tick();
  EXPECT_TRUE(h.jobs.empty());
  Caller admin = a.caller();
  admin.admin = true;
  h.Ask([&](Core& core, CallId call, Effects* effects) { core.Reap(h.now, call, admin, effects); });
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).retired, Bytes(0));
}

TEST(CoreWorkerTest, ReleaseByWorkerDeathIsNotRepeated) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult freed = h.MustAllocate(a, MiB(4));
  h.Free(a, freed.block.handle, {freed.import});
  h.DropWorker();
  h.Do([&](Core& core, Effects* effects) {
    core.BlockReleased(h.now, freed.block.handle.block, absl::OkStatus(), effects);
  });
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
  h.RaiseWorker();
  EXPECT_EQ(h.last_effects, "");
}

TEST(CoreWorkerTest, StuckBlockEndsWithItsWorkerOnce) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult freed = h.MustAllocate(a, MiB(16));
  const auto released = [&](const absl::Status& status) {
    h.Do([&](Core& core, Effects* effects) {
      core.BlockReleased(h.now, freed.block.handle.block, status, effects);
    });
  };
  h.Free(a, freed.block.handle, {freed.import});
  h.WorkOnce(absl::InternalError("no"));
  released(absl::InternalError("no"));
  EXPECT_EQ(h.core->ListDevices()[0].failed_releases, 1u);
  h.DropWorker();
  released(absl::OkStatus());
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
  h.RaiseWorker();
  h.MustAllocate(a, MiB(16));
}

TEST(CoreWorkerTest, AllocationsWaitForRebuildUpToLimit) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.waiting_allocations_per_device = 1;
  CoreHarness h(config);
  Peer a = h.Open();
  h.DropWorker();
  const CallId waiting = h.Allocate(a, MiB(2));
  EXPECT_FALSE(h.Answered(waiting));
  const std::string before = h.Accounts();
  const CallId refused = h.Allocate(a, {.bytes = MiB(2)});
  EXPECT_TRUE(h.Refused(refused, Reason::kDeviceRebuilding));
  EXPECT_TRUE(GetErrorDetails(h.StatusOf(refused))->retry_after.has_value());
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(20)), Reason::kOverBudget));
  EXPECT_EQ(h.Accounts(), before);
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  // Retries the same request, whose refusal was not final.
  const CallId retry = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Allocate(h.now, call, a.caller(), {.sequence = 2}, {.bytes = MiB(2)}, effects);
  });
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(retry).ok());
}

// A worker makes 8 blocks of users at once, and 2 of operators.
Config FewCreates() {
  Config config = CoreHarness::DefaultConfig();
  for (DeviceConfig& device : config.devices) device.budget = MiB(64);
  config.limits.creates_per_worker = 8;
  config.limits.operator_creates_per_worker = 2;
  return config;
}

// Requests blocks until a refusal, which must name the count, while the worker makes none. Returns how many it accepts.
uint64_t FloodCreates(CoreHarness& h, Peer& peer) {
  for (uint64_t accepted = 0; accepted < 100; ++accepted) {
    const std::string before = h.Accounts();
    const CallId call = h.Allocate(peer, MiB(2));
    if (!h.Answered(call)) continue;
    EXPECT_TRUE(h.Refused(call, Reason::kLimit)) << h.StatusOf(call);
    EXPECT_EQ(h.NamedValue(call, "what"), "creates_per_worker") << h.StatusOf(call);
    EXPECT_TRUE(GetErrorDetails(h.StatusOf(call))->retry_after.has_value());
    EXPECT_EQ(h.Accounts(), before) << "a refusal changes nothing";
    return accepted;
  }
  ADD_FAILURE() << "the creates have no bound";
  return 100;
}

TEST(CoreWorkerTest, CreatesCountToTheirUserUntilTheyEnd) {
  struct Row {
    const char* name;
    std::function<void(CoreHarness&, Peer&)> then;
    // Number of blocks that the first user may request afterwards.
    uint64_t free;
  };
  constexpr uint64_t kShare = 4;
  const Row rows[] = {
      {"the worker makes all", [](CoreHarness& h, Peer&) { h.WorkAll(); }, kShare},
      // The first user has had one more than its share since the second one came.
      {"the worker makes two",
       [](CoreHarness& h, Peer&) {
         h.WorkOnce();
         h.WorkOnce();
       },
       1},
      {"the worker fails to make two",
       [](CoreHarness& h, Peer&) {
         h.WorkOnce(Refuse(Reason::kDriver, "no"));
         h.WorkOnce(Refuse(Reason::kDriver, "no"));
       },
       1},
      {"the worker dies",
       [](CoreHarness& h, Peer&) {
         h.DropWorker();
         h.RaiseWorker();
       },
       0},
      {"the device stops, and serves again",
       [](CoreHarness& h, Peer&) {
         h.DropWorker(/*stopped=*/true);
         h.RaiseWorker();
       },
       kShare},
      {"the broker restarts", [](CoreHarness& h, Peer&) { h.Restart(); }, 0},
      {"a request is forgotten", [](CoreHarness& h, Peer& a) { h.Forget(a, 1); }, 0},
      {"the session ends",
       [](CoreHarness& h, Peer& a) {
         h.HangUp(a);
         h.Gone(a);
       },
       0},
      {"the session ends, and the worker dies",
       [](CoreHarness& h, Peer& a) {
         h.HangUp(a);
         h.Gone(a);
         h.DropWorker();
         h.RaiseWorker();
       },
       3},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    CoreHarness h(FewCreates());
    Peer a = h.Open(1000), same_user = h.Open(1000), b = h.Open(1001), op = h.Open(0, /*of_operator=*/true);
    EXPECT_EQ(FloodCreates(h, a), kShare);
    EXPECT_EQ(FloodCreates(h, same_user), 0u);
    EXPECT_EQ(FloodCreates(h, b), 2u);
    EXPECT_EQ(FloodCreates(h, op), 2u);
    row.then(h, a);
    EXPECT_EQ(FloodCreates(h, same_user), row.free);
    h.WorkAll();
    EXPECT_EQ(FloodCreates(h, same_user), kShare) << "all places are free again";
    h.WorkAll();
  }
}

TEST(CoreWorkerTest, EachWorkerHasItsOwnCreates) {
  CoreHarness h(FewCreates());
  Peer a = h.Open(1000);
  EXPECT_EQ(FloodCreates(h, a), 4u);
  const CallId refused = h.Allocate(a, MiB(2));
  EXPECT_EQ(h.StatusOf(refused).message(),
            "device 0: creates_per_worker: user 1000 has 4, share 4; all users have 4 of 8; retry once the worker has "
            "made blocks, or use another device");
  const CallId by_context = h.Allocate(a, {.bytes = MiB(2), .kinds = {.fd = false, .cuda_ipc = true}});
  EXPECT_FALSE(h.Answered(by_context));
  const CallId elsewhere = h.Allocate(a, MiB(20), 1);
  EXPECT_FALSE(h.Answered(elsewhere));
  // A request that lets the daemon choose passes over the busy worker, though its device has more free bytes.
  const CallId anywhere = h.Allocate(a, {.bytes = MiB(2), .constraint = {.pick = DevicePick::kBest}});
  EXPECT_FALSE(h.Answered(anywhere));
  h.WorkAll();
  EXPECT_EQ(h.Get<AllocateResult>(elsewhere).block.device, 1u);
  EXPECT_EQ(h.Get<AllocateResult>(anywhere).block.device, 1u);
}

TEST(CoreWorkerTest, WaitingRequestsHaveTheirPlaceAmongCreates) {
  CoreHarness h(FewCreates());
  Peer a = h.Open(1000), b = h.Open(1001);
  h.DropWorker();
  EXPECT_EQ(FloodCreates(h, a), 4u);
  EXPECT_EQ(FloodCreates(h, b), 2u);
  h.RaiseWorker();
  EXPECT_EQ(h.jobs.size(), 6u) << "no request that waited is refused";
  EXPECT_EQ(FloodCreates(h, a), 0u) << "the places of those requests";
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).live, MiB(12));
  EXPECT_EQ(FloodCreates(h, a), 4u);
}

TEST(CoreWorkerTest, WarmBlocksAreServedWhileRebuilding) {
  Config config = CoreHarness::DefaultConfig();
  config.warm_blocks_per_size = 1;
  CoreHarness h(config);
  Peer a = h.Open();
  h.MustAllocate(a, MiB(2));
  h.DropWorker();
  EXPECT_TRUE(h.StatusOf(h.Allocate(a, MiB(2))).ok());
  EXPECT_EQ(h.last_effects, "deliver reply");
}

TEST(CoreWorkerTest, BlockFreedDuringRebuildIsReleasedLater) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  h.DropWorker();
  h.Free(a, block.block.handle, {block.import});
  EXPECT_EQ(h.last_effects, "reply");
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  h.RaiseWorker();
  EXPECT_EQ(h.last_effects, "release");
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreWorkerTest, StoppedDeviceRejectsWaitingAndNewRequests) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult live = h.MustAllocate(a, MiB(2));
  const CallId making = h.Allocate(a, MiB(2));
  h.DropWorker();
  const CallId waiting = h.Allocate(a, MiB(4));
  h.DropWorker(/*stopped=*/true);
  EXPECT_TRUE(h.Refused(making, Reason::kDeviceStopped));
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceStopped));
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(2)), Reason::kDeviceStopped));
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(2));
  // Blocks of the worker stay usable for present and future importers.
  EXPECT_TRUE(h.StatusOf(h.Import(a, live.block.handle)).ok());
  h.MustAllocate(a, MiB(2), 1);
  h.RaiseWorker();
  h.MustAllocate(a, MiB(2));
}

TEST(CoreWorkerTest, RepliesOfEndedWorkerAreIgnored) {
  CoreHarness h;
  Peer a = h.Open();
  h.Allocate(a, MiB(2));
  const BlockId block = std::get<CreateBlock>(h.jobs.front()).block;
  h.DropWorker();
  const std::string before = h.Accounts();
  for (const absl::Status& status : {absl::OkStatus(), absl::InternalError("late")}) {
    h.Do([&](Core& core, Effects* effects) {
      core.BlockCreated(h.now, block, status, effects);
      core.BlockReleased(h.now, block, status, effects);
      core.BlockCreated(h.now, BlockId(5), status, effects);
      core.BlockReleased(h.now, BlockId(5), status, effects);
    });
    EXPECT_EQ(h.last_effects, "");
  }
  EXPECT_EQ(h.Accounts(), before);
}

TEST(CoreWorkerTest, UnwantedBlockIsNotCreatedAnew) {
  CoreHarness h;
  Peer a = h.Open();
  h.Allocate(a, MiB(2));
  h.Forget(a, a.sequence);
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(2));
  h.DropWorker();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
  const CallId call = h.Allocate(a, MiB(2));
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, call, effects); });
  h.RaiseWorker();
  EXPECT_EQ(h.last_effects, "");
}

TEST(CoreWorkerTest, RetryAfterReapSurvivesWorkerDeath) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult old = h.MustAllocate(a, MiB(4));
  const CallId call = h.Allocate(a, MiB(2));
  h.Free(a, old.block.handle, {old.import});
  h.WorkOnce(Refuse(Reason::kOutOfMemory, "full"));
  EXPECT_FALSE(h.Answered(call));
  h.DropWorker();
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(call).ok());
}

}  // namespace
}  // namespace berth::core
