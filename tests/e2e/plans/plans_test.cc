// Plans across processes: a split of work that is held as a lease, reported as stale when it no longer holds, and made
// anew.

#include <signal.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <berth/bandwidth.h>
#include <berth/bytes.h>
#include <berth/error.h>
#include <berth/plan.h>
#include <berth/scatter.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/plan.pb.h"
#include "berth/v1/resources.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
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

// "HOST-0:0-5 HOST-1:5-10".
std::string TilesOf(const Plan& plan) {
  std::string text;
  for (const PlanTile& tile : plan.tiles()) {
    absl::StrAppend(&text, text.empty() ? "" : " ", tile.device_uuid, ":", tile.begin, "-", tile.end);
  }
  return text;
}

std::string MovesOf(const std::vector<PlanMove>& moves) {
  std::string text;
  for (const PlanMove& move : moves) {
    absl::StrAppend(&text, text.empty() ? "" : " ", move.from_uuid, ">", move.to_uuid, ":", move.begin, "-",
                    move.end);
  }
  return text;
}

v1::Pool PoolOf(TestDaemon& daemon, absl::string_view name) {
  const v1::ListPoolsResponse pools = Must(daemon.inspector().ListPools(), "pools");
  for (const v1::Pool& pool : pools.pools()) {
    if (pool.name() == name) return pool;
  }
  Fatal(absl::NotFoundError(name), "pools");
}

uint64_t OutOf(TestDaemon& daemon, absl::string_view name) { return PoolOf(daemon, name).out(); }

// Returns the output of `berth WORDS` for an operator: another user's plans are hidden from this process's user.
std::string Berth(const TestDaemon& daemon, std::vector<std::string> words) {
  words.insert(words.begin(), {ProgramPath("client/cli/berth"), "--admin", "--folder", daemon.folder()});
  Subprocess command = Subprocess::Start({.argv = words});
  const std::string output = command.ReadAll();
  EXPECT_EQ(command.Wait(), 0) << output;
  return output;
}

TEST(PlansTest, PlanIsSplitShownAndReleased) {
  TestDaemon daemon(Devices(4));
  {
    const std::shared_ptr<Session> session = OpenSession(daemon);
    Plan plan = Must(Plan::Make(session, {.units = 103, .label = "fit"}), "plan");
    EXPECT_EQ(TilesOf(plan), "HOST-0:0-26 HOST-1:26-52 HOST-2:52-78 HOST-3:78-103");
    EXPECT_FALSE(plan.stale());
    EXPECT_TRUE(plan.status().ok());
    const v1::ListPlansResponse plans = Must(daemon.inspector().ListPlans());
    ASSERT_EQ(plans.plans_size(), 1);
    EXPECT_EQ(plans.plans(0).id(), plan.id().value());
    EXPECT_EQ(plans.plans(0).label(), "fit");
    EXPECT_EQ(plans.plans(0).devices(0).ideal_units(), 25.75);
    const std::string list = Berth(daemon, {"plans"});
    EXPECT_TRUE(absl::StrContains(list, absl::StrCat(plan.id().value()))) << list;
    EXPECT_TRUE(absl::StrContains(list, "current")) << list;
    const std::string explained = Berth(daemon, {"plans", absl::StrCat(plan.id().value())});
    EXPECT_TRUE(absl::StrContains(explained, "25.8")) << explained;
    EXPECT_TRUE(absl::StrContains(explained, "scores when the plan was made (formula 1)")) << explained;
    EXPECT_TRUE(absl::StrContains(Berth(daemon, {"--json", "plans"}), "\"ideal_units\"")) << explained;
    EXPECT_TRUE(Ok(plan.Release()));
    EXPECT_TRUE(Ok(plan.Release())) << "again";
    EXPECT_FALSE(plan.status().ok());
    EXPECT_EQ(Must(daemon.inspector().ListPlans()).plans_size(), 0);
  }
  daemon.ExpectAccountsBack();
}

