// A broker that replaces a dead one: the sessions, permits and plans that it restores and continues.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/testing/core_harness.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

AcquireRequest One(const std::string& key = "a") { return {.pool = "gpu-tests", .holder_key = key}; }

class CoreRestartTest : public testing::Test {
 protected:
  // Sends the same request again, as a client does that has no answer.
  CallId AcquireAgain(Peer& peer, const AcquireRequest& request) {
    --peer.sequence;
    return h_.Acquire(peer, request);
  }
  std::vector<WaiterView> Waiters() const { return h_.core->ListWaiters(CoreHarness::Admin(), ""); }

  std::optional<absl::Time> WaitsSince(const Peer& peer) const {
    for (const RestoredState::Process& process : h_.core->WhatStands().processes) {
      if (process.channel == peer.channel) return process.waits_since;
    }
    ADD_FAILURE() << "channel " << peer.channel.value() << " is gone";
    return std::nullopt;
  }

  CoreHarness h_;
};

TEST_F(CoreRestartTest, PermitsSurviveRestart) {
  Peer peer = h_.Open(), other = h_.JoinTo(peer);
  const AcquireResult outer = h_.MustAcquire(peer, {.pool = "gpu-tests", .holder_key = "a", .adoptable = true});
  const AcquireResult inner = h_.MustAcquire(other, One("b"));
  ASSERT_TRUE(inner.nested);
  h_.MustAcquire(peer, {.pool = "wide", .units = 3, .holder_key = "c", .label = "job"});
  h_.now += absl::Seconds(7);
  const std::string before = h_.Accounts();
  h_.Restart();
  EXPECT_EQ(h_.Accounts(), before);
  EXPECT_EQ(h_.Pool("wide").peak, 3u);
  EXPECT_EQ(h_.Pool("wide").granted_total, 1u);
  EXPECT_FALSE(h_.Get<ReleaseResult>(h_.Release(peer, outer.acquisition)).returned);
  EXPECT_TRUE(h_.Get<ReleaseResult>(h_.Release(other, inner.acquisition)).returned);
  EXPECT_EQ(h_.Pool().out, 0u);
}

TEST_F(CoreRestartTest, IdsAreNotReusedAfterRestart) {
  Peer peer = h_.Open();
  const AcquireResult first = h_.MustAcquire(peer, One());
  h_.Release(peer, first.acquisition);
  h_.Restart();
  const AcquireResult second = h_.MustAcquire(peer, One());
  EXPECT_GT(second.permit, first.permit);
  EXPECT_GT(second.acquisition, first.acquisition);
}

TEST_F(CoreRestartTest, LostAnswerAndForgottenRequestSurviveRestart) {
  Peer peer = h_.Open();
  const AcquireResult granted = h_.MustAcquire(peer, One());
  Peer lost = h_.Open();
  const CallId call = h_.Acquire(lost, {.pool = "none"});
  ASSERT_TRUE(h_.Refused(call, Reason::kNotFound));
  Peer forgetful = h_.Open();
  h_.Forget(forgetful, 1);
  h_.Restart();
  EXPECT_EQ(h_.Get<AcquireResult>(AcquireAgain(peer, One())).acquisition, granted.acquisition);
  EXPECT_EQ(h_.StatusOf(AcquireAgain(lost, {.pool = "none"})), h_.StatusOf(call));
  EXPECT_TRUE(h_.Refused(h_.Acquire(forgetful, One("c")), Reason::kRequestForgotten));
  EXPECT_TRUE(h_.Refused(AcquireAgain(peer, One("another")), Reason::kRequestReused));
  EXPECT_EQ(h_.Pool().out, 1u);
}

