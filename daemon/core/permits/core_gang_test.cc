#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

AcquireRequest One(const std::string& key) { return {.pool = "gpu-tests", .holder_key = key}; }

AcquireRequest Wide(uint64_t units, const std::string& key) {
  return {.pool = "wide", .units = units, .holder_key = key};
}

// Requests `tests` and `wide` units of the two pools.
GangRequest Both(uint64_t tests, uint64_t wide, const std::string& key = "g") {
  return {.members = {{.pool = "gpu-tests", .units = tests}, {.pool = "wide", .units = wide}},
          .holder_key = key};
}

// Requests `count` permits of pool wide, each with its own device.
GangRequest Devices(size_t count, Bytes declared, const std::string& key = "g") {
  GangRequest request{.holder_key = key};
  for (size_t i = 0; i < count; ++i) {
    request.members.push_back({.pool = "wide", .device = {.pick = DevicePick::kAny, .declared = declared}});
  }
  return request;
}

TEST(CoreGangTest, GangIsGrantedEntirelyOrNotAtAll) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult held = h.MustAcquire(a, Wide(6, "h"));
  const CallId gang = h.AcquireGang(b, Both(1, 3));
  EXPECT_FALSE(h.Answered(gang));
  EXPECT_EQ(h.Pool("gpu-tests").out, 0) << "the part that could be had is not taken";
  EXPECT_EQ(h.Pool("gpu-tests").waiters, 1);
  EXPECT_EQ(h.Pool("wide").waiters, 1);
  h.Release(a, held.acquisition);
  const GangResult got = h.Get<GangResult>(gang);
  ASSERT_EQ(got.permits.size(), 2);
  EXPECT_NE(got.permits[0].permit, got.permits[1].permit);
  EXPECT_EQ(h.Pool("gpu-tests").out, 1);
  EXPECT_EQ(h.Pool("wide").out, 3);
  EXPECT_EQ(h.Pool("gpu-tests").waiters + h.Pool("wide").waiters, 0);
  const auto permits = h.core->ListPermits(b.caller(), "");
  ASSERT_EQ(permits.size(), 2);
  EXPECT_NE(permits[0].gang, 0);
  EXPECT_EQ(permits[0].gang, permits[1].gang);
  // Each permit is released separately.
  EXPECT_TRUE(h.Get<ReleaseResult>(h.Release(b, got.permits[1].acquisition)).returned);
  EXPECT_EQ(h.Pool("wide").out, 0);
  EXPECT_EQ(h.Pool("gpu-tests").out, 1);
}

TEST(CoreGangTest, ImpossibleGangIsRejectedWithRemedy) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[1].tenant_cap = 6;
  CoreHarness h(config);
  Peer a = h.Open();
  const std::string before = h.Accounts();
  const auto refused = [&](const GangRequest& request, Reason reason) {
    const CallId call = h.AcquireGang(a, request);
    EXPECT_TRUE(h.Refused(call, reason)) << h.StatusOf(call);
    EXPECT_EQ(h.Accounts(), before);
    return call;
  };
  CallId call =
      refused({.members = {{.pool = "gpu-tests"}, {.pool = "gpu-tests", .units = 2}}, .holder_key = "g"},
              Reason::kOverCap);
  EXPECT_EQ(h.NamedValue(call, "asked"), "3");
  EXPECT_EQ(h.NamedValue(call, "cap"), "2");
  EXPECT_NE(h.StatusOf(call).message().find("raised to 3"), std::string::npos) << h.StatusOf(call);
  call = refused(Both(1, 7), Reason::kOverCap);
  EXPECT_EQ(h.NamedValue(call, "cap"), "6") << "one tenant may have no more";
  refused(Both(1, UINT64_MAX), Reason::kOverCap);
  GangRequest overflow = Both(UINT64_MAX, 1);
  overflow.members.push_back({.pool = "gpu-tests", .units = 2});
  refused(overflow, Reason::kOverCap);
  refused(Devices(3, Bytes()), Reason::kOverCap);
  refused(Devices(2, MiB(65)), Reason::kOverCap);
  GangRequest named = Devices(2, MiB(40));
  for (GangMember& member : named.members)
    member.device = {.pick = DevicePick::kNamed, .uuid = "DEVICE-0", .declared = MiB(40)};
  refused(named, Reason::kOverCap);
  named.members[1].device.uuid = "DEVICE-7";
  refused(named, Reason::kNotFound);
  refused({.holder_key = "g"}, Reason::kInvalidField);
  refused(Both(0, 1), Reason::kInvalidField);
  refused({.members = std::vector<GangMember>(65, {.pool = "wide"}), .holder_key = "g"},
          Reason::kInvalidField);
  refused({.members = {{.pool = "none"}}, .holder_key = "g"}, Reason::kNotFound);
  GangRequest bytes = Both(1, 1);
  bytes.reserve = {{.device = 0, .bytes = MiB(17)}};
  refused(bytes, Reason::kOverBudget);
  bytes.reserve = {{.device = 9, .bytes = MiB(1)}};
  refused(bytes, Reason::kNotFound);
  bytes.reserve = {{.device = 0, .bytes = Bytes()}};
  refused(bytes, Reason::kInvalidField);
}