TEST(PlansTest, PlanFollowsGivenWeightsAndConstraints) {
  TestDaemon daemon(Devices(4));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  const auto tiles = [&](const PlanOptions& options) {
    return TilesOf(Must(Plan::Make(session, options), "plan"));
  };
  EXPECT_EQ(
      tiles(
          {.units = 10, .devices = {"HOST-3", "HOST-1"}, .weigh_by = PlanWeights::kGiven, .weights = {4, 1}}),
      "HOST-3:0-8 HOST-1:8-10");
  EXPECT_EQ(tiles({.units = UINT64_MAX, .max_devices = 1}), absl::StrCat("HOST-0:0-", UINT64_MAX));
  EXPECT_EQ(tiles({.units = 5, .min_units = 2}), "HOST-0:0-3 HOST-1:3-5");
  EXPECT_EQ(tiles({.units = 5, .one_island = true}), "HOST-0:0-5") << "each host device is by itself";
  EXPECT_EQ(tiles({.units = 3, .bytes_per_unit = MiB(20)}), "HOST-0:0-1 HOST-1:1-2 HOST-2:2-3");
}

TEST(PlansTest, MeasuredBandwidthWeighsDevices) {
  TestDaemon daemon(Devices(2));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  const std::vector<std::string> devices = {"HOST-0", "HOST-1"};
  const std::vector<double> measured = Must(MeasureBandwidth(session, devices, MiB(4)), "bandwidth");
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_GT(measured[0], 1e6);
  const Plan plan = Must(Plan::Make(
      session,
      {.units = 1'000'000, .devices = devices, .weigh_by = PlanWeights::kBandwidth, .weights = measured}));
  const double share = 1e6 * measured[0] / (measured[0] + measured[1]);
  EXPECT_NEAR(static_cast<double>(plan.tiles()[0].units()), share, 1);
  EXPECT_EQ(Must(daemon.inspector().GetPlan(plan.id())).weight_source(), v1::MakePlanRequest::BANDWIDTH);
  EXPECT_TRUE(Refused(MeasureBandwidth(session, {"HOST-7"}).status(), Reason::kNotFound));
}

TEST(PlansTest, InvalidPlanIsRejectedWithReason) {
  TestDaemon daemon(Devices(2));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  const auto refused = [&](const PlanOptions& options, Reason reason,
                           const std::map<std::string, std::string>& named_values) {
    EXPECT_TRUE(Refused(Plan::Make(session, options).status(), reason, named_values));
  };
  refused({.units = 0}, Reason::kInvalidField, {{"field", "units"}});
  refused({.units = 1, .permits = PlanPermits{.units = 0}}, Reason::kInvalidField,
          {{"field", "units"}, {"value", "0"}});
  refused({.units = 1, .devices = {"GPU-of-nobody"}}, Reason::kNotFound, {{"id", "GPU-of-nobody"}});
  refused({.units = 1, .devices = {std::string(300, 'u')}}, Reason::kInvalidField, {{"field", "devices"}});
  refused({.units = 1, .devices = {"HOST-0"}, .weigh_by = PlanWeights::kGiven, .weights = {1, 2}},
          Reason::kInvalidField, {{"field", "weights"}});
  refused({.units = 1, .devices = {"HOST-0"}, .weights = {1}}, Reason::kInvalidField, {{"field", "weights"}});
  refused({.units = 9, .bytes_per_unit = MiB(32)}, Reason::kConstraint,
          {{"constraint", "room"}, {"value", "9"}, {"limit", "2"}});
  refused({.units = 3, .min_units = 4}, Reason::kConstraint,
          {{"constraint", "min_units"}, {"value", "4"}, {"limit", "3"}});
  refused({.units = 2, .bytes_per_unit = MiB(32), .max_devices = 1}, Reason::kConstraint,
          {{"constraint", "max_devices"}, {"value", "2"}, {"limit", "1"}});
  refused({.units = 2, .bytes_per_unit = MiB(32), .one_island = true}, Reason::kConstraint,
          {{"constraint", "one_island"}, {"value", "2"}, {"limit", "1"}});
  refused({.units = 2, .permits = PlanPermits{.pool = "nowhere"}}, Reason::kNotFound, {{"id", "nowhere"}});
  refused({.units = 2, .permits = PlanPermits{.pool = "a", .units = 3}}, Reason::kOverCap, {{"pool", "a"}});
  // Invalid weights are ignored, not an error.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(TilesOf(Must(Plan::Make(session, {.units = 3,
                                              .devices = {"HOST-0", "HOST-1"},
                                              .weigh_by = PlanWeights::kGiven,
                                              .weights = {nan, -1}}))),
            "HOST-0:0-2 HOST-1:2-3");
  EXPECT_EQ(Must(daemon.inspector().ListPlans()).plans_size(), 0);
}