TEST_F(CoreRestartTest, WaiterKeepsPlaceAndIsGrantedOnlyAfterRetry) {
  Peer holder = h_.Open(1), first = h_.Open(1), second = h_.Open(1);
  const AcquireRequest both = {.pool = "gpu-tests", .units = 2, .holder_key = "h"};
  const AcquireResult held = h_.MustAcquire(holder, both);
  const CallId one = h_.Acquire(first, both), two = h_.Acquire(second, both);
  const std::vector<WaiterView> before = Waiters();
  h_.now += absl::Seconds(1);
  h_.Restart();
  const std::vector<WaiterView> after = Waiters();
  ASSERT_EQ(after.size(), 2u);
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].number, before[i].number);
    EXPECT_EQ(after[i].since, before[i].since);
    EXPECT_EQ(after[i].session, before[i].session);
  }
  h_.Release(holder, held.acquisition);
  EXPECT_EQ(h_.Pool().out, 0u) << "units are held for nobody";
  const CallId again = AcquireAgain(second, both);
  EXPECT_TRUE(h_.Answered(again)) << "the others go on without who is away";
  const CallId late = AcquireAgain(first, both);
  EXPECT_FALSE(h_.Answered(late));
  EXPECT_EQ(Waiters().at(0).number, before[0].number);
  h_.Release(second, h_.Get<AcquireResult>(again).acquisition);
  EXPECT_TRUE(h_.Answered(late));
  EXPECT_FALSE(h_.Answered(one) || h_.Answered(two));
}

TEST_F(CoreRestartTest, ReturningWaitersAreServedInOldOrder) {
  Peer holder = h_.Open(1), first = h_.Open(1), second = h_.Open(1);
  const AcquireRequest both = {.pool = "gpu-tests", .units = 2, .holder_key = "h"};
  const AcquireResult held = h_.MustAcquire(holder, both);
  h_.Acquire(first, both);
  h_.Acquire(second, both);
  h_.Restart();
  const CallId two = AcquireAgain(second, both), one = AcquireAgain(first, both);
  h_.Release(holder, held.acquisition);
  EXPECT_TRUE(h_.Answered(one));
  EXPECT_FALSE(h_.Answered(two));
}

TEST_F(CoreRestartTest, RestoredStateNamesWaitStartUntilReturn) {
  Peer holder = h_.Open(), first = h_.Open(), second = h_.Open();
  h_.MustAcquire(holder, {.pool = "gpu-tests", .units = 2});
  const absl::Time begin = h_.now;
  h_.Acquire(first, One());
  h_.now += absl::Seconds(1);
  h_.Acquire(second, One());
  h_.Acquire(first, One("b"));
  h_.Restart();
  EXPECT_EQ(WaitsSince(holder), std::nullopt);
  EXPECT_EQ(WaitsSince(first), begin);
  EXPECT_EQ(WaitsSince(second), begin + absl::Seconds(1));
  AcquireAgain(second, One());
  EXPECT_EQ(WaitsSince(second), std::nullopt);
  EXPECT_EQ(WaitsSince(first), begin);
}

TEST_F(CoreRestartTest, RestoredStateNamesTenants) {
  Peer peer = h_.Open(1001);
  h_.MustAcquire(peer, One());
  h_.Restart();
  const RestoredState restored_state = h_.core->WhatStands();
  ASSERT_EQ(restored_state.lifelines.size(), 1u);
  EXPECT_EQ(restored_state.lifelines[0].tenant, peer.tenant);
  ASSERT_EQ(restored_state.processes.size(), 1u);
  EXPECT_EQ(restored_state.processes[0].tenant, peer.tenant);
}

TEST_F(CoreRestartTest, DetachedWaiterIsDroppedAfterDeadline) {
  Peer holder = h_.Open(), peer = h_.Open();
  const AcquireResult held = h_.MustAcquire(holder, {.pool = "gpu-tests", .units = 2});
  h_.Acquire(peer, One());
  const uint64_t number = Waiters().at(0).number;
  h_.Restart();
  h_.now += absl::Seconds(4);
  h_.Tick();
  EXPECT_EQ(Waiters().size(), 1u);
  h_.now = h_.core->next_deadline();
  h_.Tick();
  EXPECT_TRUE(Waiters().empty());
  const CallId again = AcquireAgain(peer, One());
  EXPECT_GT(Waiters().at(0).number, number);
  h_.Release(holder, held.acquisition);
  EXPECT_TRUE(h_.Answered(again));
}

