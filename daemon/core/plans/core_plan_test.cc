#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/plan_harness.h"

namespace berth::core {
namespace {

const PlanLayout& LayoutOf(const CoreHarness& h, CallId call) { return *h.Get<PlanResult>(call).layout; }

uint64_t Out(const CoreHarness& h, const std::string& pool) { return h.Pool(pool).out; }

TEST(CorePlanTest, DevicesAreWeighedByScoreBestFirst) {
  CoreHarness h(NodeOf({8, 68, 8}));
  Peer a = h.Open();
  const CallId call = h.MakePlan(a, {.units = 180, .label = "fit"});
  const PlanLayout& plan = LayoutOf(h, call);
  // 40 + 100 + 40: 4 for each GiB of the 8 GiB that are free.
  EXPECT_EQ(TilesOf(plan), "1:0-100 0:100-140 2:140-180");
  EXPECT_EQ(plan.devices[0].weight, 100);
  EXPECT_EQ(plan.devices[0].ideal, 100);
  EXPECT_EQ(plan.devices[0].free, GiB(8));
  EXPECT_EQ(plan.score_version, 1);
  EXPECT_EQ(plan.asked.label, "fit");
  EXPECT_EQ(plan.session, a.session);
  EXPECT_EQ(h.core->ListPlans(a.caller()).size(), 1);
}

TEST(CorePlanTest, ScoreUsesCurrentFreeBytes) {
  CoreHarness h(NodeOf({8, 8}));
  Peer a = h.Open();
  h.MustAllocate(a, GiB(4), 0);
  const CallId call = h.MakePlan(a, {.units = 64});
  EXPECT_EQ(TilesOf(LayoutOf(h, call)), "1:0-40 0:40-64") << "8 + 4 * 8 beside 8 + 4 * 4";
  // ListDevices() reports the same scores, also for a device that does not serve.
  EXPECT_EQ(h.core->ListDevices()[0].score, LayoutOf(h, call).devices[1].weight);
  EXPECT_EQ(h.core->ListDevices()[1].score, 40);
  AcquireRequest declared = {.pool = "wide", .holder_key = "k"};
  declared.device = {.pick = DevicePick::kNamed, .uuid = "DEVICE-1", .declared = GiB(2)};
  h.MustAcquire(a, declared);
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DrainDevice(h.now, 1, "", effects).ok()); });
  EXPECT_EQ(h.core->ListDevices()[1].score, 8 + 4 * 6);
}

TEST(CorePlanTest, PlanUsesOnlyVisibleDevices) {
  Config config = NodeOf({8, 8, 8});
  for (DeviceConfig& device : config.devices) device.uuid = absl::StrCat("GPU-", device.ordinal);
  CoreHarness h(config);
  Peer a = h.Open();
  const CallId call = h.MakePlan(a, {.units = 10, .visible = "2,0"});
  EXPECT_EQ(TilesOf(LayoutOf(h, call)), "0:0-5 2:5-10");
  h.StopDevice(2);
  const CallId anew = h.Replan(a, LayoutOf(h, call).id);
  EXPECT_EQ(TilesOf(LayoutOf(h, anew)), "0:0-10") << "device 1 is not the caller's";
  EXPECT_TRUE(h.Refused(h.MakePlan(a, {.units = 1, .devices = {"1"}, .visible = "2,0"}), Reason::kNoDevice));
  EXPECT_TRUE(h.Refused(h.MakePlan(a, {.units = 1, .visible = ""}), Reason::kNoDevice));
  EXPECT_TRUE(h.Refused(h.MakePlan(a, {.units = 1, .devices = {"1", "GPU-1"}}), Reason::kInvalidField));
}

TEST(CorePlanTest, NamedDevicesKeepOrderAndGivenWeights) {
  CoreHarness h(NodeOf({8, 68, 8}));
  Peer a = h.Open();
  const CallId scored = h.MakePlan(a, {.units = 140, .devices = {"DEVICE-2", "DEVICE-1"}});
  EXPECT_EQ(TilesOf(LayoutOf(h, scored)), "2:0-40 1:40-140");
  const CallId given = h.MakePlan(
      a,
      {.units = 10, .devices = {"DEVICE-2", "DEVICE-0"}, .source = WeightSource::kGiven, .weights = {1, 4}});
  EXPECT_EQ(TilesOf(LayoutOf(h, given)), "2:0-2 0:2-10");
  const CallId measured = h.MakePlan(a, {.units = 10,
                                         .devices = {"DEVICE-2", "DEVICE-0"},
                                         .source = WeightSource::kBandwidth,
                                         .weights = {-1, 900}});
  EXPECT_EQ(TilesOf(LayoutOf(h, measured)), "0:0-10");
  EXPECT_EQ(LayoutOf(h, measured).devices[0].left, PlanDevice::Left::kTooLight);
}