TEST(PlansTest, PlanIsGrantedWithPermitsAndBytesOrNotAtAll) {
  TestDaemon daemon(Devices(2));
  {
    Actor holder(daemon), requester(daemon);
    holder.Do("acquire p pool=a units=3");
    EXPECT_TRUE(
        IsRefusal(requester.Ask("plan x 8 pool=a reserve=1048576 wait_ms=0").status(), Reason::kNoPermit));
    requester.SendLine("plan x 8 pool=a reserve=1048576");
    ASSERT_TRUE(Eventually([&] {
      const v1::ListPermitsResponse permits = Must(daemon.inspector().ListPermits("a"));
      return permits.waiters_size() == 1;
    }));
    EXPECT_EQ(Must(daemon.inspector().ListReservations()).reservations_size(), 0);
    holder.Do("release p");
    EXPECT_EQ(*requester.Answer(), "HOST-0:0-4 HOST-1:4-8");
    EXPECT_EQ(OutOf(daemon, "a"), 2u);
    const v1::ListReservationsResponse reserved = Must(daemon.inspector().ListReservations());
    ASSERT_EQ(reserved.reservations_size(), 1);
    EXPECT_EQ(reserved.reservations(0).claims(1).left_bytes(), MiB(4).count());
    requester.Kill();
    ASSERT_TRUE(Eventually([&] { return OutOf(daemon, "a") == 0; }));
    EXPECT_EQ(Must(daemon.inspector().ListPlans()).plans_size(), 0);
    EXPECT_EQ(Must(daemon.inspector().ListReservations()).reservations_size(), 0);
  }
  daemon.ExpectAccountsBack();
}

TEST(PlansTest, BlocksAreDrawnFromPlanReservation) {
  TestDaemon daemon(Devices(2));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  Plan plan = Must(Plan::Make(session, {.units = 8, .bytes_per_unit = MiB(1), .reserve = true}), "plan");
  Block block = Must(plan.Allocate(plan.tiles()[1], {.bytes = MiB(4)}), "block");
  EXPECT_EQ(block.device(), plan.tiles()[1].device);
  EXPECT_TRUE(Refused(plan.Allocate(plan.tiles()[1], {.bytes = MiB(2)}).status(), Reason::kOverBudget,
                      {{"layer", "reservation"}}));
  const Plan without = Must(Plan::Make(session, {.units = 8}), "plan");
  EXPECT_TRUE(absl::IsFailedPrecondition(without.Allocate(without.tiles()[0], {.bytes = MiB(1)}).status()));
}

