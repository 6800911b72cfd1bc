#include <set>
#include <string>

#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

AcquireRequest One(const std::string& key, bool wait = true) {
  return {.pool = "gpu-tests", .holder_key = key, .wait = wait};
}

AcquireRequest Wide(uint64_t units, const std::string& key) {
  return {.pool = "wide", .units = units, .holder_key = key};
}

TEST(CorePermitTest, CapIsNeverExceededAndWaitersAreServedInOrder) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open(), c = h.Open();
  const AcquireResult first = h.MustAcquire(a, One("1"));
  h.MustAcquire(b, One("1"));
  const CallId third = h.Acquire(c, One("1"));
  const CallId fourth = h.Acquire(a, One("2"));
  EXPECT_FALSE(h.Answered(third));
  EXPECT_EQ(h.Pool().out, 2);
  EXPECT_EQ(h.Pool().waiters, 2);
  EXPECT_TRUE(h.Get<ReleaseResult>(h.Release(a, first.acquisition)).returned);
  EXPECT_FALSE(h.Get<AcquireResult>(third).nested);
  EXPECT_FALSE(h.Answered(fourth));
  EXPECT_EQ(h.Pool().peak, 2);
}

TEST(CorePermitTest, LastNestedReleaseReturnsPermit) {
  CoreHarness h;
  Peer a = h.Open();
  const AcquireResult outer = h.MustAcquire(a, One("1"));
  const AcquireResult inner = h.MustAcquire(a, One("1"));
  EXPECT_TRUE(inner.nested);
  EXPECT_EQ(inner.permit, outer.permit);
  EXPECT_NE(inner.acquisition, outer.acquisition);
  EXPECT_EQ(h.Pool().out, 1);
  EXPECT_EQ(h.core->ListPermits(a.caller(), "")[0].depth, 2);
  EXPECT_FALSE(h.Get<ReleaseResult>(h.Release(a, outer.acquisition)).returned);
  EXPECT_EQ(h.Pool().out, 1);
  EXPECT_TRUE(h.Get<ReleaseResult>(h.Release(a, inner.acquisition)).returned);
  EXPECT_EQ(h.Pool().out, 0);
}

TEST(CorePermitTest, InvalidReleaseDoesNotRaiseCount) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open(), of_another_tenant = h.Open(1001);
  const AcquireResult held = h.MustAcquire(a, One("1"));
  const AcquireResult other = h.MustAcquire(a, One("2"));
  h.MustAcquire(a, One("1"));
  h.Release(a, other.acquisition);
  const std::string before = h.Accounts();
  EXPECT_TRUE(h.Refused(h.Release(a, other.acquisition), Reason::kNotFound));
  EXPECT_TRUE(h.Refused(h.Release(a, AcquisitionId(12345)), Reason::kNotFound));
  EXPECT_TRUE(h.Refused(h.Release(b, held.acquisition), Reason::kNotFound));
  EXPECT_TRUE(h.Refused(h.Release(of_another_tenant, held.acquisition), Reason::kNotFound));
  // A release on the channel is refused, too, also on an unknown channel.
  EXPECT_TRUE(absl::IsNotFound(h.GiveBack(a, other.acquisition).status()));
  EXPECT_TRUE(absl::IsNotFound(h.GiveBack(a, AcquisitionId(12345)).status()));
  EXPECT_TRUE(absl::IsNotFound(h.GiveBack(b, held.acquisition).status()));
  EXPECT_TRUE(absl::IsNotFound(h.GiveBack(of_another_tenant, held.acquisition).status()));
  EXPECT_TRUE(absl::IsNotFound(h.GiveBack({.channel = ChannelId(12345)}, held.acquisition).status()));
  EXPECT_EQ(h.Accounts(), before);
  EXPECT_EQ(h.Pool().out, 1);
}

