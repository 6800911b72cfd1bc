// Permits that processes cache between uses.

#include <string>

#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

using PutBack = PermitSlot::PutBack;

AcquireRequest Ask(const std::string& key, bool wait = true) {
  return {.pool = "gpu-tests", .holder_key = key, .wait = wait};
}

// A process that caches its permit, as the SDK's processes do.
struct CachingPeer {
  CachingPeer(CoreHarness& h, const Peer& peer) : h(h), peer(peer) {
    EXPECT_TRUE(h.StatusOf(h.KeepPermits(this->peer)).ok());
  }
  explicit CachingPeer(CoreHarness& h, uint32_t uid = 1000) : CachingPeer(h, h.Open(uid)) {}

  AcquireResult Acquire() {
    AcquireRequest request = Ask("kept");
    request.keep = true;
    return held = h.MustAcquire(peer, request);
  }
  PermitSlot& permit_slot() { return h.permit_slots.at(peer.channel); }
  bool Take() { return permit_slot().Take(held.permit.value()); }
  PutBack Put() { return permit_slot().Put(held.permit.value()); }
  bool idle() const { return h.core->ListPermits(h.Admin(), "").at(0).cached; }

  CoreHarness& h;
  Peer peer;
  AcquireResult held;
};

class CoreCachedPermitTest : public testing::Test {
 protected:
  CoreCachedPermitTest() { SetPool({.cap = 1}); }
  void SetPool(const PoolChange& change) {
    h_.Do([&](Core& core, Effects* effects) {
      EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", change, effects).ok());
    });
  }
  CoreHarness h_;
};

TEST_F(CoreCachedPermitTest, CachedPermitIsReusedWithoutDaemonAndShownIdle) {
  CachingPeer a(h_);
  EXPECT_TRUE(a.Acquire().cached);
  EXPECT_FALSE(a.idle());
  EXPECT_EQ(a.Put(), PutBack::kCached);
  EXPECT_TRUE(a.idle());
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_EQ(h_.Pool().cached, 1u);
  EXPECT_TRUE(a.Take());
  EXPECT_EQ(h_.Pool().cached, 0u);
  EXPECT_EQ(h_.Pool().granted_total, 1u);
}

TEST_F(CoreCachedPermitTest, IdlePermitIsGrantedToNextAtOnce) {
  CachingPeer a(h_);
  a.Acquire();
  a.Put();
  Peer b = h_.Open();
  const AcquireResult theirs = h_.MustAcquire(b, Ask("1"));
  EXPECT_FALSE(theirs.nested);
  EXPECT_FALSE(a.Take());
  EXPECT_EQ(h_.Pool().out, 1u);
  // A request that would not wait gets the permit, too.
  h_.Release(b, theirs.acquisition);
  a.Acquire();
  a.Put();
  EXPECT_TRUE(h_.StatusOf(h_.Acquire(b, Ask("1", /*wait=*/false))).ok());
}

TEST_F(CoreCachedPermitTest, ReturnWhileWaiterExistsNotifiesDaemon) {
  CachingPeer a(h_);
  a.Acquire();
  Peer b = h_.Open();
  const CallId waits = h_.Acquire(b, Ask("1"));
  EXPECT_EQ(a.Put(), PutBack::kWanted);
  EXPECT_FALSE(a.Take());
  EXPECT_FALSE(h_.Answered(waits));
  EXPECT_TRUE(h_.Get<ReleaseResult>(h_.ReleaseIfIdle(a.peer, a.held.acquisition)).returned);
  EXPECT_TRUE(h_.Get<AcquireResult>(waits).epoch > 0);
  // A repeated ReleaseIfIdle() changes nothing.
  EXPECT_FALSE(h_.Get<ReleaseResult>(h_.ReleaseIfIdle(a.peer, a.held.acquisition)).returned);
  EXPECT_EQ(h_.Pool().out, 1u);
}

TEST_F(CoreCachedPermitTest, StoppedProcessDelaysNoWaiter) {
  CachingPeer a(h_);
  a.Acquire();
  Peer b = h_.Open();
  const CallId waits = h_.Acquire(b, Ask("1"));
  a.Put();
  h_.now = h_.core->next_deadline();
  h_.Tick();
  EXPECT_TRUE(h_.Get<AcquireResult>(waits).epoch > 0);
  EXPECT_EQ(h_.core->next_deadline(), absl::InfiniteFuture());
}

