// The causes that refusals of permits name: at once (NO_PERMIT), and at the end of a wait (WAIT_TIMED_OUT).

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

AcquireRequest Wide(uint64_t units, std::string key) {
  return {.pool = "wide", .units = units, .holder_key = std::move(key)};
}

AcquireRequest OnDevice(std::string key, DeviceConstraint device) {
  AcquireRequest request = Wide(1, std::move(key));
  request.device = std::move(device);
  return request;
}

// A gang of `count` permits of pool wide, each on a device.
GangRequest GangOf(size_t count, const DeviceConstraint& device) {
  GangRequest gang{.holder_key = "late"};
  gang.members.assign(count, GangMember{.pool = "wide", .device = device});
  return gang;
}

const DeviceConstraint kAnyDevice{.pick = DevicePick::kAny};
const DeviceConstraint kDevice0{.pick = DevicePick::kNamed, .uuid = "DEVICE-0"};

struct Case {
  const char* name;
  PoolConfig pool;
  // Takes what makes the request wait.
  std::function<void(CoreHarness& h, Peer& holder)> before;
  AcquireRequest request;
  // Requested instead of `request` if it has members.
  GangRequest gang;
  // Text of the cause; `later`: at the end of a wait, if it differs.
  std::string cause;
  std::string later;
};

std::vector<Case> Cases() {
  const auto one_out = [](CoreHarness& h, Peer& holder) { h.MustAcquire(holder, Wide(1, "h")); };
  AcquireRequest exclusive = Wide(1, "late");
  exclusive.exclusive = true;
  AcquireRequest capped = OnDevice("late", kAnyDevice);
  capped.client_cap = 1;
  AcquireRequest large = OnDevice("late", kDevice0);
  large.device.declared = MiB(40);
  return {
      {.name = "units",
       .before = [](CoreHarness& h, Peer& holder) { h.MustAcquire(holder, Wide(7, "h")); },
       .request = Wide(2, "late"),
       .cause = "asked 2, 7 of 8 out"},
      {.name = "a gang's units beside the cap without a device",
       .pool = {.no_device_cap = 2},
       .before =
           [](CoreHarness& h, Peer& holder) {
             h.MustAcquire(holder, Wide(2, "h"));
             AcquireRequest most = OnDevice("on a device", kAnyDevice);
             most.units = 5;
             most.independent = true;
             h.MustAcquire(holder, most);
           },
       .gang = GangOf(2, kAnyDevice),
       .cause = "asked 2, 7 of 8 out"},
      {.name = "the cap without a device",
       .pool = {.no_device_cap = 2},
       .before = [](CoreHarness& h, Peer& holder) { h.MustAcquire(holder, Wide(2, "h")); },
       .request = Wide(1, "late"),
       .cause = "asked 1, 2 of 2 without a device out, 2 of 8 in total: request a device",
       .later = "asked 1, 2 of 8 out; 2 of 2 units without a device are out: request a device"},
      {.name = "an exclusive request beside the cap without a device",
       .pool = {.no_device_cap = 1},
       .before = one_out,
       .request = exclusive,
       .cause = "asked 1, 1 of 8 out; the request is exclusive, and other permits are out"},
      {.name = "an exclusive permit",
       .before =
           [](CoreHarness& h, Peer& holder) {
             AcquireRequest alone = Wide(1, "h");
             alone.exclusive = true;
             h.MustAcquire(holder, alone);
           },
       .request = Wide(1, "late"),
       .cause = "asked 1, 1 of 8 out; an exclusive permit is out"},
      {.name = "the tenant's cap, with a device",
       .pool = {.tenant_cap = 2},
       .before = [](CoreHarness& h, Peer&) {
         Peer same = h.Open(2000);
         h.MustAcquire(same, Wide(2, "h"));
       },
       .request = OnDevice("late", kAnyDevice),
       .cause = "2 of 8 out; the tenant has 2 of the 2 units that the pool's tenant_cap allows"},
      {.name = "the client's environment",
       .before = one_out,
       .request = capped,
       .cause = "1 of 8 out; the client's environment allows 1 (BERTH_GPU_TEST_CONCURRENCY, "
                "REALIZAR_GPU_TEST_CONCURRENCY)"},
      {.name = "a device's cap",
       .pool = {.device_cap = 1},
       .before = [](CoreHarness& h, Peer& holder) { h.MustAcquire(holder, OnDevice("h", kDevice0)); },
       .request = OnDevice("late", kDevice0),
       .cause = "1 of 8 out; no serving device DEVICE-0 has capacity"},
      {.name = "a device's bytes",
       .before =
           [](CoreHarness& h, Peer& holder) {
             AcquireRequest large = OnDevice("h", kDevice0);
             large.device.declared = MiB(40);
             h.MustAcquire(holder, large);
           },
       .request = large,
       .cause = "1 of 8 out; no serving device DEVICE-0 has "},
      {.name = "devices together",
       .pool = {.device_cap = 1},
       .before = [](CoreHarness& h, Peer& holder) { h.MustAcquire(holder, OnDevice("h", kDevice0)); },
       .gang = GangOf(2, kAnyDevice),
       .cause = "asked 2 together, 1 of 8 out; too few devices have capacity at once"},
      {.name = "a stop",
       .before = [](CoreHarness& h, Peer& holder) {
         h.MustAcquire(holder, Wide(1, "h"));
         Caller boss = h.Open(0).caller();
         boss.admin = true;
         h.Ask([&](Core& core, CallId call, Effects* effects) {
           core.DrainToStop(h.now, call, boss, absl::InfiniteFuture(), effects);
         });
       },
       .request = Wide(1, "late"),
       .cause = "1 of 8 out; an operator is stopping the daemon, which grants no more permits"},
  };
}