TEST(CorePermitTest, PermitReturnedOnChannelGoesToWaiter) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult outer = h.MustAcquire(a, One("1"));
  const AcquireResult inner = h.MustAcquire(a, One("1"));
  h.MustAcquire(a, One("2"));
  const CallId waiting = h.Acquire(b, One("1"));
  EXPECT_FALSE(h.GiveBack(a, outer.acquisition)->returned);
  EXPECT_TRUE(absl::IsNotFound(h.GiveBack(a, outer.acquisition).status())) << "twice";
  EXPECT_FALSE(h.Answered(waiting));
  EXPECT_TRUE(h.GiveBack(a, inner.acquisition)->returned);
  EXPECT_TRUE(h.Answered(waiting));
  EXPECT_EQ(h.Pool().out, 2);
}

TEST(CorePermitTest, NestingBeyondHeldUnitsIsRejectedNamingPermit) {
  CoreHarness h;
  Peer a = h.Open();
  const AcquireResult held = h.MustAcquire(a, Wide(2, "1"));
  const std::string before = h.Accounts();
  const CallId call = h.Acquire(a, Wide(3, "1"));
  EXPECT_TRUE(h.Refused(call, Reason::kNestedOverHeld));
  EXPECT_EQ(h.NamedValue(call, "permit"), std::to_string(held.permit.value()));
  EXPECT_EQ(h.NamedValue(call, "held"), "2");
  EXPECT_EQ(h.NamedValue(call, "asked"), "3");
  EXPECT_EQ(h.Accounts(), before);
}

TEST(CorePermitTest, RequestAboveCapIsRejectedAtOnce) {
  CoreHarness h;
  Peer a = h.Open();
  const std::string before = h.Accounts();
  const CallId call = h.Acquire(a, Wide(9, "1"));
  EXPECT_TRUE(h.Refused(call, Reason::kOverCap));
  EXPECT_EQ(h.NamedValue(call, "asked"), "9");
  EXPECT_EQ(h.NamedValue(call, "cap"), "8");
  EXPECT_TRUE(h.Refused(h.Acquire(a, Wide(UINT64_MAX, "1")), Reason::kOverCap));
  EXPECT_TRUE(h.Refused(h.Acquire(a, Wide(0, "1")), Reason::kInvalidField));
  EXPECT_TRUE(h.Refused(h.Acquire(a, {.pool = "none", .holder_key = "1"}), Reason::kNotFound));
  EXPECT_EQ(h.Accounts(), before);
  EXPECT_EQ(h.Pool("wide").refused_total, 3);
}

TEST(CorePermitTest, RefusalNamesHoldersOfOwnTenantOnly) {
  CoreHarness h;
  Peer a = h.Open(1000), b = h.Open(1000), stranger = h.Open(2000);
  AcquireRequest labelled = One("1");
  labelled.label = "nightly";
  h.MustAcquire(a, labelled);
  h.MustAcquire(stranger, labelled);
  const std::string before = h.Accounts();
  const CallId call = h.Acquire(b, One("1", /*wait=*/false));
  EXPECT_TRUE(h.Refused(call, Reason::kNoPermit));
  EXPECT_EQ(h.NamedValue(call, "out"), "2");
  EXPECT_EQ(h.NamedValue(call, "cap"), "2");
  const std::string holders = h.NamedValue(call, "holders");
  EXPECT_NE(holders.find("tester"), std::string::npos) << holders;
  EXPECT_NE(holders.find("nightly"), std::string::npos) << holders;
  EXPECT_NE(holders.find("another tenant"), std::string::npos) << holders;
  EXPECT_EQ(holders.find("nightly"), holders.rfind("nightly")) << holders;
  EXPECT_EQ(h.Accounts(), before);
}