TEST(CorePlanTest, MalformedPlanIsRejectedByFieldName) {
  CoreHarness h(NodeOf({8, 8}));
  Peer a = h.Open();
  const std::string before = h.Accounts();
  const auto refused = [&](const PlanRequest& request, Reason reason, const std::string& named_value,
                           const std::string& value) {
    const CallId call = h.MakePlan(a, request);
    EXPECT_TRUE(h.Refused(call, reason)) << h.StatusOf(call);
    EXPECT_EQ(h.NamedValue(call, named_value), value) << h.StatusOf(call);
    EXPECT_EQ(h.Accounts(), before);
  };
  refused({.units = 0}, Reason::kInvalidField, "field", "units");
  refused({.units = 1, .devices = {"DEVICE-9"}}, Reason::kNotFound, "id", "DEVICE-9");
  refused({.units = 1, .devices = {""}}, Reason::kNotFound, "kind", "device");
  refused({.units = 1, .devices = {"DEVICE-0", "DEVICE-0"}}, Reason::kInvalidField, "value", "DEVICE-0");
  refused({.units = 1, .devices = std::vector<std::string>(65, "DEVICE-0")}, Reason::kInvalidField, "field",
          "devices");
  refused({.units = 1, .devices = {"DEVICE-0"}, .source = WeightSource::kGiven, .weights = {1, 2}},
          Reason::kInvalidField, "field", "weights");
  refused({.units = 1, .source = WeightSource::kGiven}, Reason::kInvalidField, "field", "weights");
  refused({.units = 1, .weights = {1}}, Reason::kInvalidField, "field", "weights");
  refused({.units = 1, .reserve = true}, Reason::kInvalidField, "field", "bytes_per_unit");
  refused({.units = 1, .pool = "nowhere"}, Reason::kNotFound, "kind", "permit pool");
  // A refusal for a constraint names the constraint, the value and the limit.
  refused({.units = 9, .bytes_per_unit = GiB(1)}, Reason::kConstraint, "constraint", "room");
  refused({.units = 9, .bytes_per_unit = GiB(1)}, Reason::kConstraint, "limit", "8");
  refused({.units = 5, .min_units = 6}, Reason::kConstraint, "constraint", "min_units");
  refused({.units = 5, .bytes_per_unit = GiB(1), .max_devices = 1}, Reason::kConstraint, "constraint",
          "max_devices");
  refused({.units = 5, .bytes_per_unit = GiB(1), .one_island = true}, Reason::kConstraint, "constraint",
          "one_island");
}

TEST(CorePlanTest, PlanFitsSessionBudget) {
  Config config = NodeOf({8, 8});
  config.session_budget = GiB(3);
  CoreHarness h(config);
  Peer a = h.Open();
  h.MustAllocate(a, GiB(2), 0);
  const CallId call = h.MakePlan(a, {.units = 4, .bytes_per_unit = GiB(1)});
  const PlanLayout& plan = LayoutOf(h, call);
  EXPECT_EQ(TilesOf(plan), "1:0-3 0:3-4");
  EXPECT_EQ(plan.devices[1].capacity, 1);
  EXPECT_GT(plan.devices[1].ideal, 1);
  EXPECT_TRUE(h.Refused(h.MakePlan(a, {.units = 5, .bytes_per_unit = GiB(1)}), Reason::kConstraint));
}

TEST(CorePlanTest, PlanFitsIntoSingleIsland) {
  Config config = NodeOf({8, 8, 20, 20});
  for (DeviceConfig& device : config.devices) device.facts.island = device.ordinal / 2;
  CoreHarness h(config);
  Peer a = h.Open();
  EXPECT_EQ(TilesOf(LayoutOf(h, h.MakePlan(a, {.units = 10, .one_island = true}))), "2:0-5 3:5-10");
}

TEST(CorePlanTest, StoppedDeviceHidesNoOther) {
  CoreHarness h(NodeOf({8, 8, 8}));
  h.StopDevice(1);
  Peer a = h.Open();
  const PlanLayout& plan = LayoutOf(h, h.MakePlan(a, {.units = 10}));
  EXPECT_EQ(TilesOf(plan), "0:0-5 2:5-10");
  ASSERT_EQ(plan.devices.size(), 3);
  EXPECT_EQ(plan.devices[2].left, PlanDevice::Left::kOutOfService);
  h.StopDevice(0);
  h.StopDevice(2);
  const CallId call = h.MakePlan(a, {.units = 10});
  EXPECT_TRUE(h.Refused(call, Reason::kConstraint));
  EXPECT_EQ(h.NamedValue(call, "constraint"), "devices");
}