TEST_F(CoreRestartTest, DeadlinePassedDuringRestartIsAnswer) {
  Peer holder = h_.Open(), peer = h_.Open();
  h_.MustAcquire(holder, {.pool = "gpu-tests", .units = 2});
  AcquireRequest brief = One();
  brief.deadline = h_.now + absl::Seconds(1);
  h_.Acquire(peer, brief);
  h_.now += absl::Seconds(2);
  h_.Restart();
  EXPECT_TRUE(Waiters().empty());
  EXPECT_TRUE(h_.Refused(AcquireAgain(peer, brief), Reason::kWaitTimedOut));
}

TEST_F(CoreRestartTest, LateWaiterIsRejectedOnEveryRetry) {
  Peer holder = h_.Open(), peer = h_.Open();
  h_.MustAcquire(holder, {.pool = "gpu-tests", .units = 2});
  h_.Acquire(peer, One());
  h_.Restart();
  AcquireRequest late = One();
  late.deadline = h_.now;
  const CallId notified = AcquireAgain(peer, late);
  EXPECT_TRUE(h_.Refused(notified, Reason::kWaitTimedOut));
  EXPECT_EQ(h_.StatusOf(AcquireAgain(peer, One())), h_.StatusOf(notified)) << "its answer may have been lost";
  EXPECT_TRUE(Waiters().empty());
}

TEST_F(CoreRestartTest, DetachedWaiterNestsOnceItReturns) {
  Peer holder = h_.Open(), peer = h_.Open(), sibling = h_.JoinTo(peer);
  const AcquireResult held = h_.MustAcquire(holder, {.pool = "gpu-tests", .units = 2});
  h_.Acquire(peer, One("same"));
  h_.Restart();
  h_.Release(holder, held.acquisition);
  const AcquireResult granted = h_.MustAcquire(sibling, One("same"));
  EXPECT_EQ(h_.core->ListPermits(CoreHarness::Admin(), "").at(0).depth, 1u);
  const AcquireResult nested = h_.Get<AcquireResult>(AcquireAgain(peer, One("same")));
  EXPECT_TRUE(nested.nested);
  EXPECT_EQ(nested.permit, granted.permit);
}

TEST_F(CoreRestartTest, GangRetainsItsPlacesInAllPools) {
  Peer holder = h_.Open(), peer = h_.Open();
  const AcquireResult held = h_.MustAcquire(holder, {.pool = "gpu-tests", .units = 2});
  const GangRequest gang = {.members = {{.pool = "gpu-tests"}, {.pool = "wide", .units = 2}}, .holder_key = "g"};
  h_.AcquireGang(peer, gang);
  const std::vector<WaiterView> before = Waiters();
  h_.Restart();
  ASSERT_EQ(Waiters().size(), 2u);
  EXPECT_EQ(Waiters()[0].number, before[0].number);
  h_.Release(holder, held.acquisition);
  EXPECT_EQ(h_.Pool("wide").out, 0u);
  --peer.sequence;
  const CallId again = h_.AcquireGang(peer, gang);
  EXPECT_EQ(h_.Get<GangResult>(again).permits.size(), 2u);
  EXPECT_EQ(h_.Pool().out + h_.Pool("wide").out, 3u);
}

TEST_F(CoreRestartTest, WaitingPlanIsMadeAsDrafted) {
  Peer holder = h_.Open(), peer = h_.Open();
  const AcquireResult held = h_.MustAcquire(holder, {.pool = "gpu-tests", .units = 2});
  const PlanRequest plan = {.units = 10, .devices = {"DEVICE-0", "DEVICE-1"}, .pool = "gpu-tests"};
  h_.MakePlan(peer, plan);
  EXPECT_TRUE(h_.core->ListPlans(CoreHarness::Admin()).empty());
  h_.Restart();
  h_.Release(holder, held.acquisition);
  --peer.sequence;
  const PlanResult made = h_.Get<PlanResult>(h_.MakePlan(peer, plan));
  EXPECT_EQ(made.layout->devices.size(), 2u);
  const std::string before = h_.Accounts();
  h_.Restart();
  EXPECT_EQ(h_.Accounts(), before);
  --peer.sequence;
  EXPECT_EQ(h_.Get<PlanResult>(h_.MakePlan(peer, plan)).layout->id, made.layout->id);
}