TEST(CorePermitTest, WaiterTimesOutWithItsPlace) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult held = h.MustAcquire(a, One("1"));
  h.MustAcquire(a, One("2"));
  h.Acquire(b, One("1"));
  AcquireRequest timed = One("2");
  timed.deadline = h.now + absl::Seconds(1);
  const CallId call = h.Acquire(b, timed);
  EXPECT_EQ(h.core->next_deadline(), timed.deadline);
  h.Tick();
  EXPECT_FALSE(h.Answered(call));
  h.now += absl::Seconds(1);
  // Any step finds an expired deadline, not only a tick.
  h.Release(a, held.acquisition);
  EXPECT_TRUE(h.Refused(call, Reason::kWaitTimedOut));
  EXPECT_EQ(h.NamedValue(call, "position"), "2");
  EXPECT_EQ(h.core->next_deadline(), absl::InfiniteFuture());
}

TEST(CorePermitTest, ExpiredDeadlineStillTakesFreePermit) {
  CoreHarness h;
  Peer a = h.Open();
  AcquireRequest late = One("1");
  late.deadline = h.now;
  h.MustAcquire(a, late);
  h.MustAcquire(a, One("2"));
  late.holder_key = "3";
  EXPECT_TRUE(h.Refused(h.Acquire(a, late), Reason::kWaitTimedOut));
  EXPECT_EQ(h.Pool().waiters, 0);
}

TEST(CorePermitTest, UnfitWaiterIsPassedUntilLimit) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 3;
  CoreHarness h(config);
  Peer a = h.Open(), big = h.Open();
  const AcquireResult six = h.MustAcquire(a, Wide(6, "six"));
  const CallId waiting = h.Acquire(big, Wide(8, "big"));
  std::vector<AcquisitionId> passed;
  for (int i = 0; i < 3; ++i) {
    passed.push_back(h.MustAcquire(a, Wide(1, "small")).acquisition);
    if (i < 2) h.Release(a, passed.back());
  }
  // One unit is free, and reserved for the held waiter.
  const CallId held_back = h.Acquire(a, Wide(1, "late"));
  EXPECT_FALSE(h.Answered(held_back));
  h.Release(a, six.acquisition);
  EXPECT_FALSE(h.Answered(held_back));
  EXPECT_FALSE(h.Answered(waiting));
  h.Release(a, passed.back());
  EXPECT_TRUE(h.Answered(waiting));
  EXPECT_FALSE(h.Answered(held_back));
}

TEST(CorePermitTest, UnitsHeldForCancelledWaiterGoToNext) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 0;
  CoreHarness h(config);
  Peer a = h.Open(), big = h.Open();
  h.MustAcquire(a, Wide(7, "seven"));
  const CallId waiting = h.Acquire(big, Wide(8, "big"));
  const CallId behind = h.Acquire(a, Wide(1, "late"));
  EXPECT_FALSE(h.Answered(behind));
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, waiting, effects); });
  EXPECT_TRUE(h.Refused(waiting, Reason::kCancelled));
  EXPECT_TRUE(h.StatusOf(behind).ok());
}

TEST(CorePermitTest, ClientCapOnlyLowers) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  AcquireRequest modest = Wide(1, "modest");
  modest.client_cap = 1;
  const AcquireResult held = h.MustAcquire(a, Wide(1, "first"));
  const CallId waiting = h.Acquire(b, modest);
  EXPECT_FALSE(h.Answered(waiting));
  h.Release(a, held.acquisition);
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  AcquireRequest boastful = One("boastful");
  boastful.client_cap = 100;
  boastful.units = 3;
  EXPECT_TRUE(h.Refused(h.Acquire(b, boastful), Reason::kOverCap));
}