TEST(CoreGangTest, HolderIsRejectedNamingItsPermit) {
  CoreHarness h;
  Peer a = h.Open();
  const AcquireResult held = h.MustAcquire(a, Wide(1, "g"));
  std::string before = h.Accounts();
  CallId call = h.AcquireGang(a, Both(1, 1));
  EXPECT_TRUE(h.Refused(call, Reason::kAlreadyHeld)) << h.StatusOf(call);
  EXPECT_EQ(h.NamedValue(call, "permit"), std::to_string(held.permit.value()));
  EXPECT_EQ(h.NamedValue(call, "pool"), "wide");
  EXPECT_EQ(h.Accounts(), before);
  // Another holder key holds nothing.
  h.Get<GangResult>(h.AcquireGang(a, Both(1, 1, "other")));
  // The session's adoptable permit counts too, except for a request that does not nest.
  Peer b = h.Open();
  AcquireRequest adoptable = Wide(1, "run");
  adoptable.adoptable = true;
  h.MustAcquire(b, adoptable);
  before = h.Accounts();
  EXPECT_TRUE(h.Refused(h.AcquireGang(b, Both(1, 1)), Reason::kAlreadyHeld));
  EXPECT_EQ(h.Accounts(), before);
  GangRequest independent = Both(1, 1);
  independent.independent = true;
  h.Get<GangResult>(h.AcquireGang(b, independent));
}

TEST(CoreGangTest, GangIsRejectedWhenHolderAcquiresMeanwhile) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult all = h.MustAcquire(b, Wide(8, "h"));
  const CallId gang = h.AcquireGang(a, Both(1, 4));
  EXPECT_FALSE(h.Answered(gang));
  h.MustAcquire(a, One("g"));
  EXPECT_TRUE(h.Refused(gang, Reason::kAlreadyHeld));
  // Conversely, an acquire that waits for a pool of the gang nests in the gang's permit.
  const CallId second = h.AcquireGang(a, {.members = {{.pool = "wide", .units = 2}}, .holder_key = "k"});
  const CallId nests = h.Acquire(a, Wide(2, "k"));
  const CallId third = h.AcquireGang(a, {.members = {{.pool = "wide", .units = 2}}, .holder_key = "k"});
  h.Release(b, all.acquisition);
  EXPECT_TRUE(h.Get<AcquireResult>(nests).nested);
  EXPECT_EQ(h.Get<AcquireResult>(nests).permit, h.Get<GangResult>(second).permits[0].permit);
  EXPECT_TRUE(h.Refused(third, Reason::kAlreadyHeld));
}

