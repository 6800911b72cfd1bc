// Quotas: what each tenant may have at a time.

#include <string>

#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

using PutBack = PermitSlot::PutBack;

AcquireRequest Ask(const std::string& key, uint64_t units = 1, const std::string& pool = "wide", bool wait = true) {
  return {.pool = pool, .units = units, .holder_key = key, .wait = wait};
}

Config With(const TenantQuota& quota) {
  Config config = CoreHarness::DefaultConfig();
  config.quotas.all = quota;
  return config;
}

void SetQuotas(CoreHarness& h, const TenantQuota& quota) {
  h.Do([&](Core& core, Effects* effects) { core.SetQuotas(h.now, {.all = quota}, effects); });
}

TEST(CoreQuotaTest, QuotaCountsUnitsOverAllPools) {
  CoreHarness h(With({.permits = 3}));
  Peer a = h.Open(), other = h.Open(1001);
  const AcquireResult wide = h.MustAcquire(a, Ask("1", 2));
  h.MustAcquire(a, Ask("2", 1, "gpu-tests"));
  const CallId third = h.Acquire(a, Ask("3"));
  EXPECT_FALSE(h.Answered(third));
  // A later waiter of another tenant is not delayed.
  h.MustAcquire(other, Ask("1", 3));
  const uint64_t number = h.core->ListWaiters(CoreHarness::Admin(), "").at(0).number;
  EXPECT_EQ(h.core->ExplainWait(a.caller(), number)->cause, WaitCause::kTenantQuota);
  h.Release(a, wide.acquisition);
  EXPECT_TRUE(h.Answered(third));
}

TEST(CoreQuotaTest, UnitReturnedInOtherPoolServesWaiter) {
  CoreHarness h(With({.permits = 1}));
  Peer a = h.Open();
  const AcquireResult tests = h.MustAcquire(a, Ask("1", 1, "gpu-tests"));
  const CallId waits = h.Acquire(a, Ask("2"));
  EXPECT_FALSE(h.Answered(waits));
  h.Release(a, tests.acquisition);
  EXPECT_TRUE(h.Answered(waits));
}

TEST(CoreQuotaTest, HeldWaiterOverQuotaDelaysNoOthers) {
  Config config = CoreHarness::DefaultConfig();
  config.quotas.users[1000].permits = 4;
  config.limits.passes_before_hold = 1;
  CoreHarness h(config);
  Peer a = h.Open(1000), other = h.Open(1001);
  h.MustAcquire(other, Ask("1", 5));
  const CallId large = h.Acquire(a, Ask("1", 4));
  h.MustAcquire(other, Ask("2"));
  const CallId behind = h.Acquire(other, Ask("3"));
  EXPECT_FALSE(h.Answered(behind)) << "what is free is reserved for the waiter that was passed";
  h.MustAcquire(a, Ask("2", 1, "gpu-tests"));
  EXPECT_TRUE(h.Answered(behind)) << "its tenant has no four units left for it";
  EXPECT_FALSE(h.Answered(large));
}

TEST(CoreQuotaTest, RequestAboveQuotaIsRejectedWithLimit) {
  CoreHarness h(With({.permits = 2}));
  Peer a = h.Open();
  const std::string before = h.Accounts();
  const CallId never = h.Acquire(a, Ask("1", 3));
  EXPECT_TRUE(h.Refused(never, Reason::kOverCap)) << h.StatusOf(never);
  EXPECT_EQ(h.NamedValue(never, "asked"), "3");
  EXPECT_EQ(h.NamedValue(never, "cap"), "2");
  EXPECT_EQ(h.Accounts(), before);
  h.MustAcquire(a, Ask("1", 2));
  const CallId now = h.Acquire(a, Ask("2", 1, "gpu-tests", /*wait=*/false));
  EXPECT_TRUE(h.Refused(now, Reason::kNoPermit)) << h.StatusOf(now);
  EXPECT_EQ(h.NamedValue(now, "what"), "permits_of_tenant");
  EXPECT_EQ(h.NamedValue(now, "out"), "2");
}

TEST(CoreQuotaTest, NestedPermitCostsNoQuota) {
  CoreHarness h(With({.permits = 1, .waiters = 1}));
  Peer a = h.Open();
  h.MustAcquire(a, Ask("1"));
  EXPECT_TRUE(h.MustAcquire(a, Ask("1")).nested);
}

TEST(CoreQuotaTest, GangsUnitsCountTogether) {
  CoreHarness h(With({.permits = 3}));
  Peer a = h.Open();
  GangRequest gang = {.members = {{.pool = "wide", .units = 2}, {.pool = "gpu-tests", .units = 1}}, .holder_key = "g"};
  gang.members[1].units = 2;
  const CallId never = h.AcquireGang(a, gang);
  EXPECT_TRUE(h.Refused(never, Reason::kOverCap)) << h.StatusOf(never);
  gang.members[1].units = 1;
  const AcquireResult one = h.MustAcquire(a, Ask("1"));
  const CallId waits = h.AcquireGang(a, gang);
  EXPECT_FALSE(h.Answered(waits));
  h.Release(a, one.acquisition);
  EXPECT_TRUE(h.Answered(waits));
}

