#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/plan_harness.h"

namespace berth::core {
namespace {

// Returns a node of equal devices.
Config Node(uint32_t devices) { return NodeOf(std::vector<uint32_t>(devices, 100), 9); }

// Formats moves such as "1>0:50-75": source device, target device, and units.
std::string MovesOf(const PlanResult& result) {
  std::string text;
  for (const PlanMove& move : result.moves) {
    absl::StrAppend(&text, text.empty() ? "" : " ", result.layout->devices[move.from].ordinal, ">",
                    result.layout->devices[move.to].ordinal, ":", move.begin, "-", move.end);
  }
  return text;
}

PlanView View(const CoreHarness& h, PlanId plan) { return *h.core->GetPlan(CoreHarness::Admin(), plan); }

// Returns the stale notices to the session's processes, such as "7: plan 7 revision 1: 2 of device 0".
std::vector<std::string> Notices(const CoreHarness& h) {
  std::vector<std::string> notified;
  for (const Deliver& deliver : h.deliveries) {
    const attach::Delivery& delivery = deliver.delivery;
    if (delivery.what != attach::DeliveryKind::kPlanStale) continue;
    notified.push_back(absl::StrCat(deliver.channel.value(), ": plan ", delivery.plan, " revision ",
                                    delivery.revision, ": ", delivery.why, " of device ", delivery.device));
  }
  return notified;
}

TEST(CoreReplanTest, StoppedDeviceMakesPlanStaleAndNotifiesProcesses) {
  CoreHarness h(Node(3));
  Peer a = h.Open();
  Peer other = h.JoinTo(a);
  const PlanId plan =
      h.Get<PlanResult>(h.MakePlan(a, {.units = 10, .devices = {"DEVICE-0", "DEVICE-1"}})).layout->id;
  h.StopDevice(2);
  EXPECT_EQ(View(h, plan).stale, PlanStale::kCurrent) << "it is none of the plan's";
  h.now += absl::Seconds(5);
  h.StopDevice(1);
  EXPECT_EQ(View(h, plan).stale, PlanStale::kDeviceStopped);
  EXPECT_EQ(View(h, plan).stale_device, 1);
  EXPECT_EQ(View(h, plan).stale_since, h.now);
  EXPECT_EQ(Notices(h),
            (std::vector<std::string>{
                absl::StrCat(a.channel.value(), ": plan ", plan.value(), " revision 1: 2 of device 1"),
                absl::StrCat(other.channel.value(), ": plan ", plan.value(), " revision 1: 2 of device 1")}));
  h.StopDevice(0);
  EXPECT_EQ(View(h, plan).stale_device, 1) << "it is notified once";
  EXPECT_EQ(Notices(h).size(), 2);
}

TEST(CoreReplanTest, EachDeviceLossMakesPlanStale) {
  CoreHarness h(Node(2));
  Peer a = h.Open();
  const auto make = [&] { return h.Get<PlanResult>(h.MakePlan(a, {.units = 10})).layout->id; };
  PlanId plan = make();
  h.LoseMemory(0, 2);
  EXPECT_EQ(View(h, plan).stale, PlanStale::kMemoryLost);
  plan = make();
  EXPECT_EQ(View(h, plan).stale, PlanStale::kCurrent);
  h.DropWorker();
  h.RaiseWorker();
  EXPECT_EQ(View(h, plan).stale, PlanStale::kCurrent) << "its worker's death takes nothing from a device";
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DrainDevice(h.now, 0, "", effects).ok()); });
  EXPECT_EQ(View(h, plan).stale, PlanStale::kDeviceDraining);
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.UndrainDevice(h.now, 0, effects).ok()); });
  EXPECT_EQ(View(h, plan).stale, PlanStale::kDeviceDraining) << "it was notified";
  plan = make();
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DropDevice(h.now, 0, effects).ok()); });
  EXPECT_EQ(View(h, plan).stale, PlanStale::kDeviceDropped);
  const PlanLayout layout = *h.Get<PlanResult>(h.MakePlan(a, {.units = 10, .pool = "wide"})).layout;
  EXPECT_EQ(TilesOf(layout), "1:0-10");
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.RevokePermit(h.now, layout.devices[0].permit, effects).ok());
  });
  EXPECT_EQ(View(h, layout.id).stale, PlanStale::kPermitRevoked);
}

