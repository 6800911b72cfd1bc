// Permits that name a device, through the core.

#include "daemon/core/core_harness.h"

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

TEST(CorePlacementTest, APermitNamesItsDeviceAndNestedOnesHaveTheSame) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult first = h.MustAcquire(a, On(DevicePick::kAny, "1", MiB(10)));
  ASSERT_TRUE(first.device.has_value());
  EXPECT_EQ(first.device->uuid, "DEVICE-0");
  EXPECT_EQ(first.device->generation, 1);
  EXPECT_EQ(h.MustAcquire(b, On(DevicePick::kAny, "1")).device->uuid, "DEVICE-1");
  EXPECT_EQ(h.MustAcquire(a, Wide(1, "1")).device->uuid, "DEVICE-0");
  EXPECT_EQ(h.core->ListPermits(a.caller(), "wide")[0].declared, MiB(10));
  h.MustAcquire(a, Wide(1, "none"));
  const std::string before = h.Books();
  AcquireRequest other = On(DevicePick::kNamed, "1");
  other.device.uuid = "DEVICE-1";
  EXPECT_TRUE(h.Refused(h.Acquire(a, other), Reason::kNestedOverHeld));
  EXPECT_TRUE(h.Refused(h.Acquire(a, On(DevicePick::kAny, "1", MiB(11))), Reason::kNestedOverHeld));
  EXPECT_TRUE(h.Refused(h.Acquire(a, On(DevicePick::kAny, "none")), Reason::kNestedOverHeld));
  EXPECT_EQ(h.Books(), before);
}

TEST(CorePlacementTest, DeclaredBytesAreSetAsideUntilThePermitIsBackWhoeverWaitsInWhateverPool) {
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

TEST(CorePlacementTest, ABlockThatGoesMakesRoomForWhoDeclaresBytes) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(16));
  h.MustAcquire(a, On(DevicePick::kAny, "other", MiB(60)));
  AcquireRequest wish = On(DevicePick::kNamed, "1", MiB(50));
  wish.device.uuid = "DEVICE-0";
  const CallId waiting = h.Acquire(b, wish);
  EXPECT_FALSE(h.Answered(waiting));
  // Nobody waits for one that waits for a block.
  EXPECT_TRUE(h.StatusOf(h.Acquire(b, Wide(6, "rest"))).ok());
  h.Free(a, block.block.handle, {block.import});
  h.WorkAll();
  EXPECT_EQ(h.Get<AcquireResult>(waiting).device->uuid, "DEVICE-0");
}

TEST(CorePlacementTest, WhoWasWaitedForStandsAsideWhenABlockTakesWhatItWaitsFor) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 0;
  CoreHarness h(config);
  Peer a = h.Open(), b = h.Open();
  AcquireRequest wish = On(DevicePick::kNamed, "1", MiB(50));
  wish.device.uuid = "DEVICE-0";
  h.MustAcquire(a, wish);
  const CallId held = h.Acquire(b, wish);
  const CallId behind = h.Acquire(b, Wide(1, "2"));
  EXPECT_FALSE(h.Answered(behind));
  h.MustAllocate(a, MiB(16));
  EXPECT_TRUE(h.StatusOf(behind).ok());
  EXPECT_FALSE(h.Answered(held));
}

TEST(CorePlacementTest, WhoWaitsForADeviceThatLeavesTheNodeIsRefused) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  AcquireRequest wish = On(DevicePick::kNamed, "1", MiB(50));
  wish.device.uuid = "DEVICE-1";
  h.MustAcquire(a, wish);
  const CallId waiting = h.Acquire(b, wish);
  EXPECT_FALSE(h.Answered(waiting));
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DropDevice(h.now, 1, effects).ok()); });
  EXPECT_TRUE(h.Refused(waiting, Reason::kDeviceStopped));
  EXPECT_TRUE(h.Refused(h.Acquire(b, wish), Reason::kDeviceStopped));
}

}  // namespace
}  // namespace berth::core