TEST(CoreQuotaTest, LoweredQuotaDrainsAndRejectsImpossibleWaiters) {
  CoreHarness h(With({.permits = 4}));
  Peer a = h.Open();
  const AcquireResult held = h.MustAcquire(a, Ask("1", 3));
  const CallId waits = h.Acquire(a, Ask("2", 2));
  const CallId small = h.Acquire(a, Ask("3", 1, "gpu-tests", /*wait=*/true));
  EXPECT_FALSE(h.Answered(waits));
  EXPECT_TRUE(h.Answered(small));
  SetQuotas(h, {.permits = 1});
  EXPECT_TRUE(h.Refused(waits, Reason::kOverCap));
  EXPECT_EQ(h.Pool("wide").out, 3u) << "nothing is taken away";
  const CallId next = h.Acquire(a, Ask("4"));
  h.Release(a, held.acquisition);
  EXPECT_FALSE(h.Answered(next)) << "one is out in the other pool";
  SetQuotas(h, {});
  EXPECT_TRUE(h.Answered(next));
}

TEST(CoreQuotaTest, WaitersOfEveryKindCountAgainstQuota) {
  CoreHarness h(With({.waiters = 2}));
  Peer a = h.Open(), b = h.Open(1001);
  h.MustAcquire(b, Ask("1", 8));
  const CallId first = h.Acquire(a, Ask("1"));
  h.DropWorker();
  const CallId bytes = h.Allocate(a, MiB(2));
  const std::string before = h.Accounts();
  const CallId third = h.Acquire(a, Ask("2"));
  EXPECT_TRUE(h.Refused(third, Reason::kLimit)) << h.StatusOf(third);
  EXPECT_EQ(h.NamedValue(third, "what"), "waiters_of_tenant");
  EXPECT_EQ(h.NamedValue(third, "current"), "2");
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(2)), Reason::kLimit));
  const CallId gang = h.AcquireGang(a, {.members = {{.pool = "wide", .units = 1}}, .holder_key = "g"});
  EXPECT_TRUE(h.Refused(gang, Reason::kLimit)) << h.StatusOf(gang);
  EXPECT_EQ(h.Accounts(), before);
  // A request that need not wait does not count as a waiter.
  h.MustAcquire(a, Ask("3", 1, "gpu-tests"));
  EXPECT_FALSE(h.Answered(h.Acquire(b, Ask("2")))) << "another tenant has its own";
  h.RaiseWorker();
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(bytes).ok());
  EXPECT_FALSE(h.Answered(h.Acquire(a, Ask("4"))));
  EXPECT_FALSE(h.Answered(first));
}

TEST(CoreQuotaTest, SessionsNamesAndBlocksAreBoundedByQuota) {
  CoreHarness h(With({.sessions = 2, .blocks = 2, .names = 1}));
  Peer a = h.Open(), b = h.Open();
  absl::Status third;
  const auto open = [&](uint32_t uid) {
    return h.core->OpenSession(h.now, Secret(), {.uid = uid}, "", ProcessInfo()).status();
  };
  third = open(1000);
  EXPECT_TRUE(IsRefusal(third, Reason::kLimit)) << third;
  EXPECT_EQ(NamedValueOf(third, "what"), "sessions_of_tenant");
  EXPECT_TRUE(open(1001).ok());
  const AllocateResult one = h.MustAllocate(a, MiB(2));
  const AllocateResult two = h.MustAllocate(b, MiB(2));
  const CallId over = h.Allocate(a, MiB(2));
  EXPECT_TRUE(h.Refused(over, Reason::kLimit)) << h.StatusOf(over);
  EXPECT_EQ(h.NamedValue(over, "what"), "blocks_of_tenant");
  EXPECT_TRUE(h.StatusOf(h.Publish(a, one.block.handle, "n1", {one.import})).ok());
  const CallId name = h.Publish(b, two.block.handle, "n2", {two.import});
  EXPECT_TRUE(h.Refused(name, Reason::kLimit)) << h.StatusOf(name);
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(2)), Reason::kLimit)) << "a published block is its tenant's still";
  h.Free(b, two.block.handle, {two.import});
  h.WorkAll();
  h.MustAllocate(a, MiB(2));
  h.HangUp(b);
  h.Gone(b);
  EXPECT_TRUE(open(1000).ok());
}

TEST(CoreQuotaTest, LoweredBlockQuotaRejectsByteWaiter) {
  CoreHarness h(With({.blocks = 3}));
  Peer a = h.Open(), b = h.Open(1001);
  const AllocateResult theirs = h.MustAllocate(b, MiB(14));
  h.MustAllocate(a, MiB(2));
  const CallId block = h.Allocate(a, AllocateRequest{.bytes = MiB(2), .wait = true});
  SetQuotas(h, {.blocks = 1});
  EXPECT_FALSE(h.Answered(block));
  h.Free(b, theirs.block.handle, {theirs.import});
  h.WorkAll();
  EXPECT_TRUE(h.Refused(block, Reason::kLimit)) << h.StatusOf(block);
  EXPECT_EQ(h.NamedValue(block, "what"), "blocks_of_tenant");
  EXPECT_EQ(h.NamedValue(block, "current"), "1");
  EXPECT_EQ(h.BytesOf(0).live, MiB(2));
}