TEST_F(CoreCachedPermitTest, PermitInUseIsNotTakenBack) {
  CachingPeer a(h_);
  a.Acquire();
  Peer b = h_.Open();
  const CallId waits = h_.Acquire(b, Ask("1"));
  EXPECT_FALSE(h_.Get<ReleaseResult>(h_.ReleaseIfIdle(a.peer, a.held.acquisition)).returned);
  for (int i = 0; i < 5; ++i) {
    h_.now = h_.core->next_deadline();
    h_.Tick();
  }
  EXPECT_FALSE(h_.Answered(waits));
  // No request waits any more: the permit is cached as before.
  h_.Forget(b, b.sequence);
  EXPECT_EQ(a.Put(), PutBack::kCached);
  EXPECT_TRUE(a.Take());
}

TEST_F(CoreCachedPermitTest, ReleaseThroughDaemonEndsCaching) {
  CachingPeer a(h_);
  a.Acquire();
  EXPECT_TRUE(h_.Get<ReleaseResult>(h_.Release(a.peer, a.held.acquisition)).returned);
  EXPECT_EQ(a.Put(), PutBack::kNotOurs);
  EXPECT_EQ(h_.Pool().out, 0u);
}

TEST_F(CoreCachedPermitTest, NestedAcquireStaysAfterTakeBack) {
  CachingPeer a(h_);
  a.Acquire();
  const AcquireResult inner = h_.MustAcquire(a.peer, Ask("kept"));
  EXPECT_TRUE(inner.nested);
  EXPECT_FALSE(inner.cached);
  a.Put();
  Peer b = h_.Open();
  const CallId waits = h_.Acquire(b, Ask("1"));
  EXPECT_FALSE(h_.Answered(waits));
  EXPECT_FALSE(a.Take());
  EXPECT_TRUE(h_.Get<ReleaseResult>(h_.Release(a.peer, inner.acquisition)).returned);
  EXPECT_TRUE(h_.Answered(waits));
}

TEST_F(CoreCachedPermitTest, ProcessCachesSinglePermitOverAllPools) {
  CachingPeer a(h_);
  EXPECT_TRUE(a.Acquire().cached);
  AcquireRequest other = {.pool = "wide", .holder_key = "2", .keep = true};
  EXPECT_FALSE(h_.MustAcquire(a.peer, other).cached);
  // Another process of the session caches its own permit.
  CachingPeer b(h_, h_.JoinTo(a.peer));
  other.holder_key = "3";
  EXPECT_TRUE(h_.MustAcquire(b.peer, other).cached);
}

TEST_F(CoreCachedPermitTest, OnlyPlainPermitWithPageIsCached) {
  Peer without = h_.Open();
  AcquireRequest plain = {.pool = "wide", .holder_key = "1", .keep = true};
  EXPECT_FALSE(h_.MustAcquire(without, plain).cached);
  CachingPeer a(h_);
  AcquireRequest request = plain;
  request.units = 2;
  EXPECT_FALSE(h_.MustAcquire(a.peer, request).cached);
  request = plain;
  request.holder_key = "2";
  request.client_cap = 8;
  EXPECT_FALSE(h_.MustAcquire(a.peer, request).cached);
  request = plain;
  request.holder_key = "3";
  request.independent = true;
  request.adoptable = true;
  EXPECT_FALSE(h_.MustAcquire(a.peer, request).cached);
  request = plain;
  request.holder_key = "4";
  request.independent = true;
  request.device.pick = DevicePick::kAny;
  EXPECT_FALSE(h_.MustAcquire(a.peer, request).cached);
}

TEST_F(CoreCachedPermitTest, ExclusiveAndTenantCappedRequestsGetIdlePermit) {
  SetPool({.cap = 3, .tenant_cap = 1});
  CachingPeer a(h_);
  a.Acquire();
  a.Put();
  Peer same_user = h_.Open();
  const AcquireResult second = h_.MustAcquire(same_user, Ask("1"));
  h_.Release(same_user, second.acquisition);
  a.Acquire();
  a.Put();
  Peer alone = h_.Open(1001);
  AcquireRequest exclusive = Ask("1");
  exclusive.exclusive = true;
  EXPECT_TRUE(h_.StatusOf(h_.Acquire(alone, exclusive)).ok());
}