TEST(CorePermitTest, SessionProcessNestsInAdoptablePermit) {
  CoreHarness h;
  Peer transaction = h.Open();
  Peer child = h.JoinTo(transaction);
  AcquireRequest adoptable = One("berth run");
  adoptable.adoptable = true;
  const AcquireResult outer = h.MustAcquire(transaction, adoptable);
  const AcquireResult nested = h.MustAcquire(child, One("thread"));
  EXPECT_TRUE(nested.nested);
  EXPECT_EQ(nested.permit, outer.permit);
  AcquireRequest independent = One("apart");
  independent.independent = true;
  EXPECT_FALSE(h.MustAcquire(child, independent).nested);
  Peer stranger = h.Open();
  EXPECT_FALSE(h.Answered(h.Acquire(stranger, One("thread"))));
  EXPECT_EQ(h.Pool().out, 2);
}

TEST(CorePermitTest, WaiterNestsWhenItsHolderOrSessionGetsPermit) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult x = h.MustAcquire(a, One("x"));
  h.MustAcquire(a, One("y"));
  AcquireRequest adoptable = One("run");
  adoptable.adoptable = true;
  const CallId first = h.Acquire(b, adoptable);
  const CallId same_holder = h.Acquire(b, One("run"));
  const CallId adopted = h.Acquire(b, One("thread"));
  AcquireRequest greedy = One("greedy");
  greedy.units = 2;
  const CallId too_many = h.Acquire(b, greedy);
  AcquireRequest independent = One("apart");
  independent.independent = true;
  const CallId apart = h.Acquire(b, independent);
  h.Release(a, x.acquisition);
  EXPECT_FALSE(h.Get<AcquireResult>(first).nested);
  EXPECT_TRUE(h.Get<AcquireResult>(same_holder).nested);
  EXPECT_TRUE(h.Get<AcquireResult>(adopted).nested);
  EXPECT_TRUE(h.Refused(too_many, Reason::kNestedOverHeld));
  EXPECT_FALSE(h.Answered(apart));
  EXPECT_EQ(h.Pool().out, 2);
}

TEST(CorePermitTest, LoweredCapDrainsAndRejectsImpossibleWaiters) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult six = h.MustAcquire(a, Wide(6, "six"));
  const AcquireResult two = h.MustAcquire(a, Wide(2, "two"));
  const CallId four = h.Acquire(b, Wide(4, "four"));
  const CallId three = h.Acquire(b, Wide(3, "three"));
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.SetPool(h.now, "wide", {.cap = 3}, effects).ok());
  });
  EXPECT_TRUE(h.Refused(four, Reason::kOverCap));
  EXPECT_EQ(h.Pool("wide").out, 8);
  h.Release(a, six.acquisition);
  EXPECT_FALSE(h.Answered(three));
  h.Release(a, two.acquisition);
  EXPECT_TRUE(h.StatusOf(three).ok());
}

TEST(CorePermitTest, RaisedCapServesWaiters) {
  CoreHarness h;
  Peer a = h.Open();
  h.MustAcquire(a, One("1"));
  h.MustAcquire(a, One("2"));
  const CallId third = h.Acquire(a, One("3"));
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(
        IsRefusal(core.SetPool(h.now, "gpu-tests", {.cap = 0}, effects).status(), Reason::kInvalidField));
    EXPECT_TRUE(IsRefusal(core.SetPool(h.now, "none", {.cap = 3}, effects).status(), Reason::kNotFound));
    EXPECT_EQ(core.SetPool(h.now, "gpu-tests", {.cap = 3}, effects)->out, 3);
  });
  EXPECT_TRUE(h.StatusOf(third).ok());
}