TEST_F(CoreRestartTest, PlanOnLostMemoryIsStaleAfterRestart) {
  Peer peer = h_.Open();
  h_.MakePlan(peer, {.units = 10, .devices = {"DEVICE-0"}});
  Config config = CoreHarness::DefaultConfig();
  config.devices[0].generation = 2;
  h_.deliveries.clear();
  h_.Restart(config);
  EXPECT_EQ(h_.core->ListPlans(CoreHarness::Admin()).at(0).stale, PlanStale::kMemoryLost);
  ASSERT_EQ(h_.deliveries.size(), 1u);
  EXPECT_EQ(h_.deliveries[0].delivery.what, attach::DeliveryKind::kPlanStale);
}

TEST_F(CoreRestartTest, UnacknowledgedDeliveryIsSentAgain) {
  Peer peer = h_.Open();
  const AcquireResult first = h_.MustAcquire(peer, One("a"));
  const AcquireResult second = h_.MustAcquire(peer, One("b"));
  for (const AcquireResult& granted : {first, second}) {
    h_.Do([&](Core& core, Effects* effects) {
      EXPECT_TRUE(core.RevokePermit(h_.now, granted.permit, effects).ok());
    });
  }
  ASSERT_EQ(h_.deliveries.size(), 2u);
  h_.Acknowledge(peer, 1);
  h_.deliveries.clear();
  h_.Restart();
  ASSERT_EQ(h_.deliveries.size(), 1u);
  EXPECT_EQ(h_.deliveries[0].delivery.number, 2u);
  EXPECT_EQ(h_.deliveries[0].delivery.permit, second.permit.value());
  h_.Acknowledge(peer, 2);
  h_.deliveries.clear();
  h_.Restart();
  EXPECT_TRUE(h_.deliveries.empty());
}

TEST_F(CoreRestartTest, ManualSettingsPersistUnlessConfigurationChanges) {
  h_.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", {.cap = 5, .tenant_cap = 3, .weights = {{7, 2}}}, effects).ok());
  });
  Config config = CoreHarness::DefaultConfig();
  h_.Restart(config);
  EXPECT_EQ(h_.Pool().config.cap, 5u);
  EXPECT_EQ(h_.Pool().config.tenant_cap, 3u);
  EXPECT_EQ(h_.Pool().config.weights.at(7), 2u);
  config.pools[0].cap = 4;
  config.pools[0].hold_warning = absl::Minutes(1);
  h_.Restart(config);
  EXPECT_EQ(h_.Pool().config.cap, 4u) << "what the configuration changes goes before what was set before that";
  EXPECT_EQ(h_.Pool().config.hold_warning, absl::Minutes(1));
  EXPECT_EQ(h_.Pool().config.tenant_cap, 3u);
}

TEST_F(CoreRestartTest, OtherDeviceCountKeepsManualCap) {
  h_.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", {.cap = 4}, effects).ok());
  });
  Config config = CoreHarness::DefaultConfig();
  config.pools[0].cap = 8;
  config.pools[0].no_device_cap = 2;
  config.pools[0].cap_by_devices = true;
  h_.Restart(config);
  EXPECT_EQ(h_.Pool().config.cap, 4u);
  EXPECT_EQ(h_.Pool().config.no_device_cap, 2u) << "no operator has set it";
  h_.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", {.defaults = true}, effects).ok());
  });
  EXPECT_EQ(h_.Pool().config.cap, 8u);
}

TEST_F(CoreRestartTest, ConfiguredCapChangeIsNoManualChange) {
  Config config = CoreHarness::DefaultConfig();
  h_.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", {.cap = 3, .configured = true}, effects).ok());
    EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", {.cap = 6}, effects).ok());
  });
  config.pools[0].cap = 3;
  h_.Restart(config);
  EXPECT_EQ(h_.Pool().config.cap, 6u);
}