TEST_F(CoreCachedPermitTest, LoweredCapTakesIdlePermitsFirst) {
  SetPool({.cap = 3});
  CachingPeer idle(h_), used(h_), third(h_);
  for (CachingPeer* const cacher : {&idle, &used, &third}) cacher->Acquire();
  idle.Put();
  SetPool({.cap = 1});
  EXPECT_EQ(h_.Pool().out, 2u);
  EXPECT_FALSE(idle.Take());
  EXPECT_EQ(used.Put(), PutBack::kWanted);
  h_.ReleaseIfIdle(used.peer, used.held.acquisition);
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_EQ(third.Put(), PutBack::kCached);
}

TEST_F(CoreCachedPermitTest, SessionOrProcessEndReturnsIdlePermit) {
  for (const char* const end : {"channel", "lifeline", "death"}) {
    CachingPeer a(h_);
    a.Acquire();
    a.Put();
    Peer other = h_.JoinTo(a.peer);
    if (end == std::string("channel")) h_.HangUpChannel(a.peer);
    if (end == std::string("lifeline")) h_.HangUp(a.peer);
    if (end == std::string("death")) h_.Gone(a.peer);
    EXPECT_EQ(h_.Pool().out, 0u) << end;
    EXPECT_TRUE(!h_.permit_slots.contains(a.peer.channel) || !a.Take()) << end;
    h_.HangUp(a.peer);
    h_.Gone(a.peer);
    h_.Gone(other);
  }
}

TEST_F(CoreCachedPermitTest, UsedPermitReturnsAtProcessEnd) {
  CachingPeer a(h_);
  a.Acquire();
  h_.HangUp(a.peer);
  EXPECT_EQ(h_.Pool().out, 1u);
  // The permit is no longer cached.
  EXPECT_EQ(a.Put(), PutBack::kNotOurs);
  EXPECT_EQ(h_.Pool().out, 1u);
  h_.Gone(a.peer);
  EXPECT_EQ(h_.Pool().out, 0u);
  EXPECT_TRUE(h_.pages.empty());
}

TEST_F(CoreCachedPermitTest, RevokedPermitIsNotCached) {
  CachingPeer a(h_);
  a.Acquire();
  h_.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.RevokePermit(h_.now, a.held.permit, effects).ok());
  });
  EXPECT_EQ(h_.Pool().out, 0u);
  EXPECT_EQ(a.Put(), PutBack::kNotOurs);
  // The next permit has a different id.
  const PermitId before = a.held.permit;
  a.Acquire();
  EXPECT_FALSE(a.permit_slot().Take(before.value()));
  EXPECT_EQ(a.permit_slot().Put(before.value()), PutBack::kNotOurs);
  EXPECT_EQ(a.Put(), PutBack::kCached);
}

TEST_F(CoreCachedPermitTest, ForgottenPermitIsNotCached) {
  CachingPeer a(h_);
  a.Acquire();
  h_.Forget(a.peer, a.peer.sequence);
  EXPECT_EQ(h_.Pool().out, 0u);
  EXPECT_EQ(a.Put(), PutBack::kNotOurs);
}

TEST_F(CoreCachedPermitTest, IdleCachedPermitDoesNotCountAsHeld) {
  SetPool({.hold_warning = absl::Seconds(10), .hold_limit = absl::Seconds(20)});
  CachingPeer a(h_);
  a.Acquire();
  a.Put();
  // The permit is used repeatedly; each use is short.
  for (int i = 0; i < 60; ++i) {
    h_.now += absl::Seconds(1);
    EXPECT_TRUE(a.Take());
    h_.Tick();
    EXPECT_EQ(h_.Pool().overdue, 0u) << i;
    EXPECT_EQ(a.Put(), PutBack::kCached);
  }
  // Unused for longer than the warning: the permit is released.
  h_.now += absl::Seconds(30);
  h_.Tick();
  EXPECT_EQ(h_.Pool().out, 0u);
  EXPECT_EQ(h_.Pool().revoked_total, 0u);
}

TEST_F(CoreCachedPermitTest, LongUseOfCachedPermitIsRevoked) {
  SetPool({.hold_warning = absl::Seconds(10), .hold_limit = absl::Seconds(20)});
  CachingPeer a(h_);
  a.Acquire();
  a.Put();
  EXPECT_TRUE(a.Take());
  // The daemon learns of the use's start at its next tick.
  h_.now += absl::Seconds(10);
  h_.Tick();
  EXPECT_EQ(h_.Pool().overdue, 0u);
  h_.now += absl::Seconds(10);
  h_.Tick();
  EXPECT_EQ(h_.Pool().overdue, 1u);
  h_.now += absl::Seconds(10);
  h_.Tick();
  EXPECT_EQ(h_.Pool().out, 0u);
  EXPECT_EQ(h_.Pool().revoked_total, 1u);
}