TEST(CoreGangTest, MembersOfSamePoolHaveOwnKeys) {
  CoreHarness h;
  Peer a = h.Open();
  const GangResult got = h.Get<GangResult>(h.AcquireGang(a, Devices(2, Bytes())));
  ASSERT_EQ(got.permits.size(), 2);
  EXPECT_NE(got.permits[0].device->ordinal, got.permits[1].device->ordinal);
  EXPECT_EQ(h.MustAcquire(a, Wide(1, "g")).permit, got.permits[0].permit);
  EXPECT_EQ(h.MustAcquire(a, Wide(1, "g#2")).permit, got.permits[1].permit);
}

TEST(CoreGangTest, NestedRequestGetsNamedDeviceOfAdoptableGang) {
  CoreHarness h;
  Peer a = h.Open();
  GangRequest request = Devices(2, Bytes(), "run");
  request.adoptable = true;
  const GangResult got = h.Get<GangResult>(h.AcquireGang(a, request));
  for (const AcquireResult& permit : got.permits) {
    AcquireRequest nested = Wide(1, "test");
    nested.device = {.pick = DevicePick::kNamed, .uuid = permit.device->uuid};
    EXPECT_EQ(h.MustAcquire(a, nested).permit, permit.permit);
  }
  EXPECT_EQ(h.MustAcquire(a, Wide(1, "test")).permit, got.permits[0].permit);
  // A refusal names the permit of the device.
  AcquireRequest large = Wide(1, "large");
  large.device = {.pick = DevicePick::kNamed, .uuid = got.permits[1].device->uuid, .declared = MiB(1)};
  const absl::Status refused = h.StatusOf(h.Acquire(a, large));
  EXPECT_TRUE(IsRefusal(refused, Reason::kNestedOverHeld)) << refused;
  const std::string holds = absl::StrCat("the enclosing permit ", got.permits[1].permit.value(), " holds 0");
  EXPECT_TRUE(absl::StrContains(refused.message(), holds)) << refused;
}

TEST(CoreGangTest, NestedRequestsSpreadOverGangsDevices) {
  CoreHarness h;
  Peer a = h.Open();
  GangRequest request = Devices(2, Bytes(), "run");
  request.adoptable = true;
  const GangResult got = h.Get<GangResult>(h.AcquireGang(a, request));
  AcquireRequest rank = Wide(1, "rank");
  rank.device = {.pick = DevicePick::kAny};
  std::vector<AcquireResult> ranks;
  for (int i = 0; i < 4; ++i) ranks.push_back(h.MustAcquire(a, rank));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ranks[i].permit, got.permits[i % 2].permit) << i;
  // The permit with the fewest acquisitions gets the next one.
  h.Release(a, ranks[1].acquisition);
  EXPECT_EQ(h.MustAcquire(a, rank).permit, got.permits[1].permit);
}

TEST(CoreGangTest, NestedRequestsWithoutDeviceTakeNoneOfGangs) {
  CoreHarness h;
  Peer a = h.Open();
  GangRequest request = Devices(2, Bytes(), "run");
  request.adoptable = true;
  const GangResult got = h.Get<GangResult>(h.AcquireGang(a, request));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(h.MustAcquire(a, Wide(1, "plain")).device.has_value());
  AcquireRequest rank = Wide(1, "rank");
  rank.device = {.pick = DevicePick::kAny};
  const AcquireResult first = h.MustAcquire(a, rank);
  EXPECT_EQ(first.permit, got.permits[0].permit);
  EXPECT_EQ(h.MustAcquire(a, rank).permit, got.permits[1].permit);
  h.MustAcquire(a, Wide(1, "plain"));
  EXPECT_EQ(h.MustAcquire(a, rank).permit, got.permits[0].permit);
  // A later broker does not know which of them use a device, and spreads the next ones by all.
  h.Restart();
  EXPECT_EQ(h.MustAcquire(a, rank).permit, got.permits[1].permit);
  h.Release(a, first.acquisition);
  EXPECT_EQ(h.MustAcquire(a, rank).permit, got.permits[0].permit);
}