TEST(PlansTest, LeavingDeviceIsReportedAndOnlyItsUnitsMove) {
  TestDaemon daemon(Devices(3));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  std::atomic<int> notified = 0;
  Plan plan = Must(
      Plan::Make(session, {.units = 90, .permits = PlanPermits{.pool = "a"}, .on_stale = [&] { ++notified; }}),
      "plan");
  EXPECT_EQ(OutOf(daemon, "a"), 3u);
  // A worker's death changes nothing for a device.
  const std::vector<pid_t> workers = daemon.workers();
  ::kill(workers[0], SIGKILL);
  ASSERT_TRUE(Eventually([&] { return daemon.workers().size() == 3 && daemon.workers() != workers; }));
  EXPECT_FALSE(plan.stale());
  Must(daemon.inspector().DropDevice(1), "drop");
  ASSERT_TRUE(Eventually([&] { return notified == 1; }));
  EXPECT_TRUE(Refused(plan.status(), Reason::kStale, {{"device", "1"}, {"why", "device state dropped"}}));
  EXPECT_TRUE(plan.CheckTile(plan.tiles()[0]).ok()) << "the others are as they were";
  EXPECT_FALSE(plan.CheckTile(plan.tiles()[1]).ok());
  const std::string list = Berth(daemon, {"plans"});
  EXPECT_TRUE(absl::StrContains(list, "DEVICE_DROPPED HOST-1")) << list;
  const std::vector<PlanMove> moves = Must(plan.Replan(), "replan");
  EXPECT_EQ(MovesOf(moves), "HOST-1>HOST-0:30-45 HOST-1>HOST-2:45-60");
  EXPECT_EQ(TilesOf(plan), "HOST-0:0-45 HOST-2:45-90");
  EXPECT_FALSE(plan.stale());
  EXPECT_EQ(plan.revision(), 2u);
  EXPECT_EQ(OutOf(daemon, "a"), 2u) << "its permit is back";
  // Memory was lost: its units stay on the device, and their data must be supplied again.
  Must(daemon.inspector().ResetDevice(2), "reset");
  ASSERT_TRUE(Eventually([&] { return notified == 2; }));
  EXPECT_TRUE(plan.stale());
  ASSERT_TRUE(Eventually(
      [&] { return Must(daemon.inspector().ListDevices()).devices(2).state() == v1::Device::READY; }));
  EXPECT_EQ(MovesOf(Must(plan.Replan(), "replan")), "HOST-2>HOST-2:45-90");
  EXPECT_FALSE(plan.stale());
}

TEST(PlansTest, RevokedPermitMakesPlanStale) {
  TestDaemon daemon(Devices(2));
  const std::shared_ptr<Session> session = OpenSession(daemon);
  Plan plan = Must(Plan::Make(session, {.units = 4, .permits = PlanPermits{.pool = "a"}}), "plan");
  const v1::Permit permit = Must(daemon.inspector().ListPermits("a")).permits(0);
  Must(daemon.inspector().RevokePermit(PermitId(permit.id())), "revoke");
  ASSERT_TRUE(Eventually([&] { return plan.stale(); }));
  EXPECT_TRUE(Refused(plan.status(), Reason::kStale, {{"why", "permit revoked"}}));
  EXPECT_EQ(Must(plan.Replan(), "replan").size(), 0u);
  EXPECT_EQ(OutOf(daemon, "a"), 2u);
}

TEST(PlansTest, PlanSurvivesBrokerDeath) {
  TestDaemon daemon(Devices(2));
  {
    const std::shared_ptr<Session> session = OpenSession(daemon);
    Plan plan = Must(Plan::Make(session, {.units = 4, .permits = PlanPermits{.pool = "a"}}), "plan");
    const uint64_t out = OutOf(daemon, "a");
    const pid_t broker = daemon.broker();
    ::kill(broker, SIGKILL);
    ASSERT_TRUE(Eventually([&] { return !IsAlive(broker); }));
    EXPECT_EQ(Must(daemon.inspector().ListPlans()).plans_size(), 1);
    EXPECT_EQ(OutOf(daemon, "a"), out);
    EXPECT_TRUE(Ok(plan.status()));
    EXPECT_TRUE(Ok(plan.Replan()));
  }
  ASSERT_TRUE(Eventually([&] { return Must(daemon.inspector().ListPlans()).plans_size() == 0; }));
  EXPECT_EQ(OutOf(daemon, "a"), 0u);
}