TEST(CorePermitTest, ExclusivePermitWaitsForDrainedPool) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 0;
  CoreHarness h(config);
  Peer a = h.Open(), b = h.Open();
  const AcquireResult shared = h.MustAcquire(a, Wide(1, "shared"));
  AcquireRequest exclusive = Wide(1, "alone");
  exclusive.exclusive = true;
  const CallId alone = h.Acquire(b, exclusive);
  // No request passes the exclusive waiter; nested acquires cost nothing.
  const CallId behind = h.Acquire(a, Wide(1, "behind"));
  EXPECT_TRUE(h.Get<AcquireResult>(h.Acquire(a, Wide(1, "shared"))).nested);
  AcquireRequest greedy = Wide(1, "shared");
  greedy.exclusive = true;
  EXPECT_TRUE(h.Refused(h.Acquire(a, greedy), Reason::kNestedOverHeld));
  h.Release(a, shared.acquisition);
  EXPECT_FALSE(h.Answered(alone));
  h.Release(a, AcquisitionId(shared.acquisition.value() + 1));
  EXPECT_TRUE(h.StatusOf(alone).ok());
  EXPECT_TRUE(h.Pool("wide").exclusive);
  EXPECT_EQ(h.Pool("wide").out, 1);
  EXPECT_FALSE(h.Answered(behind));
  EXPECT_TRUE(h.Get<AcquireResult>(h.Acquire(b, Wide(1, "alone"))).nested);
  const AcquireResult held = h.Get<AcquireResult>(alone);
  h.Release(b, held.acquisition);
  h.Release(b, AcquisitionId(held.acquisition.value() + 1));
  EXPECT_TRUE(h.StatusOf(behind).ok());
  EXPECT_FALSE(h.Pool("wide").exclusive);
}

TEST(CorePermitTest, TenantAtItsCapDelaysNoOthers) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 0;
  config.pools[1].tenant_cap = 3;
  CoreHarness h(config);
  Peer a = h.Open(1000), again = h.Open(1000), b = h.Open(2000);
  const AcquireResult two = h.MustAcquire(a, Wide(2, "1"));
  const CallId skipped = h.Acquire(again, Wide(2, "1"));
  EXPECT_FALSE(h.Answered(skipped));
  h.MustAcquire(b, Wide(3, "1"));
  h.MustAcquire(again, Wide(1, "2"));
  const CallId never = h.Acquire(b, Wide(4, "2"));
  EXPECT_TRUE(h.Refused(never, Reason::kOverCap));
  EXPECT_EQ(h.NamedValue(never, "cap"), "3");
  h.Release(a, two.acquisition);
  EXPECT_TRUE(h.StatusOf(skipped).ok());
}

TEST(CorePermitTest, PermitsWithoutDeviceHaveTheirOwnCap) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 0;
  config.pools[1].no_device_cap = 2;
  CoreHarness h(config);
  Peer a = h.Open(1000), b = h.Open(2000);
  const auto on_device = [](uint64_t units, const std::string& key) {
    AcquireRequest request = Wide(units, key);
    request.device = {.pick = DevicePick::kAny};
    return request;
  };
  h.MustAcquire(a, on_device(3, "placed"));
  const AcquireResult first = h.MustAcquire(a, Wide(1, "1"));
  h.MustAcquire(a, Wide(1, "2"));
  const CallId waits = h.Acquire(b, Wide(1, "3"));
  EXPECT_FALSE(h.Answered(waits));
  EXPECT_EQ(h.core->ExplainWait(b.caller(), h.core->ListWaiters(b.caller(), "wide")[0].number)->cause,
            WaitCause::kNoDevice);
  h.MustAcquire(b, on_device(2, "placed"));
  EXPECT_EQ(h.Pool("wide").out, 7);
  EXPECT_EQ(h.Pool("wide").out_without_device, 2);
  const CallId never = h.Acquire(b, Wide(3, "4"));
  EXPECT_TRUE(h.Refused(never, Reason::kOverCap));
  EXPECT_EQ(h.NamedValue(never, "cap"), "2");
  AcquireRequest now = Wide(1, "5");
  now.wait = false;
  const CallId refused = h.Acquire(b, now);
  EXPECT_TRUE(h.Refused(refused, Reason::kNoPermit));
  EXPECT_EQ(h.NamedValue(refused, "without_device"), "2");
  // A gang's members without a device count together.
  GangRequest gang{.holder_key = "g"};
  gang.members.assign(3, GangMember{.pool = "wide"});
  EXPECT_TRUE(h.Refused(h.AcquireGang(b, gang), Reason::kOverCap));
  h.Release(a, first.acquisition);
  EXPECT_TRUE(h.StatusOf(waits).ok());
  // An operator may raise the cap, which serves the waiter.
  const CallId more = h.Acquire(b, Wide(1, "6"));
  EXPECT_FALSE(h.Answered(more));
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.SetPool(h.now, "wide", {.no_device_cap = 3}, effects).ok());
  });
  EXPECT_TRUE(h.StatusOf(more).ok());
}