TEST_F(CoreRestartTest, UnconfiguredPoolStaysWhileItHasPermits) {
  Peer peer = h_.Open();
  const AcquireResult held = h_.MustAcquire(peer, {.pool = "wide"});
  Config config = CoreHarness::DefaultConfig();
  config.pools.pop_back();
  h_.Restart(config);
  EXPECT_EQ(h_.Pool("wide").out, 1u);
  EXPECT_EQ(h_.Pool("wide").config.cap, 8u);
  h_.Release(peer, held.acquisition);
  h_.Restart(config);
  EXPECT_FALSE(h_.core->GetPool("wide").ok());
  EXPECT_EQ(h_.core->ListPools().size(), 1u);
}

TEST_F(CoreRestartTest, LoweredConfiguredCapDrainsAndRejectsWaiters) {
  Peer peer = h_.Open(), waiter = h_.Open();
  const AcquireRequest both = {.pool = "gpu-tests", .units = 2, .holder_key = "h"};
  h_.MustAcquire(peer, both);
  h_.Acquire(waiter, both);
  Config config = CoreHarness::DefaultConfig();
  config.pools[0].cap = 1;
  h_.Restart(config);
  EXPECT_EQ(h_.Pool().out, 2u);
  EXPECT_TRUE(h_.Refused(AcquireAgain(waiter, both), Reason::kOverCap));
}

TEST_F(CoreRestartTest, EndingSessionStaysEndingUntilItsLastProcess) {
  Peer peer = h_.Open();
  h_.MustAcquire(peer, One());
  h_.HangUp(peer);
  h_.Restart();
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_TRUE(h_.Refused(h_.Acquire(peer, One("b")), Reason::kSessionEnded));
  h_.Gone(peer);
  EXPECT_EQ(h_.Pool().out, 0u);
  EXPECT_TRUE(h_.core->ListSessions(CoreHarness::Admin()).empty());
}

TEST_F(CoreRestartTest, TenantOrderContinuesAfterRestart) {
  // Tenant 1 has had much, tenant 2 nothing: tenant 2 is next, also after a restart.
  Peer greedy = h_.Open(1), holder = h_.Open(3), modest = h_.Open(2);
  for (int i = 0; i < 5; ++i) h_.Release(greedy, h_.MustAcquire(greedy, One()).acquisition);
  const AcquireRequest both = {.pool = "gpu-tests", .units = 2, .holder_key = "h"};
  const AcquireResult held = h_.MustAcquire(holder, both);
  h_.Acquire(greedy, both);
  h_.Acquire(modest, both);
  h_.Restart();
  const CallId first = AcquireAgain(greedy, both), second = AcquireAgain(modest, both);
  h_.Release(holder, held.acquisition);
  EXPECT_FALSE(h_.Answered(first));
  EXPECT_TRUE(h_.Answered(second));
}

TEST_F(CoreRestartTest, HoldLimitsCountFromTheGrantAndWarnOnce) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[0].hold_warning = absl::Seconds(10);
  config.pools[0].hold_limit = absl::Seconds(30);
  CoreHarness h(config);
  Peer peer = h.Open();
  h.MustAcquire(peer, One());
  h.now += absl::Seconds(11);
  h.Tick();
  EXPECT_EQ(h.Pool().overdue, 1u);
  h.Acknowledge(peer, 1);
  h.deliveries.clear();
  h.Restart(config);
  EXPECT_EQ(h.Pool().overdue, 1u);
  EXPECT_TRUE(h.deliveries.empty()) << "it was notified before";
  h.now += absl::Seconds(19);
  h.Tick();
  EXPECT_EQ(h.Pool().out, 0u);
}

// A permit that its process caches between uses: the slot in the fence page decides.
class CachedPermitRestartTest : public CoreRestartTest {
 protected:
  CachedPermitRestartTest() : peer_(h_.Open()) {
    h_.KeepPermits(peer_);
    AcquireRequest keep = One();
    keep.keep = true;
    cached_ = h_.MustAcquire(peer_, keep);
    EXPECT_TRUE(cached_.cached);
  }
  PermitSlot& permit_slot() { return h_.permit_slots[peer_.channel]; }

  Peer peer_;
  AcquireResult cached_;
};