TEST(CoreGangTest, DevicesAreAssignedSoThatAllMembersFit) {
  CoreHarness h;
  Peer a = h.Open();
  // Alone, the first member would take device 0, which the second must have.
  GangRequest request = Devices(1, Bytes());
  request.members.push_back({.pool = "wide", .device = {.pick = DevicePick::kNamed, .uuid = "DEVICE-0"}});
  GangResult got = h.Get<GangResult>(h.AcquireGang(a, request));
  EXPECT_EQ(got.permits[0].device->ordinal, 1);
  EXPECT_EQ(got.permits[1].device->ordinal, 0);
  // Alone, the first member would take the emptier device, the only device that fits the second.
  Peer b = h.Open();
  h.MustAllocate(b, MiB(10), 1);
  request = Devices(2, MiB(1), "k");
  request.members[1].device.declared = MiB(60);
  got = h.Get<GangResult>(h.AcquireGang(b, request));
  EXPECT_EQ(got.permits[0].device->ordinal, 1);
  EXPECT_EQ(got.permits[1].device->ordinal, 0);
}

TEST(CoreGangTest, GangBytesAreReservedTogetherWithPermits) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  GangRequest request = Both(1, 1);
  request.reserve = {{.device = 0, .bytes = MiB(10)}, {.device = 1, .bytes = MiB(4)}};
  const AllocateResult block = h.MustAllocate(b, MiB(8), 0);
  const CallId gang = h.AcquireGang(a, request);
  EXPECT_FALSE(h.Answered(gang));
  EXPECT_EQ(h.Pool("wide").out, 0);
  const WaiterView waiter = h.core->ListWaiters(a.caller(), "wide").at(0);
  EXPECT_EQ(h.core->ExplainWait(a.caller(), waiter.number)->cause, WaitCause::kCapacity);
  EXPECT_NE(waiter.gang.find("1 of wide"), std::string::npos) << waiter.gang;
  // The waiting gang blocks no other request.
  h.MustAcquire(b, Wide(8, "h"));
  EXPECT_EQ(h.core->ExplainWait(a.caller(), waiter.number)->cause, WaitCause::kUnits);
  h.Free(b, block.block.handle, {block.import});
  h.HangUp(b);
  h.Gone(b);
  h.WorkAll();
  const GangResult got = h.Get<GangResult>(gang);
  ASSERT_TRUE(got.reservation.has_value());
  EXPECT_EQ(got.reservation->claims.size(), 2);
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(10));
  EXPECT_EQ(h.core->ListReservations(a.caller()).size(), 1);
}

TEST(CoreGangTest, RejectedGangNamesMissingUnits) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  h.MustAcquire(b, Wide(7, "h"));
  GangRequest request = Both(1, 2);
  request.wait = false;
  const std::string before = h.Accounts();
  CallId call = h.AcquireGang(a, request);
  EXPECT_TRUE(h.Refused(call, Reason::kNoPermit));
  EXPECT_EQ(h.NamedValue(call, "pool"), "wide");
  EXPECT_EQ(h.NamedValue(call, "asked"), "2");
  EXPECT_EQ(h.Accounts(), before);
  request.wait = true;
  request.deadline = h.now + absl::Seconds(1);
  call = h.AcquireGang(a, request);
  EXPECT_EQ(h.core->next_deadline(), request.deadline);
  h.now += absl::Seconds(1);
  h.Tick();
  EXPECT_TRUE(h.Refused(call, Reason::kWaitTimedOut));
  EXPECT_EQ(h.NamedValue(call, "position"), "1");
  EXPECT_EQ(h.Accounts(), before);
}