TEST(CorePermitTest, OperatorChangesOnlyNamedPoolSettings) {
  CoreHarness h;
  h.Do([&](Core& core, Effects* effects) {
    const auto view =
        core.SetPool(h.now, "wide",
                     {.tenant_cap = 5, .ageing = absl::Minutes(1), .weights = {{1000, 4}, {7, 2}}}, effects);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->config.cap, 8);
    EXPECT_EQ(view->config.tenant_cap, 5);
    EXPECT_EQ(view->config.ageing, absl::Minutes(1));
    EXPECT_EQ(core.SetPool(h.now, "wide", {.weights = {{7, 1}}}, effects)->config.weights,
              (std::map<uint32_t, uint32_t>{{1000, 4}}));
    for (const PoolChange& bad :
         {PoolChange{.weights = {{1, 0}}}, PoolChange{.weights = {{1, kMostWeight + 1}}},
          PoolChange{.hold_limit = absl::Milliseconds(999)},
          PoolChange{.hold_warning = absl::ZeroDuration()}}) {
      EXPECT_TRUE(IsRefusal(core.SetPool(h.now, "wide", bad, effects).status(), Reason::kInvalidField));
    }
    EXPECT_EQ(core.GetPool("wide")->config.weights.size(), 1);
  });
}

TEST(CorePermitTest, RevokedPermitReturnsAndItsAcquisitionsEnd) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open();
  const AcquireResult held = h.MustAcquire(a, Wide(8, "1"));
  h.MustAcquire(a, Wide(8, "1"));
  const CallId waiting = h.Acquire(b, Wide(8, "1"));
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(IsRefusal(core.RevokePermit(h.now, PermitId(999), effects).status(), Reason::kNotFound));
    const auto was = core.RevokePermit(h.now, held.permit, effects);
    ASSERT_TRUE(was.ok()) << was.status();
    EXPECT_EQ(was->depth, 2);
  });
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  EXPECT_TRUE(h.Refused(h.Release(a, held.acquisition), Reason::kNotFound));
  EXPECT_EQ(h.Pool("wide").revoked_total, 1);
  EXPECT_EQ(h.Pool("wide").out, 8);
}

TEST(CorePermitTest, RevokedLastPermitEndsEndedSession) {
  CoreHarness h;
  Peer a = h.Open();
  const AcquireResult held = h.MustAcquire(a, One("1"));
  h.HangUp(a);
  h.HangUpChannel(a);
  EXPECT_EQ(h.core->ListSessions(h.Admin()).size(), 1);
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.RevokePermit(h.now, held.permit, effects).ok());
  });
  EXPECT_TRUE(h.core->ListSessions(h.Admin()).empty());
}