TEST(CoreQuotaTest, IdlePermitServesOwnTenantInOtherPool) {
  CoreHarness h(With({.permits = 1}));
  Peer a = h.Open(), b = h.Open(1001);
  const auto keep = [&](Peer& peer) {
    EXPECT_TRUE(h.StatusOf(h.KeepPermits(peer)).ok());
    AcquireRequest request = Ask("kept", 1, "gpu-tests");
    request.keep = true;
    const AcquireResult held = h.MustAcquire(peer, request);
    EXPECT_EQ(h.permit_slots.at(peer.channel).Put(held.permit.value()), PutBack::kCached);
    return held;
  };
  keep(a);
  const AcquireResult theirs = keep(b);
  const CallId call = h.Acquire(a, Ask("1"));
  EXPECT_TRUE(h.Answered(call)) << "nobody waits for what its own process does not use";
  EXPECT_TRUE(h.permit_slots.at(b.channel).Take(theirs.permit.value()));
  EXPECT_EQ(h.Pool().out, 1u);
  EXPECT_EQ(h.Pool("wide").out, 1u);
}

TEST(CoreQuotaTest, NextBrokerRecountsQuotas) {
  CoreHarness h(With({.permits = 3, .waiters = 1, .sessions = 1, .blocks = 1}));
  Peer a = h.Open();
  const AcquireResult held = h.MustAcquire(a, Ask("1", 3));
  h.MustAllocate(a, MiB(2));
  const CallId lost = h.Acquire(a, Ask("2"));
  EXPECT_FALSE(h.Answered(lost));
  h.Restart();
  EXPECT_TRUE(h.Refused(h.Acquire(a, Ask("3")), Reason::kLimit)) << "the one that is away waits still";
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(2)), Reason::kLimit));
  const auto opened = h.core->OpenSession(h.now, Secret(), {.uid = 1000}, "", ProcessInfo());
  EXPECT_TRUE(IsRefusal(opened.status(), Reason::kLimit));
  // The client does not repeat the request, so its place becomes free.
  h.now += absl::Seconds(6);
  h.Tick();
  const CallId waits = h.Acquire(a, Ask("4"));
  EXPECT_FALSE(h.Answered(waits)) << "three are out";
  h.Release(a, held.acquisition);
  EXPECT_TRUE(h.Answered(waits));
  h.Restart(With({.permits = 1}));
  const CallId more = h.Acquire(a, Ask("5"));
  EXPECT_FALSE(h.Answered(more));
  h.Restart(With({}));
  --a.sequence;
  EXPECT_TRUE(h.StatusOf(h.Acquire(a, Ask("5"))).ok());
}

TEST(CoreQuotaTest, TenantWithoutQuotaMayTakeEntirePool) {
  CoreHarness h;
  Peer a = h.Open();
  h.MustAcquire(a, Ask("1", 8));
  EXPECT_EQ(h.core->CheckInvariants(), absl::OkStatus());
}

TEST(CoreObserverTest, ObserverReadsAllWithoutSessionAndChangesNothing) {
  CoreHarness h;
  Peer a = h.Open(), b = h.Open(1001);
  const AcquireResult held = h.MustAcquire(a, Ask("1"));
  const AllocateResult block = h.MustAllocate(b, MiB(2));
  const Caller observer = {.tenant = {.uid = 65}, .observer = true};
  EXPECT_TRUE(h.core->Authenticate(observer).ok());
  EXPECT_EQ(h.core->ListSessions(observer).size(), 2u);
  EXPECT_EQ(h.core->ListPermits(observer, "").size(), 1u);
  EXPECT_EQ(h.core->ListBlocks(observer).size(), 1u);
  const std::string before = h.Accounts();
  // The observer may not act, even with a session's own credentials.
  Caller thief = a.caller();
  thief.observer = true;
  for (const Caller& caller : {observer, thief}) {
    const CallId call = h.Ask([&](Core& core, CallId id, Effects* effects) {
      core.Release(h.now, id, caller, {.sequence = 99}, held.acquisition, effects);
    });
    EXPECT_TRUE(h.Refused(call, Reason::kObserverOnlyLooks)) << h.StatusOf(call);
    EXPECT_EQ(h.NamedValue(call, "socket"), "berthd.sock");
    h.Do([&](Core& core, Effects* effects) {
      for (const absl::Status& status :
           {core.EndSession(h.now, caller, a.session, effects).status(),
            core.FreeById(h.now, caller, block.block.handle.block, effects).status(),
            core.Recall(h.now, caller, block.block.handle.block, effects).status(),
            core.ClearTorn(h.now, caller, block.block.handle.block, effects).status(),
            core.SetBudget(h.now, caller, {.limit = MiB(1)}, effects).status()}) {
        EXPECT_TRUE(IsRefusal(status, Reason::kObserverOnlyLooks)) << status;
      }
    });
  }
  EXPECT_EQ(h.Accounts(), before);
}

}  // namespace
}  // namespace berth::core
