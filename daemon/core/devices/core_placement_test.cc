// Permits that name a device, tested through the core.

#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

AcquireRequest Wide(uint64_t units, const std::string& key) {
  return {.pool = "wide", .units = units, .holder_key = key};
}

AcquireRequest On(DevicePick pick, const std::string& key, Bytes declared = Bytes()) {
  AcquireRequest request = Wide(1, key);
  request.device = {.pick = pick, .declared = declared};
  return request;
}

TEST(CorePlacementTest, PermitNamesDeviceUnlessNestedWithoutDevice) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult first = h.MustAcquire(a, On(DevicePick::kAny, "1", MiB(10)));
  ASSERT_TRUE(first.device.has_value());
  EXPECT_EQ(first.device->uuid, "DEVICE-0");
  EXPECT_EQ(first.device->generation, 1);
  EXPECT_EQ(h.MustAcquire(b, On(DevicePick::kAny, "1")).device->uuid, "DEVICE-1");
  EXPECT_EQ(h.MustAcquire(a, On(DevicePick::kAny, "1")).device->uuid, "DEVICE-0");
  EXPECT_FALSE(h.MustAcquire(a, Wide(1, "1")).device.has_value());
  EXPECT_EQ(h.core->ListPermits(a.caller(), "wide")[0].declared, MiB(10));
  h.MustAcquire(a, Wide(1, "none"));
  const std::string before = h.Accounts();
  AcquireRequest other = On(DevicePick::kNamed, "1");
  other.device.uuid = "DEVICE-1";
  EXPECT_TRUE(h.Refused(h.Acquire(a, other), Reason::kNestedOverHeld));
  EXPECT_TRUE(h.Refused(h.Acquire(a, On(DevicePick::kAny, "1", MiB(11))), Reason::kNestedOverHeld));
  EXPECT_TRUE(h.Refused(h.Acquire(a, On(DevicePick::kAny, "none")), Reason::kNestedOverHeld));
  AcquireRequest listed = On(DevicePick::kAny, "1");
  listed.device.among = {"DEVICE-1"};
  const CallId refused = h.Acquire(a, listed);
  EXPECT_TRUE(h.Refused(refused, Reason::kNestedOverHeld));
  EXPECT_EQ(h.StatusOf(refused).message(),
            "permit pool wide: asked one of DEVICE-1, but the enclosing permit 1 holds DEVICE-0: request no more than "
            "it holds, or release it first");
  EXPECT_EQ(h.Accounts(), before);
}

TEST(CorePlacementTest, DeclaredBytesStayReservedUntilRelease) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult first = h.MustAcquire(a, On(DevicePick::kAny, "1", MiB(40)));
  h.MustAcquire(a, On(DevicePick::kAny, "2", MiB(40)));
  AcquireRequest elsewhere = {.pool = "gpu-tests", .holder_key = "1"};
  elsewhere.device = {.pick = DevicePick::kBest, .declared = MiB(30)};
  const CallId waiting = h.Acquire(b, elsewhere);
  EXPECT_FALSE(h.Answered(waiting));
  h.Release(a, first.acquisition);
  EXPECT_EQ(h.Get<AcquireResult>(waiting).device->uuid, "DEVICE-0");
  EXPECT_TRUE(h.Refused(h.Acquire(b, On(DevicePick::kAny, "3", MiB(65))), Reason::kOverCap));
}

TEST(CorePlacementTest, FreedBlockServesWaiterForDeclaredBytes) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(16));
  h.MustAcquire(a, On(DevicePick::kAny, "other", MiB(60)));
  AcquireRequest constraint = On(DevicePick::kNamed, "1", MiB(50));
  constraint.device.uuid = "DEVICE-0";
  const CallId waiting = h.Acquire(b, constraint);
  EXPECT_FALSE(h.Answered(waiting));
  // A waiter that waits for a block's release does not delay other waiters.
  EXPECT_TRUE(h.StatusOf(h.Acquire(b, Wide(6, "rest"))).ok());
  h.Free(a, block.block.handle, {block.import});
  h.WorkAll();
  EXPECT_EQ(h.Get<AcquireResult>(waiting).device->uuid, "DEVICE-0");
}

TEST(CorePlacementTest, HeldWaiterIsSkippedWhenBlockTakesItsBytes) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 0;
  CoreHarness h(config);
  Peer a = h.Open(), b = h.Open();
  AcquireRequest constraint = On(DevicePick::kNamed, "1", MiB(50));
  constraint.device.uuid = "DEVICE-0";
  h.MustAcquire(a, constraint);
  const CallId held = h.Acquire(b, constraint);
  const CallId behind = h.Acquire(b, Wide(1, "2"));
  EXPECT_FALSE(h.Answered(behind));
  h.MustAllocate(a, MiB(16));
  EXPECT_TRUE(h.StatusOf(behind).ok());
  EXPECT_FALSE(h.Answered(held));
}