TEST(PlansTest, UnknownReplanOutcomeForbidsTiles) {
  TestDaemon daemon(Devices(2));
  {
    // The call to the stopped broker ends after a second; calls before that may need another try.
    std::shared_ptr<Session> session;
    absl::StatusOr<Plan> made;
    ASSERT_TRUE(Eventually([&] {
      session = Session::Open({.folder = daemon.folder(), .always_new = true, .timeout = absl::Seconds(1)})
                    .value_or(nullptr);
      if (session != nullptr) made = Plan::Make(session, {.units = 4, .permits = PlanPermits{.pool = "a"}});
      return session != nullptr && made.ok();
    }));
    Plan plan = *std::move(made);
    const pid_t broker = daemon.StopBroker();
    const absl::Status unknown = plan.Replan({.reweigh = true}).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(unknown) || absl::IsUnavailable(unknown)) << unknown;
    EXPECT_TRUE(plan.stale());
    EXPECT_TRUE(Refused(plan.status(), Reason::kStale, {{"why", "the outcome of its re-plan is unknown"}}));
    for (const PlanTile& tile : plan.tiles()) EXPECT_FALSE(plan.CheckTile(tile).ok());
    std::atomic<int> begun = 0;
    const auto scatter = [&] {
      begun = 0;
      return RunTiles(plan,
                      [&](const TileRun&) {
                        ++begun;
                        return absl::OkStatus();
                      },
                      {.host_devices = true});
    };
    ScatterReport report = scatter();
    EXPECT_TRUE(IsRefusal(report.status, Reason::kStale)) << report.status;
    EXPECT_FALSE(report.may_be_partly_changed);
    EXPECT_EQ(begun, 0);
    ASSERT_EQ(::kill(broker, SIGCONT), 0);
    EXPECT_TRUE(plan.stale()) << "the daemon's answering again says nothing of what came of it";
    ASSERT_TRUE(Eventually([&] { return plan.Replan().ok(); }));
    EXPECT_TRUE(Ok(plan.status()));
    EXPECT_GE(plan.revision(), 2u);
    EXPECT_EQ(Must(daemon.inspector().GetPlan(plan.id())).revision(), plan.revision());
    EXPECT_EQ(TilesOf(plan), "HOST-0:0-2 HOST-1:2-4");
    EXPECT_TRUE(Ok(scatter().status));
    EXPECT_EQ(begun, 2);
    EXPECT_EQ(OutOf(daemon, "a"), 2u);
  }
  daemon.ExpectAccountsBack();
}

TEST(PlansTest, KillsDuringPlanningLeaveNothing) {
  TestDaemon daemon(Devices(2));
  for (int round = 0; round < 3; ++round) {
    const uint64_t before = PoolOf(daemon, "a").granted_total();
    std::vector<std::unique_ptr<Actor>> actors;
    for (int i = 0; i < 4; ++i) {
      actors.push_back(std::make_unique<Actor>(daemon));
      actors.back()->SendLine(absl::StrCat("plan-churn 60 ", round * 10 + i));
    }
    ASSERT_TRUE(Eventually([&] { return PoolOf(daemon, "a").granted_total() > before; }));
    actors[round]->Kill();
    uint64_t made = 0;
    for (int i = 0; i < 4; ++i) {
      if (i == round) continue;
      const absl::StatusOr<std::string> answer = actors[i]->Answer();
      ASSERT_TRUE(Ok(answer));
      uint64_t count = 0;
      ASSERT_TRUE(absl::SimpleAtoi(*answer, &count));
      made += count;
    }
    EXPECT_GT(made, 0u);
    Actor last(daemon);
    EXPECT_TRUE(Ok(last.Ask("acquire all pool=a units=4")));
  }
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