TEST(CorePlanTest, PlanIsGrantedWithPermitsAndBytesOrNotAtAll) {
  CoreHarness h(NodeOf({8, 8}));
  Peer a = h.Open(), b = h.Open(1001);
  const AcquireResult held = h.MustAcquire(b, {.pool = "gpu-tests", .holder_key = "h"});
  const PlanRequest request{.units = 6, .bytes_per_unit = GiB(1), .pool = "gpu-tests", .reserve = true};
  const CallId call = h.MakePlan(a, request);
  EXPECT_FALSE(h.Answered(call));
  EXPECT_EQ(Out(h, "gpu-tests"), 1) << "the permit that could be had is not taken";
  EXPECT_EQ(h.BytesOf(0).reserved, Bytes(0));
  EXPECT_TRUE(h.core->ListPlans(a.caller()).empty());
  h.Release(b, held.acquisition);
  const PlanLayout& plan = LayoutOf(h, call);
  EXPECT_EQ(Out(h, "gpu-tests"), 2);
  EXPECT_EQ(h.BytesOf(0).reserved, GiB(3));
  EXPECT_EQ(h.BytesOf(1).reserved, GiB(3));
  EXPECT_NE(plan.devices[0].permit, plan.devices[1].permit);
  EXPECT_TRUE(plan.reservation);
  // Each permit names its tile's device, and the session's acquires nest in it by its key.
  for (const PermitView& permit : h.core->ListPermits(a.caller(), "")) {
    const bool first = permit.device->ordinal == plan.devices[0].ordinal;
    EXPECT_EQ(permit.id, plan.devices[first ? 0 : 1].permit);
    EXPECT_EQ(permit.holder_key, plan.devices[first ? 0 : 1].holder_key);
  }
  EXPECT_TRUE(h.MustAcquire(a, {.pool = "gpu-tests", .holder_key = plan.devices[1].holder_key}).nested);
  h.Get<ReleasePlanResult>(h.ReleasePlan(a, plan.id));
  EXPECT_EQ(h.BytesOf(0).reserved, Bytes(0));
  EXPECT_EQ(Out(h, "gpu-tests"), 1) << "what nests there keeps it";
  EXPECT_TRUE(h.Refused(h.ReleasePlan(a, plan.id), Reason::kNotFound));
  EXPECT_TRUE(h.core->ListPlans(a.caller()).empty());
}

TEST(CorePlanTest, PlanWithoutWaitIsRejectedEntirely) {
  CoreHarness h(NodeOf({8, 8, 8}));
  Peer a = h.Open();
  const std::string before = h.Accounts();
  EXPECT_TRUE(h.Refused(h.MakePlan(a, {.units = 6, .pool = "gpu-tests"}), Reason::kOverCap))
      << "three of two";
  Peer b = h.Open();
  const AcquireResult held = h.MustAcquire(b, {.pool = "wide", .units = 7, .holder_key = "h"});
  EXPECT_TRUE(h.Refused(
      h.MakePlan(a, {.units = 6, .bytes_per_unit = MiB(2), .pool = "wide", .reserve = true, .wait = false}),
      Reason::kNoPermit));
  const CallId late = h.MakePlan(a, {.units = 6,
                                     .bytes_per_unit = MiB(2),
                                     .pool = "wide",
                                     .reserve = true,
                                     .deadline = h.now + absl::Seconds(1)});
  h.now += absl::Seconds(1);
  h.Tick();
  EXPECT_TRUE(h.Refused(late, Reason::kWaitTimedOut)) << h.StatusOf(late);
  h.Release(b, held.acquisition);
  EXPECT_TRUE(h.core->ListPlans(a.caller()).empty());
  EXPECT_EQ(Out(h, "wide"), 0);
  EXPECT_EQ(h.BytesOf(0).reserved, Bytes(0));
}

TEST(CorePlanTest, PlanMayReserveBytesOnly) {
  CoreHarness h(NodeOf({8, 8}));
  Peer a = h.Open();
  const PlanLayout& plan =
      LayoutOf(h, h.MakePlan(a, {.units = 3, .bytes_per_unit = MiB(3), .reserve = true}));
  EXPECT_EQ(h.BytesOf(plan.devices[0].ordinal).reserved, MiB(6)) << "two units, in whole blocks";
  EXPECT_EQ(h.BytesOf(plan.devices[1].ordinal).reserved, MiB(4));
  ASSERT_FALSE(h.log.empty());
  EXPECT_EQ(h.log.back().action, LogAction::kReserve);
  EXPECT_EQ(h.log.back().reservation, plan.reservation);
  EXPECT_EQ(h.log.back().bytes, MiB(10));
  EXPECT_TRUE(h.StatusOf(h.MakePlan(a, {.units = 1, .bytes_per_unit = GiB(3), .reserve = true})).ok());
  // Allocations draw from the reservation.
  const CallId drawn =
      h.Allocate(a, {.device = plan.devices[0].ordinal, .bytes = MiB(4), .reservation = plan.reservation});
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(drawn).ok());
}