TEST(CoreGangTest, GangPassedTooOftenIsHeldForInAllPools) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 2;
  CoreHarness h(config);
  Peer a = h.Open(), b = h.Open(2000);
  const AcquireResult first = h.MustAcquire(b, One("1"));
  const AcquireResult second = h.MustAcquire(b, One("2"));
  const CallId gang = h.AcquireGang(a, Both(2, 1));
  for (const char* const key : {"x", "y"}) h.MustAcquire(b, Wide(1, key));
  // After two passes the rest of the other pool is reserved for the gang.
  const CallId later = h.Acquire(b, Wide(1, "z"));
  EXPECT_FALSE(h.Answered(later));
  h.Release(b, first.acquisition);
  const CallId behind = h.Acquire(b, One("3"));
  EXPECT_FALSE(h.Answered(behind)) << "in both of them";
  h.Release(b, second.acquisition);
  h.Get<GangResult>(gang);
  EXPECT_FALSE(h.Get<AcquireResult>(later).nested);
  EXPECT_FALSE(h.Answered(behind));
}

TEST(CoreGangTest, GangDoesNotPassWaiterThatOtherPoolIsHeldFor) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 1;
  CoreHarness h(config);
  Peer a = h.Open(1), b = h.Open(2), c = h.Open(3);
  const AcquireResult held = h.MustAcquire(b, Wide(4, "h"));
  const CallId large = h.Acquire(a, Wide(8, "l"));
  const GangResult passed = h.Get<GangResult>(h.AcquireGang(c, Both(1, 1)));
  // The gang has passed the first waiter of pool wide once: the limit is reached.
  const CallId second = h.AcquireGang(c, Both(1, 1, "g2"));
  EXPECT_FALSE(h.Answered(second));
  EXPECT_EQ(h.core->ExplainWait(h.Admin(), h.core->ListWaiters(h.Admin(), "gpu-tests").at(0).number)->cause,
            WaitCause::kReservedForAnother);
  // The pool with free units is not blocked.
  h.MustAcquire(b, One("1"));
  h.Release(b, held.acquisition);
  h.Release(c, passed.permits[1].acquisition);
  EXPECT_FALSE(h.Get<AcquireResult>(large).nested);
  EXPECT_FALSE(h.Answered(second));
}

TEST(CoreGangTest, HeldGangsNeverWaitForEachOther) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 1;
  CoreHarness h(config);
  Peer a = h.Open(1), b = h.Open(2), c = h.Open(3);
  const AcquireResult one = h.MustAcquire(c, One("1"));
  const AcquireResult two = h.MustAcquire(c, Wide(8, "w"));
  const CallId first = h.AcquireGang(a, Both(2, 8));
  const CallId second = h.AcquireGang(b, Both(2, 8));
  // Each gang is passed until units are reserved for it, in one pool or the other.
  for (int i = 0; i < 4; ++i) h.Acquire(c, One(std::to_string(i + 10)));
  h.Release(c, two.acquisition);
  for (int i = 0; i < 4; ++i) h.Acquire(c, Wide(1, std::to_string(i + 10)));
  h.Release(c, one.acquisition);
  h.HangUp(c);
  h.Gone(c);
  h.Get<GangResult>(first);
  EXPECT_FALSE(h.Answered(second));
  h.HangUp(a);
  h.Gone(a);
  h.Get<GangResult>(second);
}

TEST(CoreGangTest, GangFittingAfterHoldIsGrantedAtOnce) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 1;
  CoreHarness h(config);
  Peer a = h.Open(1), b = h.Open(2), c = h.Open(3), d = h.Open(4);
  const AcquireResult one = h.MustAcquire(c, One("1"));
  h.MustAcquire(c, One("2"));
  h.MustAcquire(c, Wide(4, "w"));
  const CallId gang = h.AcquireGang(a, Both(1, 1));
  AcquireRequest first = Wide(8, "l");
  first.priority = 5;
  const CallId large = h.Acquire(b, first);
  h.MustAcquire(c, Wide(1, "x"));
  EXPECT_FALSE(h.Answered(h.Acquire(c, Wide(1, "y"))))
      << "the rest is reserved for the waiter that wants all of the pool";
  h.Release(c, one.acquisition);
  EXPECT_FALSE(h.Answered(gang)) << "from the gang, too";
  const AcquireResult passes = h.MustAcquire(d, One("p"));
  h.Release(d, passes.acquisition);
  // The other pool now reserves units for the gang, which came first in both.
  const CallId behind = h.Acquire(d, One("q"));
  h.Get<GangResult>(gang);
  EXPECT_FALSE(h.Answered(behind));
  EXPECT_FALSE(h.Answered(large));
}