TEST(CorePermitTest, OverduePermitIsShownThenRevoked) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[1].hold_warning = absl::Seconds(10);
  config.pools[1].hold_limit = absl::Seconds(30);
  CoreHarness h(config);
  Peer a = h.Open(), b = h.Open();
  const absl::Time start = h.now;
  h.MustAcquire(a, Wide(5, "early"));
  h.now += absl::Seconds(5);
  h.MustAcquire(a, Wide(3, "late"));
  const CallId waiting = h.Acquire(b, Wide(4, "1"));
  EXPECT_EQ(h.core->next_deadline(), start + absl::Seconds(10));
  h.now = start + absl::Seconds(10);
  h.Tick();
  EXPECT_EQ(h.Pool("wide").overdue, 1);
  EXPECT_TRUE(h.core->ListPermits(h.Admin(), "wide")[0].overdue);
  EXPECT_FALSE(h.core->ListPermits(h.Admin(), "wide")[1].overdue);
  EXPECT_EQ(h.core->next_deadline(), start + absl::Seconds(15));
  h.now = start + absl::Seconds(30);
  h.Tick();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  EXPECT_EQ(h.Pool("wide").revoked_total, 1);
  EXPECT_EQ(h.Pool("wide").overdue, 1);
  // A new limit applies to outstanding permits, too.
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.SetPool(h.now, "wide", {.hold_limit = absl::Seconds(20)}, effects).ok());
  });
  EXPECT_EQ(h.Pool("wide").out, 4);
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(
        core.SetPool(h.now, "wide",
                     {.hold_warning = absl::InfiniteDuration(), .hold_limit = absl::InfiniteDuration()},
                     effects)
            .ok());
  });
  EXPECT_EQ(h.core->next_deadline(), absl::InfiniteFuture());
}

TEST(CorePermitTest, HolderIsNotifiedOfOverdueAndRevokedPermit) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[1].hold_warning = absl::Seconds(10);
  config.pools[1].hold_limit = absl::Seconds(20);
  CoreHarness h(config);
  Peer a = h.Open(), b = h.JoinTo(a), other = h.Open();
  const AcquireResult held = h.MustAcquire(a, Wide(1, "1"));
  const AcquireResult fast = h.MustAcquire(a, One("2"));
  const auto notified = [&](attach::DeliveryKind what, PermitId permit) {
    std::set<ChannelId> channels;
    for (const Deliver& deliver : h.deliveries) {
      if (deliver.delivery.what == what && deliver.delivery.permit == permit.value()) {
        EXPECT_TRUE(channels.insert(deliver.channel).second) << "twice";
      }
    }
    return channels;
  };
  const std::set<ChannelId> both = {a.channel, b.channel};
  h.now += absl::Seconds(10);
  h.Tick();
  h.Tick();
  EXPECT_EQ(notified(attach::DeliveryKind::kOverdue, held.permit), both);
  // A change of the pool does not repeat the warning.
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.SetPool(h.now, "wide", {.cap = 7}, effects).ok()); });
  h.Tick();
  EXPECT_EQ(notified(attach::DeliveryKind::kOverdue, held.permit), both);
  EXPECT_TRUE(notified(attach::DeliveryKind::kRevoked, held.permit).empty());
  h.now += absl::Seconds(10);
  h.Tick();
  EXPECT_EQ(notified(attach::DeliveryKind::kRevoked, held.permit), both);
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.RevokePermit(h.now, fast.permit, effects).ok()); });
  EXPECT_EQ(notified(attach::DeliveryKind::kRevoked, fast.permit), both);
  EXPECT_EQ(h.deliveries.size(), 6u);
}

TEST(CorePermitTest, ExplainWaitNamesCausesBesideUnits) {
  CoreHarness h;
  Peer a = h.Open(1000), b = h.Open(2000);
  const auto why = [&](const Peer& peer) {
    const std::vector<WaiterView> waiters = h.core->ListWaiters(peer.caller(), "wide");
    return h.core->ExplainWait(peer.caller(), waiters.at(0).number)->cause;
  };
  const AcquireResult one = h.MustAcquire(a, Wide(1, "one"));
  AcquireRequest request = Wide(1, "alone");
  request.exclusive = true;
  const CallId alone = h.Acquire(b, request);
  EXPECT_EQ(why(b), WaitCause::kOthersOut);
  h.Release(a, one.acquisition);
  const AcquireResult exclusive = h.Get<AcquireResult>(alone);
  const CallId shut_out = h.Acquire(a, Wide(1, "shut out"));
  EXPECT_EQ(why(a), WaitCause::kExclusiveOut);
  h.Release(b, exclusive.acquisition);
  EXPECT_TRUE(h.Answered(shut_out));
  request = Wide(1, "capped");
  request.client_cap = 1;
  h.Acquire(b, request);
  EXPECT_EQ(why(b), WaitCause::kClientCap);
}