TEST(CoreReplanTest, ReplanMovesOnlyUnitsOfLostDevice) {
  CoreHarness h(Node(3));
  Peer a = h.Open();
  const PlanId plan = h.Get<PlanResult>(h.MakePlan(a, {.units = 90})).layout->id;
  EXPECT_EQ(TilesOf(*View(h, plan).layout), "0:0-30 1:30-60 2:60-90");
  h.StopDevice(1);
  const PlanResult next = h.Get<PlanResult>(h.Replan(a, plan));
  EXPECT_EQ(TilesOf(*next.layout), "0:0-45 2:45-90");
  EXPECT_EQ(MovesOf(next), "1>0:30-45 1>2:45-60");
  EXPECT_EQ(next.layout->id, plan);
  EXPECT_EQ(next.layout->revision, 2);
  EXPECT_EQ(next.from_revision, 1);
  EXPECT_EQ(View(h, plan).stale, PlanStale::kCurrent);
  // The device returns and gets its share back.
  h.Do([&](Core& core, Effects* effects) { core.WorkerUp(h.now, 1, WorkerKind::kMain, effects); });
  const PlanResult back = h.Get<PlanResult>(h.Replan(a, plan));
  EXPECT_EQ(TilesOf(*back.layout), "0:0-30 1:30-45 2:45-75 1:75-90");
  EXPECT_EQ(MovesOf(back), "0>1:30-45 2>1:75-90");
  EXPECT_EQ(back.layout->revision, 3);
}

