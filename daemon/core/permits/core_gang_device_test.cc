// Gangs and plans that need a device that is stopped or drained.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

using Constraints = std::vector<DeviceConstraint>;

DeviceConstraint Named(const std::string& uuid) { return {.pick = DevicePick::kNamed, .uuid = uuid}; }

DeviceConstraint Among(std::vector<std::string> uuids) {
  return {.pick = DevicePick::kAny, .among = std::move(uuids)};
}

DeviceConstraint Patient(DeviceConstraint constraint) {
  constraint.wait_for_device = true;
  return constraint;
}

constexpr DevicePick kAny = DevicePick::kAny;

// Three devices, the last of which has twice the memory of the others.
Config ThreeDevices() {
  Config config = CoreHarness::DefaultConfig();
  config.devices.push_back(
      {.ordinal = 2, .uuid = "DEVICE-2", .kind = MemoryKind::kHost, .total = MiB(128), .budget = MiB(16)});
  return config;
}

GangRequest GangOf(const Constraints& devices) {
  GangRequest request{.holder_key = "g"};
  for (const DeviceConstraint& device : devices) request.members.push_back({.pool = "wide", .device = device});
  return request;
}

struct Case {
  const char* name;
  Constraints devices;
  // Reason of the refusal once device 2 is out of service; unset if the gang needs no device that is.
  std::optional<Reason> refused;
};

class CoreGangDeviceTest : public ::testing::Test {
 protected:
  // Holds all of pool wide, which has granted a permit for 10 s before.
  CoreGangDeviceTest() {
    const AcquireResult first = h_.MustAcquire(holder_, {.pool = "wide", .units = 8, .holder_key = "h"});
    h_.now += absl::Seconds(10);
    h_.Release(holder_, first.acquisition);
    held_ = h_.MustAcquire(holder_, {.pool = "wide", .units = 8, .holder_key = "h"});
  }

  CallId Request(const Constraints& devices) {
    if (devices.size() > 1) return h_.AcquireGang(peer_, GangOf(devices));
    return h_.Acquire(peer_, {.pool = "wide", .holder_key = "g", .device = devices.front()});
  }
  WaitView Explain() {
    return *h_.core->ExplainWait(peer_.caller(), h_.core->ListWaiters(peer_.caller(), "wide").at(0).number);
  }
  // Expects a refusal that names device 2 and the way out.
  void ExpectRefused(CallId call, Reason reason) {
    ASSERT_TRUE(h_.Refused(call, reason)) << h_.StatusOf(call);
    EXPECT_TRUE(absl::StrContains(h_.StatusOf(call).message(), "2")) << h_.StatusOf(call);
    EXPECT_FALSE(h_.NamedValue(call, "device").empty());
    EXPECT_FALSE(h_.NamedValue(call, "why").empty());
  }
  void Check(const Case& each) {
    const CallId waits = Request(each.devices);
    ASSERT_FALSE(h_.Answered(waits));
    EXPECT_LT(Explain().estimate, absl::InfiniteDuration());
    TakeOut();
    if (each.refused.has_value()) {
      ExpectRefused(waits, *each.refused);
      ExpectRefused(Request(each.devices), *each.refused);
      EXPECT_EQ(h_.Pool("wide").waiters, 0);
      Constraints patient;
      for (const DeviceConstraint& device : each.devices) patient.push_back(Patient(device));
      const CallId awaits = Request(patient);
      ASSERT_FALSE(h_.Answered(awaits));
      EXPECT_EQ(Explain().estimate, absl::InfiniteDuration());
      h_.Release(holder_, held_.acquisition);
      EXPECT_FALSE(h_.Answered(awaits));
      EXPECT_EQ(Explain().estimate, absl::InfiniteDuration());
      EXPECT_TRUE(absl::StrContains(Explain().lacking, "device 2 is ")) << Explain().lacking;
      TakeBack();
      EXPECT_TRUE(h_.StatusOf(awaits).ok()) << h_.StatusOf(awaits);
    } else {
      EXPECT_FALSE(h_.Answered(waits));
    }
  }
  virtual void TakeOut() { h_.StopDevice(2); }
  virtual void TakeBack() {
    h_.Do([&](Core& core, Effects* effects) { core.WorkerUp(h_.now, 2, WorkerKind::kMain, effects); });
  }