TEST(CorePlacementTest, WaiterForDroppedDeviceIsRejected) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  AcquireRequest constraint = On(DevicePick::kNamed, "1", MiB(50));
  constraint.device.uuid = "DEVICE-1";
  h.MustAcquire(a, constraint);
  const CallId waiting = h.Acquire(b, constraint);
  EXPECT_FALSE(h.Answered(waiting));
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DropDevice(h.now, 1, effects).ok()); });
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceStopped));
  EXPECT_TRUE(h.Refused(h.Acquire(b, constraint), Reason::kDeviceStopped));
}

TEST(CorePlacementTest, StoppedDeviceRejectsImpatientWaiters) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open(), c = h.Open();
  AcquireRequest constraint = On(DevicePick::kNamed, "1", MiB(50)), patient = constraint;
  constraint.device.uuid = patient.device.uuid = "DEVICE-1";
  patient.device.wait_for_device = true;
  const AcquireResult held = h.MustAcquire(a, constraint);
  h.now += absl::Seconds(10);
  h.Release(a, held.acquisition);
  h.MustAcquire(a, constraint);
  const CallId waiting = h.Acquire(b, constraint), waits_on = h.Acquire(c, patient);
  EXPECT_FALSE(h.Answered(waiting));
  const auto explain = [&] {
    return *h.core->ExplainWait(c.caller(), h.core->ListWaiters(c.caller(), "wide").back().number);
  };
  EXPECT_LT(explain().estimate, absl::InfiniteDuration());
  h.StopDevice(1);
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceStopped));
  EXPECT_TRUE(h.Refused(h.Acquire(b, constraint), Reason::kDeviceStopped));
  EXPECT_FALSE(h.Answered(waits_on));
  EXPECT_EQ(explain().cause, WaitCause::kDevice);
  EXPECT_EQ(explain().estimate, absl::InfiniteDuration()) << "no permit's return brings the device back";
  EXPECT_NE(explain().lacking.find("device 1 is out of service: "), std::string::npos) << explain().lacking;
}

TEST(CorePlacementTest, NamedDevicesBoundPermitsGangsBlocksAndPlans) {
  Config config = CoreHarness::DefaultConfig();
  ASSERT_EQ(config.devices.size(), 2u);
  config.devices[0].uuid = "GPU-aa";
  config.devices[1].uuid = "GPU-ab";
  CoreHarness h(config);
  Peer a = h.Open();
  const auto bounded = [](const char* visible) {
    AcquireRequest request = On(DevicePick::kAny, "bounded");
    request.device.visible = visible;
    request.independent = true;
    return request;
  };
  AcquireRequest named = On(DevicePick::kNamed, "named");
  named.device.uuid = "GPU-ab";
  EXPECT_EQ(h.MustAcquire(a, named).device->uuid, "GPU-ab");
  named.device.uuid = "1";
  EXPECT_TRUE(h.MustAcquire(a, named).nested) << "the same device";
  named.device.uuid = "GPU-a";
  EXPECT_TRUE(h.Refused(h.Acquire(a, named), Reason::kInvalidField));
  EXPECT_EQ(h.MustAcquire(a, bounded("1")).device->uuid, "GPU-ab") << "though the other one is emptier";
  EXPECT_TRUE(h.Refused(h.Acquire(a, bounded("")), Reason::kNoDevice));
  EXPECT_TRUE(h.Refused(h.Acquire(a, bounded("0,2")), Reason::kInvalidField));

  GangMember member{.pool = "wide", .device = {.pick = DevicePick::kAny, .visible = "GPU-aa"}};
  const GangRequest two{.members = {member, member}, .holder_key = "gang"};
  EXPECT_TRUE(h.Refused(h.AcquireGang(a, two), Reason::kOverCap)) << "two of one";

  AllocateRequest block{.bytes = MiB(2), .constraint = {.pick = DevicePick::kBest, .among = {"1"}}};
  const CallId made = h.Allocate(a, block);
  h.WorkAll();
  EXPECT_EQ(h.Get<AllocateResult>(made).block.device, 1u);
  const CallId elsewhere = h.Allocate(a, {.bytes = MiB(2), .constraint = {.pick = DevicePick::kBest, .visible = "-1"}});
  EXPECT_TRUE(h.Refused(elsewhere, Reason::kNoDevice));
}

}  // namespace
}  // namespace berth::core