TEST(CoreReplanTest, ReplanMovesUnitsOnlyWhenReweighed) {
  CoreHarness h(Node(2));
  Peer a = h.Open();
  const PlanId plan = h.Get<PlanResult>(h.MakePlan(a, {.units = 1'000})).layout->id;
  h.MustAllocate(a, GiB(4), 0);
  EXPECT_EQ(MovesOf(h.Get<PlanResult>(h.Replan(a, plan))), "");
  const PlanResult weighed = h.Get<PlanResult>(h.Replan(a, plan, /*reweigh=*/true));
  // Weights 266 and 282.
  EXPECT_EQ(MovesOf(weighed), "0>1:485-500");
  EXPECT_EQ(TilesOf(*weighed.layout), "0:0-485 1:485-1000");
}

TEST(CoreReplanTest, UnitsOfLostMemoryStayAndAreReportedLost) {
  CoreHarness h(Node(2));
  Peer a = h.Open();
  const PlanId plan = h.Get<PlanResult>(h.MakePlan(a, {.units = 10})).layout->id;
  h.LoseMemory(1, 2);
  const PlanResult next = h.Get<PlanResult>(h.Replan(a, plan));
  EXPECT_EQ(TilesOf(*next.layout), "0:0-5 1:5-10");
  EXPECT_EQ(MovesOf(next), "1>1:5-10");
  EXPECT_EQ(next.moves[0].from_generation, 1);
  EXPECT_EQ(next.layout->devices[next.moves[0].to].generation, 2);
}

TEST(CoreReplanTest, PermitsAndBytesFollowMovedUnits) {
  CoreHarness h(Node(3));
  Peer a = h.Open();
  const PlanResult made = h.Get<PlanResult>(h.MakePlan(a, {.units = 6,
                                                           .devices = {"DEVICE-0", "DEVICE-1", "DEVICE-2"},
                                                           .bytes_per_unit = MiB(512),
                                                           .pool = "wide",
                                                           .reserve = true}));
  const ReservationId reservation = made.layout->reservation;
  EXPECT_EQ(h.Pool("wide").out, 3);
  EXPECT_EQ(h.BytesOf(1).reserved, GiB(1));
  // Draws one block on each device.
  for (uint32_t device = 0; device < 2; ++device) {
    h.Allocate(a, {.device = device, .bytes = MiB(256), .reservation = reservation});
  }
  h.WorkAll();
  h.StopDevice(1);
  const PlanResult next = h.Get<PlanResult>(h.Replan(a, made.layout->id));
  EXPECT_EQ(TilesOf(*next.layout), "0:0-3 2:3-6");
  EXPECT_EQ(h.Pool("wide").out, 2) << "that of the stopped device is back";
  EXPECT_EQ(next.layout->devices[0].permit, made.layout->devices[0].permit) << "the others stay";
  EXPECT_EQ(next.layout->reservation, reservation);
  EXPECT_EQ(h.core->ListReservations(a.caller()).size(), 1);
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(1536 - 256));
  EXPECT_EQ(h.BytesOf(1).reserved, Bytes(0));
  EXPECT_EQ(h.BytesOf(1).live, MiB(256)) << "blocks are their owner's to free";
  EXPECT_EQ(h.BytesOf(2).reserved, MiB(1536));
  // Back on three devices: a permit is acquired for the third, under its own key.
  h.Do([&](Core& core, Effects* effects) { core.WorkerUp(h.now, 1, WorkerKind::kMain, effects); });
  const PlanResult back = h.Get<PlanResult>(h.Replan(a, made.layout->id));
  EXPECT_EQ(h.Pool("wide").out, 3);
  EXPECT_EQ(h.BytesOf(2).reserved, GiB(1));
  EXPECT_EQ(h.BytesOf(1).reserved, MiB(1024 - 256)) << "with what is drawn there";
  EXPECT_EQ(back.layout->devices[2].permit, made.layout->devices[2].permit);
  h.Get<ReleasePlanResult>(h.ReleasePlan(a, made.layout->id));
  EXPECT_EQ(h.Pool("wide").out, 0);
  for (uint32_t device = 0; device < 3; ++device) EXPECT_EQ(h.BytesOf(device).reserved, Bytes(0));
}

TEST(CoreReplanTest, ReplanTakesDrawnAndFreedBytesAgain) {
  CoreHarness h(Node(2));
  Peer a = h.Open();
  const PlanResult made =
      h.Get<PlanResult>(h.MakePlan(a, {.units = 4, .bytes_per_unit = MiB(512), .reserve = true}));
  const ReservationId reservation = made.layout->reservation;
  // Draws all of device 0's tile and frees half of it.
  std::vector<BlockHandle> blocks;
  for (int i = 0; i < 2; ++i) {
    const CallId call = h.Allocate(a, {.bytes = MiB(512), .reservation = reservation});
    h.WorkAll();
    blocks.push_back(h.Get<AllocateResult>(call).block.handle);
  }
  EXPECT_EQ(h.BytesOf(0).reserved, Bytes(0));
  h.Free(a, blocks[0]);
  h.WorkAll();
  h.StopDevice(1);
  const PlanResult next = h.Get<PlanResult>(h.Replan(a, made.layout->id));
  EXPECT_EQ(TilesOf(*next.layout), "0:0-4");
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(1536)) << "2 GiB but for the block that is still there";
  const CallId rest = h.Allocate(a, {.bytes = MiB(1536), .reservation = reservation});
  h.WorkAll();
  EXPECT_EQ(h.Get<AllocateResult>(rest).block.bytes, MiB(1536));
}

TEST(CoreReplanTest, ReplanDoesNotChargeUnitsOwnBlocksTwice) {
  CoreHarness h(Node(3));
  Peer a = h.Open();
  const PlanId plan =
      h.Get<PlanResult>(h.MakePlan(a, {.units = 12, .bytes_per_unit = GiB(1)})).layout->id;
  // Uses each device's budget to the byte.
  for (uint32_t device = 0; device < 3; ++device) h.Allocate(a, {.device = device, .bytes = GiB(4)});
  h.WorkAll();
  h.StopDevice(1);
  const CallId short_of_capacity = h.Replan(a, plan);
  EXPECT_TRUE(h.Refused(short_of_capacity, Reason::kConstraint)) << h.StatusOf(short_of_capacity);
  EXPECT_EQ(h.NamedValue(short_of_capacity, "limit"), "8");
  h.Do([&](Core& core, Effects* effects) { core.WorkerUp(h.now, 1, WorkerKind::kMain, effects); });
  const PlanResult back = h.Get<PlanResult>(h.Replan(a, plan));
  EXPECT_EQ(TilesOf(*back.layout), "0:0-4 1:4-8 2:8-12");
  EXPECT_EQ(MovesOf(back), "");
}

TEST(CoreReplanTest, SurplusAndForeignBlocksReduceCapacity) {
  CoreHarness h(Node(3));
  Peer a = h.Open(), b = h.Open(1001);
  const PlanId plan =
      h.Get<PlanResult>(h.MakePlan(a, {.units = 6, .bytes_per_unit = GiB(1)})).layout->id;
  h.Allocate(a, {.device = 0, .bytes = GiB(4)});
  h.Allocate(b, {.device = 2, .bytes = GiB(3)});
  h.WorkAll();
  h.StopDevice(1);
  const CallId call = h.Replan(a, plan);
  EXPECT_TRUE(h.Refused(call, Reason::kConstraint)) << h.StatusOf(call);
  EXPECT_EQ(h.NamedValue(call, "constraint"), "room");
  EXPECT_EQ(h.NamedValue(call, "limit"), "3") << "its own two units on device 0, and one on device 2";
}

TEST(CoreReplanTest, RejectedReplanLeavesPlanUnchanged) {
  CoreHarness h(Node(3));
  Peer a = h.Open(), b = h.Open(1001);
  const PlanId plan = h.Get<PlanResult>(h.MakePlan(a, {.units = 6,
                                                       .devices = {"DEVICE-0", "DEVICE-1", "DEVICE-2"},
                                                       .bytes_per_unit = GiB(1),
                                                       .pool = "wide",
                                                       .reserve = true}))
                          .layout->id;
  h.StopDevice(1);
  const CallId reserved = h.Reserve(b, {.items = {{.device = 0, .bytes = GiB(2)}}});
  ASSERT_TRUE(h.StatusOf(reserved).ok());
  const ReservationId theirs = h.Get<ReserveResult>(reserved).reservation.id;
  h.Reserve(b, {.items = {{.device = 2, .bytes = GiB(2)}}});
  std::string before = h.Accounts();
  const CallId call = h.Replan(a, plan);
  EXPECT_TRUE(h.Refused(call, Reason::kConstraint)) << h.StatusOf(call);
  EXPECT_EQ(h.NamedValue(call, "constraint"), "room");
  EXPECT_EQ(h.Accounts(), before);
  h.ReleaseReservation(b, theirs);
  EXPECT_EQ(TilesOf(*h.Get<PlanResult>(h.Replan(a, plan)).layout), "0:0-4 2:4-6");
  // A re-plan does not wait for a permit that another session holds.
  h.Do([&](Core& core, Effects* effects) { core.WorkerUp(h.now, 1, WorkerKind::kMain, effects); });
  h.MustAcquire(b, {.pool = "wide", .units = 6, .holder_key = "h"});
  before = h.Accounts();
  const CallId full = h.Replan(a, plan);
  EXPECT_TRUE(h.Refused(full, Reason::kNoPermit)) << h.StatusOf(full);
  EXPECT_EQ(h.Accounts(), before);
  EXPECT_EQ(View(h, plan).layout->revision, 2);
}

TEST(CoreReplanTest, RevokedPermitIsRequestedAgain) {
  CoreHarness h(Node(2));
  Peer a = h.Open();
  const PlanResult made = h.Get<PlanResult>(h.MakePlan(a, {.units = 6, .pool = "wide"}));
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.RevokePermit(h.now, made.layout->devices[1].permit, effects).ok());
  });
  const PlanResult next = h.Get<PlanResult>(h.Replan(a, made.layout->id));
  EXPECT_EQ(next.layout->devices[0].permit, made.layout->devices[0].permit);
  EXPECT_NE(next.layout->devices[1].permit, made.layout->devices[1].permit);
  EXPECT_EQ(h.Pool("wide").out, 2);
  EXPECT_EQ(MovesOf(next), "");
}