  CoreHarness h_{ThreeDevices()};
  Peer holder_ = h_.Open(), peer_ = h_.Open();
  AcquireResult held_;
};

class StoppedDeviceTest : public CoreGangDeviceTest, public ::testing::WithParamInterface<Case> {};

TEST_P(StoppedDeviceTest, GangThatNeedsItIsRefusedUnlessItAwaits) { Check(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Cases, StoppedDeviceTest,
    ::testing::Values(
        Case{"AnyThree", {{.pick = kAny}, {.pick = kAny}, {.pick = kAny}}, Reason::kDeviceStopped},
        Case{"AnyTwo", {{.pick = kAny}, {.pick = kAny}}, std::nullopt},
        Case{"BestThree",
             {{.pick = DevicePick::kBest}, {.pick = DevicePick::kBest}, {.pick = DevicePick::kBest}},
             Reason::kDeviceStopped},
        Case{"TwoOfTwo", {Among({"1", "2"}), Among({"1", "2"})}, Reason::kDeviceStopped},
        Case{"OneAwaits", {Among({"1", "2"}), Patient(Among({"1", "2"}))}, std::nullopt},
        Case{"NamedOnes", {Named("DEVICE-0"), Named("DEVICE-2")}, Reason::kDeviceStopped},
        Case{"NamedAndAny", {Named("DEVICE-0"), {.pick = kAny}, {.pick = kAny}}, Reason::kDeviceStopped},
        Case{"ItsBytes", {{.pick = kAny, .declared = MiB(100)}, {.pick = kAny}}, Reason::kDeviceStopped},
        Case{"OnePermitOfItsBytes", {{.pick = kAny, .declared = MiB(100)}}, Reason::kDeviceStopped}),
    [](const auto& info) { return info.param.name; });

class DrainedDeviceTest : public StoppedDeviceTest {
 protected:
  void TakeOut() override {
    h_.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DrainDevice(h_.now, 2, "loud", effects).ok()); });
  }
  void TakeBack() override {
    h_.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.UndrainDevice(h_.now, 2, effects).ok()); });
  }
};

TEST_P(DrainedDeviceTest, GangThatListsItIsRefusedUnlessItAwaits) { Check(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Cases, DrainedDeviceTest,
    ::testing::Values(
        // Requests for any device wait for drained devices.
        Case{"AnyThree", {{.pick = kAny}, {.pick = kAny}, {.pick = kAny}}, std::nullopt},
        Case{"TwoOfTwo", {Among({"1", "2"}), Among({"1", "2"})}, Reason::kDeviceDraining},
        // A list of all devices is like a shorter one.
        Case{"ThreeOfThree",
             {Among({"0", "1", "2"}), Among({"0", "1", "2"}), Among({"0", "1", "2"})},
             Reason::kDeviceDraining},
        Case{"OneAwaits", {Among({"1", "2"}), Patient(Among({"1", "2"}))}, std::nullopt},
        Case{"NamedOnes", {Named("DEVICE-0"), Named("DEVICE-2")}, Reason::kDeviceDraining}),
    [](const auto& info) { return info.param.name; });

TEST_F(CoreGangDeviceTest, WaitingPlanIsRefusedOnceItsDeviceStops) {
  const CallId permits = h_.MakePlan(peer_, {.units = 300, .pool = "wide"});
  EXPECT_FALSE(h_.Answered(permits));
  h_.StopDevice(2);
  ExpectRefused(permits, Reason::kDeviceStopped);
  EXPECT_EQ(h_.Pool("wide").waiters, 0);
}

}  // namespace
}  // namespace berth::core