TEST_F(CachedPermitRestartTest, CachedPermitSurvivesRestartAndIsTakenBack) {
  h_.Restart();
  permit_slot().Put(cached_.permit.value());
  EXPECT_TRUE(permit_slot().Take(cached_.permit.value()));
  permit_slot().Put(cached_.permit.value());
  EXPECT_EQ(h_.Pool().cached, 1u);
  Peer other = h_.Open();
  h_.MustAcquire(other, {.pool = "gpu-tests", .units = 2});
  EXPECT_FALSE(permit_slot().Take(cached_.permit.value()));
}

TEST_F(CachedPermitRestartTest, UnrecordedTakeBackIsReturnedAtRestart) {
  permit_slot().Put(cached_.permit.value());
  const LedgerRecords before = h_.records;
  h_.MustAcquire(*std::make_unique<Peer>(h_.Open()), {.pool = "gpu-tests", .units = 2});
  h_.records = before;
  h_.leases.clear();
  h_.Restart();
  EXPECT_EQ(h_.Pool().out, 0u);
  // The history sees it missing among the outstanding permits and takes it as ended, so the core emits no record.
  h_.Tick();
  EXPECT_TRUE(h_.leases.empty());
}

TEST_F(CachedPermitRestartTest, UnrecordedReleaseStaysOutUntilReleasedAgain) {
  const LedgerRecords before = h_.records;
  h_.Release(peer_, cached_.acquisition);
  h_.records = before;
  h_.Restart();
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_EQ(h_.Pool().cached, 0u);
  --peer_.sequence;
  EXPECT_TRUE(h_.Get<ReleaseResult>(h_.Release(peer_, cached_.acquisition)).returned);
}

TEST_F(CachedPermitRestartTest, CachedPermitWithoutPageIsOrdinary) {
  h_.pages.clear();
  h_.Restart();
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_TRUE(h_.Get<ReleaseResult>(h_.Release(peer_, cached_.acquisition)).returned);
}