TEST(CoreReplanTest, ForgottenReplanStays) {
  CoreHarness h(Node(2));
  Peer a = h.Open();
  const PlanId plan = h.Get<PlanResult>(h.MakePlan(a, {.units = 6, .pool = "wide"})).layout->id;
  h.StopDevice(0);
  h.Get<PlanResult>(h.Replan(a, plan));
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(a, a.sequence)).outcome, ForgetOutcome::kNothingToDo);
  EXPECT_EQ(View(h, plan).layout->revision, 2);
  EXPECT_EQ(h.Pool("wide").out, 1);
}

TEST(CoreReplanTest, WaitingPlanUsesDevicesAtGrant) {
  CoreHarness h(Node(2));
  Peer a = h.Open(), b = h.Open();
  const AcquireResult held = h.MustAcquire(b, {.pool = "wide", .units = 7, .holder_key = "h"});
  const CallId call = h.MakePlan(a, {.units = 6, .pool = "wide"});
  h.LoseMemory(0, 2);
  EXPECT_FALSE(h.Answered(call));
  h.Release(b, held.acquisition);
  const PlanLayout& layout = *h.Get<PlanResult>(call).layout;
  EXPECT_EQ(layout.devices[0].generation, 2);
  EXPECT_EQ(View(h, layout.id).stale, PlanStale::kCurrent);
}

TEST(CoreReplanTest, StoppedDeviceRejectsWaitingPlan) {
  CoreHarness h(Node(2));
  Peer a = h.Open(), b = h.Open();
  h.MustAcquire(b, {.pool = "wide", .units = 7, .holder_key = "h"});
  const CallId call = h.MakePlan(a, {.units = 6, .pool = "wide"});
  EXPECT_FALSE(h.Answered(call));
  h.StopDevice(1);
  EXPECT_TRUE(h.Refused(call, Reason::kDeviceStopped));
  EXPECT_EQ(h.Pool("wide").waiters, 0);
  EXPECT_EQ(TilesOf(*h.Get<PlanResult>(h.MakePlan(a, {.units = 6, .pool = "wide"})).layout), "0:0-6");
}

}  // namespace
}  // namespace berth::core