TEST(CoreGangTest, GangBlockedByTenantCapHoldsNoOtherPool) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[1].tenant_cap = 6;
  config.limits.passes_before_hold = 1;
  CoreHarness h(config);
  Peer a = h.Open(1), b = h.Open(2), c = h.Open(3);
  const AcquireResult held = h.MustAcquire(c, Wide(4, "w"));
  const CallId large = h.Acquire(a, Wide(5, "l"));
  const AcquireResult passes = h.MustAcquire(c, Wide(1, "x"));
  EXPECT_FALSE(h.Answered(h.Acquire(c, Wide(1, "y")))) << "the rest is reserved for the waiter that was passed";
  h.MustAcquire(b, One("1"));
  const CallId gang = h.AcquireGang(a, Both(2, 2));
  const AcquireResult second = h.MustAcquire(b, One("2"));
  h.Release(b, second.acquisition);
  const CallId behind = h.Acquire(b, One("3"));
  EXPECT_FALSE(h.Answered(behind)) << "what is free is reserved for the gang";
  h.Release(c, passes.acquisition);
  h.Release(c, held.acquisition);
  h.Get<AcquireResult>(large);
  EXPECT_TRUE(h.Answered(behind)) << "the gang's tenant has no two units left for it in the other pool";
  EXPECT_FALSE(h.Answered(gang));
}

TEST(CoreGangTest, ChangeOfPoolEndsHoldInOther) {
  const struct {
    const char* name;
    PoolChange change;
  } cases[] = {
      {"the tenant's cap", {.tenant_cap = 5}},
      {"units without a device", {.no_device_cap = 5}},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    Config config = CoreHarness::DefaultConfig();
    config.limits.passes_before_hold = 1;
    CoreHarness h(config);
    Peer a = h.Open(1), b = h.Open(2);
    h.MustAcquire(a, Wide(4, "w"));
    h.MustAcquire(b, One("1"));
    const CallId gang = h.AcquireGang(a, Both(2, 2));
    const AcquireResult second = h.MustAcquire(b, One("2"));
    h.Release(b, second.acquisition);
    const CallId behind = h.Acquire(b, One("3"));
    EXPECT_FALSE(h.Answered(behind)) << "the free unit is reserved for the gang";
    h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.SetPool(h.now, "wide", each.change, effects).ok()); });
    EXPECT_TRUE(h.Answered(behind)) << "the gang cannot have two more units of the other pool";
    EXPECT_FALSE(h.Answered(gang));
  }
}

TEST(CoreGangTest, ExclusiveGangHasItsPoolsAlone) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  GangRequest request = Devices(2, Bytes());
  request.exclusive = true;
  const AcquireResult held = h.MustAcquire(b, Wide(1, "h"));
  const CallId gang = h.AcquireGang(a, request);
  EXPECT_FALSE(h.Answered(gang));
  h.Release(b, held.acquisition);
  const GangResult got = h.Get<GangResult>(gang);
  EXPECT_TRUE(h.Pool("wide").exclusive);
  const CallId waits = h.Acquire(b, Wide(1, "h"));
  h.Release(a, got.permits[0].acquisition);
  EXPECT_FALSE(h.Answered(waits)) << "until the last of them is back";
  h.Release(a, got.permits[1].acquisition);
  h.Get<AcquireResult>(waits);
}