TEST(CorePlanTest, RepeatedPlanGetsFirstAnswerForgetUndoesIt) {
  CoreHarness h(NodeOf({8, 8}));
  Peer a = h.Open();
  const PlanRequest request{.units = 4, .bytes_per_unit = MiB(2), .pool = "wide", .reserve = true};
  const PlanResult made = h.Get<PlanResult>(h.MakePlan(a, request));
  const CallId again = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.MakePlan(h.now, call, a.caller(), a.Again(), request, effects);
  });
  EXPECT_EQ(h.Get<PlanResult>(again).layout->id, made.layout->id);
  EXPECT_EQ(Out(h, "wide"), 2);
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(a, a.sequence)).outcome, ForgetOutcome::kUndone);
  EXPECT_EQ(Out(h, "wide"), 0);
  EXPECT_EQ(h.BytesOf(0).reserved, Bytes(0));
  EXPECT_TRUE(h.core->ListPlans(a.caller()).empty());
  // A forgotten request that waits leaves the queue.
  Peer b = h.Open();
  h.MustAcquire(b, {.pool = "wide", .units = 8, .holder_key = "h"});
  const CallId waiting = h.MakePlan(a, request);
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(a, a.sequence)).outcome, ForgetOutcome::kCancelled);
  EXPECT_TRUE(h.Refused(waiting, Reason::kCancelled));
  EXPECT_EQ(h.Pool("wide").waiters, 0);
}

TEST(CorePlanTest, PlanEndsWithItsSession) {
  CoreHarness h(NodeOf({8, 8}));
  Peer a = h.Open();
  h.Get<PlanResult>(h.MakePlan(a, {.units = 4, .bytes_per_unit = MiB(2), .pool = "wide", .reserve = true}));
  h.HangUp(a);
  EXPECT_EQ(h.BytesOf(0).reserved, Bytes(0));
  EXPECT_EQ(Out(h, "wide"), 2) << "its process may live";
  h.Gone(a);
  EXPECT_EQ(Out(h, "wide"), 0);
  EXPECT_TRUE(h.core->ListPlans(CoreHarness::Admin()).empty());
}

TEST(CorePlanTest, PlansPerSessionAreLimitedIncludingWaiting) {
  Config config = NodeOf({8});
  config.limits.plans_per_session = 3;
  CoreHarness h(config);
  Peer a = h.Open(), b = h.Open();
  h.MustAcquire(b, {.pool = "wide", .units = 8, .holder_key = "h"});
  h.Get<PlanResult>(h.MakePlan(a, {.units = 1}));
  const PlanId second = h.Get<PlanResult>(h.MakePlan(a, {.units = 1})).layout->id;
  const CallId waiting = h.MakePlan(a, {.units = 1, .pool = "wide"});
  EXPECT_FALSE(h.Answered(waiting));
  const CallId call = h.MakePlan(a, {.units = 1});
  EXPECT_TRUE(h.Refused(call, Reason::kLimit)) << h.StatusOf(call);
  EXPECT_EQ(h.NamedValue(call, "what"), "plans_per_session");
  h.ReleasePlan(a, second);
  EXPECT_TRUE(h.StatusOf(h.MakePlan(a, {.units = 1})).ok());
}

TEST(CorePlanTest, PlanIsVisibleToTenantAndOperatorsOnly) {
  CoreHarness h(NodeOf({8}));
  Peer a = h.Open(1000), b = h.Open(1001), c = h.Open(1000);
  const PlanId plan = LayoutOf(h, h.MakePlan(a, {.units = 1})).id;
  EXPECT_TRUE(h.core->GetPlan(c.caller(), plan).ok());
  EXPECT_TRUE(h.core->GetPlan(CoreHarness::Admin(), plan).ok());
  EXPECT_TRUE(IsRefusal(h.core->GetPlan(b.caller(), plan).status(), Reason::kNotFound));
  EXPECT_TRUE(h.core->ListPlans(b.caller()).empty());
  EXPECT_TRUE(h.Refused(h.ReleasePlan(c, plan), Reason::kNotFound)) << "seen, and another session's";
  EXPECT_TRUE(h.Refused(h.Replan(b, plan), Reason::kNotFound));
  PageRequest page{.rows = 1};
  h.MakePlan(a, {.units = 2});
  const Page<PlanView> first = h.core->ListPlans(a.caller(), page);
  ASSERT_TRUE(first.more);
  page.after = first.last;
  EXPECT_EQ(h.core->ListPlans(a.caller(), page)[0].layout->asked.units, 2);
}

}  // namespace
}  // namespace berth::core