// A process that forges its permit slot keeps at most its own permit. While a request waits, it keeps the permit no
// longer than the hold limit.
TEST_F(CoreCachedPermitTest, ForgedSlotRetainsAtMostOwnPermit) {
  SetPool({.hold_limit = absl::Seconds(20)});
  CachingPeer liar(h_);
  liar.Acquire();
  Peer b = h_.Open();
  const CallId waits = h_.Acquire(b, Ask("1"));
  auto* const raw = reinterpret_cast<std::atomic<uint64_t>*>(&liar.permit_slot());
  for (uint64_t i = 0; i < 30 && !h_.Answered(waits); ++i) {
    // The slot looks newly used each time, or is invalid.
    raw->store(i % 2 == 0 ? liar.held.permit.value() << 24 | i << 2 | 2 : ~i);
    raw[1].store(0);
    h_.now += absl::Seconds(1);
    h_.Tick();
  }
  EXPECT_TRUE(h_.Answered(waits));
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_EQ(h_.Pool().revoked_total, 1u);
  // The slot is ignored from now on.
  raw->store(liar.held.permit.value() << 24 | 1);
  Peer c = h_.Open();
  const CallId third = h_.Acquire(c, Ask("1"));
  h_.now += absl::Seconds(1);
  h_.Tick();
  EXPECT_FALSE(h_.Answered(third));
  EXPECT_EQ(h_.Pool().out, 1u);
}

TEST_F(CoreCachedPermitTest, ForeignReleaseOfCachedPermitChangesNothing) {
  CachingPeer a(h_);
  a.Acquire();
  a.Put();
  Peer b = h_.Open();
  EXPECT_FALSE(h_.Get<ReleaseResult>(h_.ReleaseIfIdle(b, a.held.acquisition)).returned);
  EXPECT_TRUE(a.Take());
}

TEST_F(CoreCachedPermitTest, StreamsAndPermitShareSinglePage) {
  CachingPeer a(h_);
  h_.Get<OpenStreamResult>(h_.OpenStream(a.peer));
  EXPECT_EQ(h_.pages.size(), 1u);
  Peer b = h_.Open();
  h_.Get<OpenStreamResult>(h_.OpenStream(b));
  CachingPeer cacher(h_, b);
  EXPECT_EQ(h_.pages.size(), 2u);
  EXPECT_TRUE(cacher.Acquire().cached);
  for (const Peer& peer : {a.peer, b}) {
    h_.HangUp(peer);
    h_.Gone(peer);
  }
  EXPECT_TRUE(h_.pages.empty());
}

TEST_F(CoreCachedPermitTest, IdlePermitAtItsHoldLimitGoesToNextWaiterBesideRevokedOne) {
  constexpr int kPassesBeforeHold = 16;
  SetPool({.cap = 5, .hold_warning = absl::Seconds(10), .hold_limit = absl::Seconds(20)});
  Peer a = h_.Open(), c = h_.Open(), large = h_.Open(), small = h_.Open();
  h_.MustAcquire(a, Ask("a"));
  CachingPeer b(h_);
  b.Acquire();
  h_.now += absl::Seconds(5);
  h_.MustAcquire(c, Ask("c"));
  AcquireRequest three = Ask("three");
  three.units = 3;
  const CallId first = h_.Acquire(large, three);
  for (int i = 0; i < kPassesBeforeHold; ++i) h_.Release(small, h_.MustAcquire(small, Ask("pass")).acquisition);
  const CallId second = h_.Acquire(small, Ask("small"));
  ASSERT_FALSE(h_.Answered(second)) << "the units are held for the first";
  // Past the warning, and in use.
  h_.now += absl::Seconds(10);
  h_.Tick();
  b.Put();
  h_.now += absl::Seconds(5);
  h_.Tick();
  EXPECT_TRUE(h_.Answered(first));
  EXPECT_TRUE(h_.Answered(second));
  EXPECT_EQ(h_.Pool().out, 5u);
}

}  // namespace
}  // namespace berth::core
