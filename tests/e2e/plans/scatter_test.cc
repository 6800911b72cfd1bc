// Scatters over the node's devices: a thread for each tile, whatever happens to the devices meanwhile.

#include <berth/scatter.h>

#include <signal.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <berth/error.h>
#include <berth/lazy_scope.h>
#include <berth/permit.h>
#include <berth/plan.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

TestDaemonOptions Devices(int count) {
  return {.flags = {absl::StrCat("--host-devices=", count), "--host-bytes=64MiB"},
          .config = "[pools.a]\ncap = 4\n"};
}

std::shared_ptr<Session> OpenSession(const TestDaemon& daemon) {
  return Must(Session::Open({.folder = daemon.folder(), .always_new = true}), "session");
}

std::vector<int> Numbers(size_t count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Runs the tiles on host memory, which is the memory of these tests' devices.
ScatterOptions OnHost(ScatterOptions options = {}) {
  options.host_devices = true;
  return options;
}

// Squares a tile's own items.
absl::Status Square(const TileRun&, absl::Span<int> items) {
  for (int& item : items) item *= item;
  return absl::OkStatus();
}

pid_t WorkerOf(TestDaemon& daemon, uint32_t device) {
  for (const ChildInfo& child : ChildrenOf(daemon.supervisor().pid())) {
    if (child.name == absl::StrCat("berth-worker", device)) return child.pid;
  }
  return 0;
}

v1::Device::State StateOf(TestDaemon& daemon, uint32_t device) {
  return Must(daemon.inspector().ListDevices(), "devices").devices(static_cast<int>(device)).state();
}

// Kills the device's workers until no further worker follows.
void KillUntilItStops(TestDaemon& daemon, uint32_t device) {
  ASSERT_TRUE(Eventually([&] {
    if (const pid_t worker = WorkerOf(daemon, device)) ::kill(worker, SIGKILL);
    return StateOf(daemon, device) == v1::Device::STOPPED;
  }));
}

TEST(ScatterTest, EachTileHasItsItemsDeviceAndThread) {
  TestDaemon daemon(Devices(8));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  const Plan plan = Must(Plan::Make(session, {.units = 1'001}), "plan");
  std::vector<int> items = Numbers(1'001);
  std::mutex mu;
  std::set<std::thread::id> threads;
  std::set<int> ordinals;
  const ScatterReport report = ScatterBatched(plan, absl::MakeSpan(items),
                                              [&](const TileRun& run, absl::Span<int> mine) -> absl::Status {
                                                EXPECT_EQ(mine.size(), run.tile().units());
                                                EXPECT_EQ(mine[0], static_cast<int>(run.tile().begin));
                                                EXPECT_FALSE(run.cancelled());
                                                {
                                                  std::lock_guard<std::mutex> lock(mu);
                                                  threads.insert(std::this_thread::get_id());
                                                  ordinals.insert(run.ordinal());
                                                }
                                                return Square(run, mine);
                                              },
                                              OnHost());
  EXPECT_TRUE(Ok(report.status));
  EXPECT_EQ(report.tiles.size(), 8u);
  EXPECT_FALSE(report.may_be_partly_changed);
  EXPECT_EQ(threads.size(), 8u);
  EXPECT_EQ(ordinals.size(), 8u);
  for (int i = 0; i < 1'001; ++i) ASSERT_EQ(items[i], i * i);
}

TEST(ScatterTest, ErrorNamesItsTileAndOthersEnd) {
  TestDaemon daemon(Devices(4));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  const Plan plan = Must(Plan::Make(session, {.units = 40}), "plan");
  std::vector<int> items = Numbers(40);
  ScatterReport report =
      ScatterBatched(plan, absl::MakeSpan(items),
                     [](const TileRun& run, absl::Span<int> mine) -> absl::Status {
                       if (run.index() == 2)
                         return Refuse(Reason::kDriver, "{call} failed", {{"call", "cuLaunchKernel"}});
                       if (run.index() == 3) throw std::runtime_error("no such thing");
                       return Square(run, mine);
                     },
                     OnHost({.stop_at_first_error = false}));
  EXPECT_TRUE(Refused(report.status, Reason::kDriver,
                      {{"tile", "2"}, {"tile_device", "HOST-2"}, {"tile_begin", "20"}, {"tile_end", "30"}}));
  EXPECT_TRUE(report.may_be_partly_changed);
  EXPECT_TRUE(report.tiles[0].ok() && report.tiles[1].ok());
  EXPECT_TRUE(
      absl::StrContains(report.tiles[3].message(), "tile 3 of 4 (device HOST-3, units 30 to 40): threw"))
      << report.tiles[3];
  EXPECT_EQ(NamedValueOf(report.tiles[3], "tile"), "3");
  EXPECT_EQ(NamedValueOf(report.tiles[3], "tile_device"), "HOST-3");
  EXPECT_EQ(items[19], 19 * 19);
  EXPECT_EQ(items[20], 20) << "the tile that failed has touched nothing";
  // With this option the other tiles are cancelled at once.
  report = RunTiles(plan,
                    [](const TileRun& run) -> absl::Status {
                      if (run.index() == 3) return absl::DataLossError("lost");
                      while (!run.cancelled()) std::this_thread::yield();
                      return absl::CancelledError("told");
                    },
                    OnHost());
  EXPECT_TRUE(absl::IsDataLoss(report.status)) << report.status;
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"tile", "3"}, {"tile_device", "HOST-3"}, {"tile_begin", "30"}, {"tile_end", "40"}}) {
    EXPECT_EQ(NamedValueOf(report.status, name), value) << name;
  }
}

TEST(ScatterTest, UnfitScatterIsRejectedBeforeItBegins) {
  TestDaemon daemon(Devices(2));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  Plan plan = Must(Plan::Make(session, {.units = 40}), "plan");
  std::vector<int> items = Numbers(39);
  ScatterReport report = ScatterBatched(plan, absl::MakeSpan(items), Square, OnHost());
  EXPECT_TRUE(absl::IsInvalidArgument(report.status)) << report.status;
  EXPECT_TRUE(report.tiles.empty());
  EXPECT_FALSE(report.may_be_partly_changed);
  Must(daemon.inspector().DropDevice(1), "drop");
  ASSERT_TRUE(Eventually([&] { return plan.stale(); }));
  items = Numbers(40);
  report = ScatterBatched(plan, absl::MakeSpan(items), Square, OnHost());
  EXPECT_TRUE(Refused(report.status, Reason::kStale));
  EXPECT_EQ(items, Numbers(40));
  Must(plan.Replan(), "replan");
  EXPECT_TRUE(Ok(ScatterBatched(plan, absl::MakeSpan(items), Square, OnHost()).status));
  EXPECT_EQ(items[39], 39 * 39);
}

TEST(ScatterTest, WorkerKilledDuringScatterCostsNothing) {
  TestDaemon daemon(Devices(2));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  const Plan plan = Must(Plan::Make(session, {.units = 10}), "plan");
  const pid_t worker = WorkerOf(daemon, 1);
  const auto tile = [&](const TileRun& run) -> absl::Status {
    if (run.index() != 1) return absl::OkStatus();
    ::kill(worker, SIGKILL);
    return Eventually([&] { return WorkerOf(daemon, 1) != worker && WorkerOf(daemon, 1) != 0; })
               ? absl::OkStatus()
               : absl::DeadlineExceededError("no other worker");
  };
  const ScatterReport report = RunTiles(plan, tile, OnHost());
  EXPECT_TRUE(Ok(report.status));
}

TEST(ScatterTest, DeviceLostDuringScatterIsNamedAndReplanContinues) {
  TestDaemon daemon(Devices(3));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  Plan plan = Must(Plan::Make(session, {.units = 90}), "plan");
  std::vector<int> items = Numbers(90);
  const ScatterReport report = ScatterBatched(plan, absl::MakeSpan(items),
                                              [&](const TileRun& run, absl::Span<int> mine) -> absl::Status {
                                                if (run.index() == 1) {
                                                  KillUntilItStops(daemon, 1);
                                                  // The tile is cancelled; it may continue, but its result does not
                                                  // count.
                                                  if (!Eventually([&] { return run.cancelled(); }))
                                                    return absl::DeadlineExceededError("not told");
                                                }
                                                return Square(run, mine);
                                              },
                                              OnHost());
  EXPECT_TRUE(Refused(report.status, Reason::kStale,
                      {{"tile", "1"}, {"tile_device", "HOST-1"}, {"why", "device out of service"}}));
  EXPECT_TRUE(report.tiles[0].ok());
  EXPECT_TRUE(report.tiles[2].ok());
  EXPECT_TRUE(report.may_be_partly_changed);
  const std::vector<PlanMove> moves = Must(plan.Replan(), "replan");
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].begin, 30u);
  EXPECT_EQ(moves[1].end, 60u);
  items = Numbers(90);
  EXPECT_TRUE(Ok(ScatterBatched(plan, absl::MakeSpan(items), Square, OnHost()).status));
  for (int i = 0; i < 90; ++i) ASSERT_EQ(items[i], i * i);
}

TEST(ScatterTest, AcquireInsideTileNestsInPlansPermit) {
  TestDaemon daemon(Devices(4));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  const Plan plan = Must(Plan::Make(session, {.units = 4, .permits = PlanPermits{.pool = "a"}}), "plan");
  // The pool has no free permit: a request that did not nest would wait forever.
  const auto tile = [&](const TileRun& run) -> absl::Status {
    absl::StatusOr<Permit> plain = Permit::Acquire(session, {.pool = "a", .max_wait = absl::Seconds(10)});
    if (!plain.ok()) return plain.status();
    absl::StatusOr<Permit> placed = Permit::Acquire(
        session, {.pool = "a", .max_wait = absl::Seconds(10), .device = run.tile().device_uuid});
    if (!placed.ok()) return placed.status();
    return placed->device_uuid() == run.tile().device_uuid ? absl::OkStatus()
                                                           : absl::InternalError(placed->device_uuid());
  };
  const ScatterReport report = RunTiles(plan, tile, OnHost());
  EXPECT_TRUE(Ok(report.status));
  EXPECT_TRUE(IsRefusal(Permit::TryAcquire(session, {.pool = "a"}).status(), Reason::kNoPermit));
}

TEST(ScatterTest, ScatterIsCancelled) {
  TestDaemon daemon(Devices(2));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  const Plan plan = Must(Plan::Make(session, {.units = 2}), "plan");
  Cancellation cancellation;
  std::atomic<int> running = 0;
  std::thread user([&] {
    EXPECT_TRUE(Eventually([&] { return running == 2; }));
    cancellation.Cancel();
  });
  const ScatterReport report = RunTiles(plan,
                                        [&](const TileRun& run) -> absl::Status {
                                          ++running;
                                          while (!run.cancelled()) std::this_thread::yield();
                                          return absl::CancelledError("by the user");
                                        },
                                        OnHost({.cancellation = &cancellation}));
  user.join();
  EXPECT_TRUE(absl::IsCancelled(report.status)) << report.status;
  EXPECT_TRUE(report.may_be_partly_changed);
}

TEST(ScatterTest, CallerPolicyAppliesWithoutDevices) {
  TestDaemon daemon(Devices(1));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  absl::StatusOr<Plan> plan = Plan::Make(session, {.units = 3});
  ASSERT_TRUE(Ok(plan));
  std::vector<int> items = Numbers(3);
  int fallbacks = 0;
  ScatterOptions options = OnHost({.fallback = [&] {
    ++fallbacks;
    return absl::OkStatus();
  }});
  EXPECT_TRUE(Ok(ScatterBatched(plan, absl::MakeSpan(items), Square, options).status));
  EXPECT_EQ(fallbacks, 0) << "there is a device";
  options.policy = DevicePolicy::kOff;
  ScatterReport report = ScatterBatched(plan, absl::MakeSpan(items), Square, options);
  EXPECT_TRUE(Ok(report.status));
  EXPECT_EQ(fallbacks, 1);
  EXPECT_EQ(report.fell_back->kind, Absence::Kind::kPolicyOff);
  EXPECT_TRUE(absl::IsFailedPrecondition(RunTiles(plan, nullptr, {.policy = DevicePolicy::kOff}).status));
  // A tile that fails is an error, and no fallback follows.
  options.policy = DevicePolicy::kAuto;
  report = RunTiles(
      plan, [](const TileRun&) { return absl::DataLossError("lost"); }, options);
  EXPECT_TRUE(absl::IsDataLoss(report.status));
  EXPECT_EQ(fallbacks, 1);
  // No device serves.
  Must(daemon.inspector().DropDevice(0), "drop");
  plan = Plan::Make(session, {.units = 3});
  EXPECT_TRUE(Refused(plan.status(), Reason::kConstraint, {{"constraint", "devices"}}));
  report = ScatterBatched(plan, absl::MakeSpan(items), Square, options);
  EXPECT_TRUE(Ok(report.status));
  EXPECT_EQ(fallbacks, 2);
  EXPECT_EQ(report.fell_back->kind, Absence::Kind::kNoDevice);
  options.policy = DevicePolicy::kRequired;
  EXPECT_TRUE(
      IsRefusal(ScatterBatched(plan, absl::MakeSpan(items), Square, options).status, Reason::kConstraint));
  EXPECT_EQ(fallbacks, 2);
}

TEST(ScatterTest, HostMemoryIsNoDeviceUnlessAllowed) {
  TestDaemon daemon(Devices(2));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  const Plan plan = Must(Plan::Make(session, {.units = 4}), "plan");
  std::vector<int> items = Numbers(4);
  int fallbacks = 0;
  ScatterOptions options{.fallback = [&] {
    ++fallbacks;
    return absl::OkStatus();
  }};
  ScatterReport report = ScatterBatched(plan, absl::MakeSpan(items), Square, options);
  EXPECT_TRUE(Ok(report.status));
  EXPECT_EQ(fallbacks, 1);
  ASSERT_TRUE(report.fell_back.has_value());
  EXPECT_NE(report.fell_back->kind, Absence::Kind::kPolicyOff);
  EXPECT_NE(report.fell_back->why, "");
  options.policy = DevicePolicy::kRequired;
  report = ScatterBatched(plan, absl::MakeSpan(items), Square, options);
  EXPECT_TRUE(Refused(report.status, Reason::kUnsupported, {{"capability", "CUDA"}}));
  EXPECT_TRUE(IsRefusal(ScatterBatched(plan, absl::MakeSpan(items), Square).status, Reason::kUnsupported))
      << "and no fallback";
  EXPECT_FALSE(report.may_be_partly_changed);
  EXPECT_EQ(fallbacks, 1);
  EXPECT_EQ(items, Numbers(4)) << "no tile was begun";
}

TEST(ScatterTest, ScatterIsRejectedInLazyInitialiser) {
  TestDaemon daemon(Devices(2));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  const Plan plan = Must(Plan::Make(session, {.units = 2}), "plan");
  std::atomic<int> begun = 0;
  const auto scatter = [&] {
    return RunTiles(plan,
                    [&](const TileRun&) {
                      ++begun;
                      return absl::OkStatus();
                    },
                    OnHost())
        .status;
  };
  std::once_flag once;
  std::call_once(once, [&] { EXPECT_TRUE(absl::IsFailedPrecondition(scatter())); });
  {
    const LazyScope lazy;
    EXPECT_TRUE(absl::IsFailedPrecondition(scatter()));
  }
  EXPECT_EQ(begun, 0);
  EXPECT_TRUE(Ok(scatter()));
}

}  // namespace
}  // namespace berth::testing