TEST(CoreGangTest, CancelledDeadOrForgottenGangLeavesNothing) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  GangRequest request = Both(1, 2);
  request.reserve = {{.device = 0, .bytes = MiB(2)}};
  const std::string before = h.Accounts();
  const CallId granted = h.AcquireGang(a, request);
  h.Get<GangResult>(granted);
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(a, a.sequence)).outcome, ForgetOutcome::kUndone);
  EXPECT_EQ(h.Pool("wide").out + h.Pool("gpu-tests").out, 0);
  EXPECT_TRUE(h.core->ListReservations(h.Admin()).empty());
  h.MustAcquire(b, Wide(8, "h"));
  CallId waits = h.AcquireGang(a, request);
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(a, a.sequence)).outcome, ForgetOutcome::kCancelled);
  EXPECT_TRUE(h.Refused(waits, Reason::kCancelled));
  waits = h.AcquireGang(a, request);
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, waits, effects); });
  EXPECT_TRUE(h.Refused(waits, Reason::kCancelled));
  EXPECT_EQ(h.Pool("wide").waiters + h.Pool("gpu-tests").waiters, 0);
  waits = h.AcquireGang(a, request);
  h.Gone(a);
  h.HangUp(a);
  EXPECT_EQ(h.Pool("wide").waiters + h.Pool("gpu-tests").waiters, 0);
}

TEST(CoreGangTest, RepeatedGangGetsFirstAnswer) {
  CoreHarness h;
  Peer a = h.Open();
  const GangResult got = h.Get<GangResult>(h.AcquireGang(a, Both(1, 1)));
  const CallId again = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.AcquireGang(h.now, call, a.caller(), a.Again(), Both(1, 1), effects);
  });
  EXPECT_EQ(h.Get<GangResult>(again).permits[0].acquisition, got.permits[0].acquisition);
  const CallId other = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.AcquireGang(h.now, call, a.caller(), a.Again(), Both(1, 2), effects);
  });
  EXPECT_TRUE(h.Refused(other, Reason::kRequestReused));
}

TEST(CoreGangTest, LoweredCapRejectsImpossibleGang) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  h.MustAcquire(b, Wide(8, "h"));
  const CallId gang = h.AcquireGang(a, Both(1, 4));
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.SetPool(h.now, "wide", {.cap = 3}, effects).ok());
  });
  EXPECT_TRUE(h.Refused(gang, Reason::kOverCap));
  EXPECT_EQ(h.Pool("gpu-tests").waiters, 0);
}

TEST(CoreGangTest, DevicePoolCapsEachDeviceAndNamesIt) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[1].device_cap = 2;
  config.pools[1].device_caps = {{"DEVICE-1", 1}};
  CoreHarness h(config);
  Peer a = h.Open();
  std::vector<std::string> uuids;
  for (const char* const key : {"1", "2", "3"}) uuids.push_back(h.MustAcquire(a, Wide(1, key)).device->uuid);
  EXPECT_EQ(std::count(uuids.begin(), uuids.end(), "DEVICE-0"), 2);
  EXPECT_EQ(std::count(uuids.begin(), uuids.end(), "DEVICE-1"), 1);
  const CallId waits = h.Acquire(a, Wide(1, "4"));
  EXPECT_FALSE(h.Answered(waits));
  EXPECT_EQ(h.core->ExplainWait(a.caller(), h.core->ListWaiters(a.caller(), "wide").at(0).number)->cause,
            WaitCause::kDevice);
  const std::string before = h.Accounts();
  EXPECT_TRUE(h.Refused(h.Acquire(a, Wide(3, "5")), Reason::kOverCap));
  AcquireRequest named = Wide(2, "6");
  named.device = {.pick = DevicePick::kNamed, .uuid = "DEVICE-1"};
  const CallId call = h.Acquire(a, named);
  EXPECT_TRUE(h.Refused(call, Reason::kOverCap));
  EXPECT_EQ(h.NamedValue(call, "cap"), "1");
  EXPECT_EQ(h.Accounts(), before);
  // The cap is raised at run time.
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.SetPool(h.now, "wide", {.device_caps = {{"DEVICE-1", std::nullopt}}}, effects).ok());
  });
  EXPECT_EQ(h.Get<AcquireResult>(waits).device->uuid, "DEVICE-1");
  EXPECT_EQ(h.Pool("wide").config.device_caps.size(), 0);
}

}  // namespace
}  // namespace berth::core