// Returns the refusal of the case's request, which waits for `patience`.
absl::Status Refusal(const Case& tried, absl::Duration patience) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[1].tenant_cap = tried.pool.tenant_cap;
  config.pools[1].no_device_cap = tried.pool.no_device_cap;
  config.pools[1].device_cap = tried.pool.device_cap;
  CoreHarness h(config);
  Peer holder = h.Open(1000), late = h.Open(2000);
  tried.before(h, holder);
  const auto bounded = [&](auto request) {
    request.wait = patience > absl::ZeroDuration();
    request.deadline = h.now + patience;
    return request;
  };
  const CallId call = tried.gang.members.empty() ? h.Acquire(late, bounded(tried.request))
                                                 : h.AcquireGang(late, bounded(tried.gang));
  EXPECT_EQ(h.Answered(call), patience == absl::ZeroDuration());
  h.now += patience;
  h.Tick();
  return h.StatusOf(call);
}

TEST(CoreDenialTest, RefusalNamesItsCause) {
  for (const Case& tried : Cases()) {
    SCOPED_TRACE(tried.name);
    const absl::Status at_once = Refusal(tried, absl::ZeroDuration());
    EXPECT_TRUE(IsRefusal(at_once, Reason::kNoPermit)) << at_once;
    EXPECT_TRUE(absl::StrContains(at_once.message(), tried.cause)) << at_once;
    const absl::Status late = Refusal(tried, absl::Seconds(1));
    EXPECT_TRUE(IsRefusal(late, Reason::kWaitTimedOut)) << late;
    EXPECT_TRUE(absl::StrContains(late.message(), tried.later.empty() ? tried.cause : tried.later)) << late;
    EXPECT_TRUE(absl::EndsWith(late.message(), "; the wait ended at place 1")) << late;
  }
}

// The pool's last unit is reserved for the earlier waiter, which needs all units.
TEST(CoreDenialTest, RefusalNamesReservedUnits) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 0;
  CoreHarness h(config);
  Peer a = h.Open(1000), b = h.Open(2000);
  h.MustAcquire(a, Wide(7, "h"));
  h.Acquire(b, Wide(8, "large"));
  AcquireRequest request = Wide(1, "late");
  request.wait = false;
  const absl::Status status = h.StatusOf(h.Acquire(b, request));
  EXPECT_TRUE(absl::StrContains(status.message(), "7 of 8 out; the free units are reserved for an earlier waiter"))
      << status;
}

TEST(CoreDenialTest, NestedRefusalNamesWayOut) {
  CoreHarness h;
  Peer a = h.Open();
  AcquireRequest run = Wide(1, "run");
  run.adoptable = true;
  h.MustAcquire(a, run);
  const auto said = [&](CallId call) { return std::string(h.StatusOf(call).message()); };
  const std::string nested = said(h.Acquire(a, Wide(2, "inner")));
  EXPECT_TRUE(absl::EndsWith(nested, "holds 1: request no more than it holds, or --independent for a permit beside it"))
      << nested;
  const std::string own = said(h.Acquire(a, Wide(2, "run")));
  EXPECT_TRUE(absl::EndsWith(own, "holds 1: request no more than it holds, or release it first")) << own;
  const std::string gang = said(h.AcquireGang(a, GangOf(2, {})));
  EXPECT_TRUE(absl::EndsWith(gang, "release it first, or add --independent inside `berth run`")) << gang;
}

TEST(CoreDenialTest, DeviceAtItsCapIsNamed) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[1].device_cap = 1;
  CoreHarness h(config);
  Peer a = h.Open();
  h.MustAcquire(a, OnDevice("h", kDevice0));
  AcquireRequest request = OnDevice("late", kDevice0);
  request.wait = false;
  const CallId call = h.Acquire(a, request);
  EXPECT_EQ(h.NamedValue(call, "lacking"), "device 0 is at its cap in the pool: 1 of 1 units out");
}

}  // namespace
}  // namespace berth::core