TEST_F(CoreRestartTest, DamagedRecordsAreUnreadable) {
  Peer peer = h_.Open();
  h_.MustAcquire(peer, One());
  const LedgerRecords good = h_.records;
  for (const auto& [key, content] : good) {
    // Truncates or extends each record. Without its session's record, other records of the session have no owner.
    for (const std::string& bad : {content.substr(0, content.size() / 2), content + "x"}) {
      if (bad == content) continue;
      LedgerRecords records = good;
      records[key] = bad;
      CoreHarness fresh;
      EXPECT_TRUE(absl::IsDataLoss(Restore(records, fresh.core.get()))) << key.kind;
    }
  }
  LedgerRecords records = good;
  records.erase(KeyOf(RecordKind::kSession, peer.session.value()));
  EXPECT_FALSE(Restore(records, CoreHarness().core.get()).ok());
  records = good;
  records[KeyOf(static_cast<RecordKind>(9'999))] = "";
  EXPECT_FALSE(Restore(records, CoreHarness().core.get()).ok());
}

TEST(RecordSchemaTest, ChangedRecordsNeedNewSchema) {
  CoreHarness h;
  Peer peer = h.Open(), waiting = h.Open(2), planning = h.Open(3);
  h.KeepPermits(peer, /*maps=*/false);
  h.MustAcquire(peer, {.pool = "gpu-tests", .units = 2, .holder_key = "a", .device = {.pick = DevicePick::kAny}});
  h.MustAcquire(peer, {.pool = "gpu-tests", .holder_key = "a"});
  h.Acquire(waiting, One());
  h.AcquireGang(waiting, {.members = {{.pool = "gpu-tests"}, {.pool = "wide"}}, .holder_key = "g"});
  h.MakePlan(planning, {.units = 3, .pool = "wide"});
  h.MakePlan(planning, {.units = 3, .pool = "gpu-tests"});
  h.Forget(peer, 77);
  Fingerprint all;
  for (const auto& [key, content] : h.records) {
    if (key.kind >= static_cast<uint32_t>(RecordKind::kMemoryCounters)) continue;
    all.Add(uint64_t{key.kind}).Add(key.id).Add(key.part).Add(content);
  }
  EXPECT_EQ(kRecordSchema, 3u);
  EXPECT_EQ(all.value(), 14228267720815868759u)
      << "the records' fields are others than those of this schema: move kRecordSchema, and this";
}

TEST(RestartTest, UnlistableRecordsAreUnreadable) {
  CoreHarness h;
  Peer a = h.Open();
  h.Get<PlanResult>(h.MakePlan(a, {.units = 10}));
  h.OpenStream(a);
  const LedgerRecords records = h.core->AllRecords();
  const auto readable = [](const LedgerRecords& records) {
    Core next(
        CoreHarness::DefaultConfig(), [] { return 1; }, [](StreamKey) { return FenceValues(); });
    return Restore(records, &next).ok();
  };
  ASSERT_TRUE(readable(records));
  int tried = 0;
  for (const auto& [key, content] : records) {
    const auto kind = static_cast<RecordKind>(key.kind);
    LedgerRecords others = records;
    if (!HasPart(kind) || kind == RecordKind::kStream) {
      others.erase(key);
      others.emplace(KeyOf(kind, key.id, key.part + (uint64_t{1} << 32)), content);
      EXPECT_FALSE(readable(others)) << "kind " << key.kind << " with a part that it cannot have";
      ++tried;
    }
    if (kind == RecordKind::kSession || kind == RecordKind::kPlan) {
      // The number is the first field.
      for (const char number : {0, 100}) {
        others = records;
        others.at(key)[0] = number;
        EXPECT_FALSE(readable(others)) << "kind " << key.kind << " of number " << int{number};
      }
    }
    if (kind != RecordKind::kDevice) continue;
    others = records;
    others.erase(key);
    others.emplace(KeyOf(kind, key.id + (uint64_t{1} << 32)), content);
    EXPECT_FALSE(readable(others)) << "a device of no ordinal";
  }
  EXPECT_GT(tried, 5);
}

TEST(RestartTest, UnidentifiedDeviceMayLeaveItsOrdinal) {
  Config config = CoreHarness::DefaultConfig();
  config.devices.resize(1);
  config.devices[0].uuid = "unknown-0";
  CoreHarness h(config);
  Peer a = h.Open();
  h.MustAcquire(a, One());
  ASSERT_TRUE(h.SetBudget({.device = 0, .limit = MiB(4)}).ok());
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.session, .limit = MiB(4)}).ok());
  config.devices.clear();
  for (const uint32_t ordinal : {2u, 5u}) {
    config.devices.push_back({.ordinal = ordinal,
                              .uuid = absl::StrCat("GPU-", ordinal),
                              .kind = MemoryKind::kCudaVmm,
                              .total = MiB(64),
                              .budget = MiB(16)});
  }
  const auto same = [&] {
    const Core next(
        config, [] { return 1; }, [](StreamKey) { return FenceValues(); });
    const LedgerRecords records = h.core->AllRecords();
    return next.CheckDevices(ViewsOf(records));
  };
  EXPECT_TRUE(same().ok()) << same();
  // The second restart reads what the first one persisted.
  for (int i = 0; i < 2; ++i) {
    h.Restart(config);
    EXPECT_EQ(h.Pool().out, 1u);
    EXPECT_EQ(h.core->ListDevices().at(0).ordinal, 2u);
    EXPECT_EQ(h.core->ListDevices().at(0).budget, MiB(16));
    h.MustAllocate(a, MiB(2), 5);
  }
  // A device that was identified must not leave.
  config.devices.pop_back();
  EXPECT_TRUE(absl::IsFailedPrecondition(same())) << same();
}

TEST(RestartTest, CountersWithInvalidBudgetNumberAreUnreadable) {
  CoreHarness h;
  LedgerRecords records = h.core->AllRecords();
  // The first field is the last budget's number. Two devices exist already; more must be possible.
  records.at(KeyOf(RecordKind::kMemoryCounters))[0] = 2;
  Core next(
      CoreHarness::DefaultConfig(), [] { return 1; }, [](StreamKey) { return FenceValues(); });
  EXPECT_FALSE(Restore(records, &next).ok());
}

}  // namespace
}  // namespace berth::core