TEST(CorePermitTest, ExplainWaitNamesCauseOfWait) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.passes_before_hold = 1;
  config.pools[1].tenant_cap = 6;
  CoreHarness h(config);
  Peer a = h.Open(1000), b = h.Open(2000), c = h.Open(3000);
  const auto why = [&](const Peer& peer, const std::string& key) {
    for (const WaiterView& waiter : h.core->ListWaiters(peer.caller(), "wide")) {
      if (waiter.holder_key == key) return *h.core->ExplainWait(peer.caller(), waiter.number);
    }
    ADD_FAILURE() << key << " does not wait";
    return WaitView{};
  };
  const AcquireResult first = h.MustAcquire(a, Wide(5, "a"));
  h.Acquire(a, Wide(2, "tenant"));
  EXPECT_EQ(why(a, "tenant").cause, WaitCause::kTenantCap);
  EXPECT_EQ(why(a, "tenant").tenant_out, 5);
  EXPECT_EQ(why(a, "tenant").estimate, absl::InfiniteDuration());
  h.now += absl::Seconds(8);
  h.Release(a, first.acquisition);
  h.MustAcquire(a, Wide(1, "b"));
  h.Acquire(b, Wide(6, "units"));
  WaitView view = why(b, "units");
  EXPECT_EQ(view.cause, WaitCause::kUnits);
  EXPECT_EQ(view.waiter.position, 1);
  EXPECT_EQ(view.estimate, absl::Seconds(6)) << "6 of 8 units, held for 8 s so far";
  EXPECT_EQ(view.estimate_until, h.now + absl::Seconds(8)) << "the newest permit is held for as long by then";
  EXPECT_EQ(view.pool.out, 3);
  // Other tenants' permits are shown without their owners.
  ASSERT_EQ(view.holders.size(), 2);
  EXPECT_EQ(view.holders[0].units, 2);
  EXPECT_EQ(view.holders[0].holder_key, "");
  EXPECT_EQ(view.holders[0].session, SessionId());
  EXPECT_EQ(h.core->ExplainWait(h.Admin(), view.waiter.number)->holders[0].holder_key, "tenant");
  h.MustAcquire(c, Wide(1, "passes"));
  EXPECT_EQ(why(b, "units").passes, 1);
  h.Acquire(c, Wide(1, "kept"));
  view = why(c, "kept");
  EXPECT_EQ(view.cause, WaitCause::kReservedForAnother);
  EXPECT_EQ(view.waiter.position, 2);
  EXPECT_EQ(view.units_ahead, 6);
  EXPECT_TRUE(IsRefusal(h.core->ExplainWait(a.caller(), view.waiter.number).status(), Reason::kNotFound));
  EXPECT_TRUE(IsRefusal(h.core->ExplainWait(a.caller(), 12345).status(), Reason::kNotFound));
}

TEST(CorePermitTest, FullQueueRejectsRequest) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.waiters_per_pool = 1;
  CoreHarness h(config);
  Peer a = h.Open();
  h.MustAcquire(a, One("1"));
  h.MustAcquire(a, One("2"));
  h.Acquire(a, One("3"));
  const std::string before = h.Accounts();
  const CallId call = h.Acquire(a, One("4"));
  EXPECT_TRUE(h.Refused(call, Reason::kLimit));
  EXPECT_EQ(h.NamedValue(call, "what"), "waiters_per_pool");
  EXPECT_EQ(h.NamedValue(call, "limit"), "1");
  EXPECT_EQ(h.Accounts(), before);
}

}  // namespace
}  // namespace berth::core
