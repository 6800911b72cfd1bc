// Permits that their processes keep between uses.

#include <string>

#include "daemon/core/core_harness.h"

namespace berth::core {
namespace {

using PutBack = PermitWord::PutBack;

AcquireRequest Ask(const std::string& key, bool wait = true) {
  return {.pool = "gpu-tests", .holder_key = key, .wait = wait};
}

// A process that keeps its permit, as the SDK's do.
struct Keeper {
  Keeper(CoreHarness& h, const Peer& peer) : h(h), peer(peer) {
    EXPECT_TRUE(h.StatusOf(h.KeepPermits(this->peer)).ok());
  }
  explicit Keeper(CoreHarness& h, uint32_t uid = 1000) : Keeper(h, h.Open(uid)) {}

  AcquireResult Acquire() {
    AcquireRequest request = Ask("kept");
    request.keep = true;
    return held = h.MustAcquire(peer, request);
  }
  PermitWord& word() { return h.permit_words.at(peer.channel); }
  bool Take() { return word().Take(held.permit.value()); }
  PutBack Put() { return word().Put(held.permit.value()); }
  bool idle() const { return h.core->ListPermits(h.Admin(), "").at(0).kept; }

  CoreHarness& h;
  Peer peer;
  AcquireResult held;
};

class CoreKeptTest : public testing::Test {
 protected:
  CoreKeptTest() { SetPool({.cap = 1}); }
  void SetPool(const PoolChange& change) {
    h_.Do([&](Core& core, Effects* effects) {
      EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", change, effects).ok());
    });
  }
  CoreHarness h_;
};

TEST_F(CoreKeptTest, IsUsedAgainWithoutTheDaemonAndShownAsIdleBetween) {
  Keeper a(h_);
  EXPECT_TRUE(a.Acquire().kept);
  EXPECT_FALSE(a.idle());
  EXPECT_EQ(a.Put(), PutBack::kKept);
  EXPECT_TRUE(a.idle());
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_EQ(h_.Pool().kept, 1u);
  EXPECT_TRUE(a.Take());
  EXPECT_EQ(h_.Pool().kept, 0u);
  EXPECT_EQ(h_.Pool().granted_total, 1u);
}

TEST_F(CoreKeptTest, WhatIsIdleIsTheNextOnesAtOnce) {
  Keeper a(h_);
  a.Acquire();
  a.Put();
  Peer b = h_.Open();
  const AcquireResult theirs = h_.MustAcquire(b, Ask("1"));
  EXPECT_FALSE(theirs.nested);
  EXPECT_FALSE(a.Take());
  EXPECT_EQ(h_.Pool().out, 1u);
  // Also for one who would not wait.
  h_.Release(b, theirs.acquisition);
  a.Acquire();
  a.Put();
  EXPECT_TRUE(h_.StatusOf(h_.Acquire(b, Ask("1", /*wait=*/false))).ok());
}

TEST_F(CoreKeptTest, WhoPutsItBackWhileSomebodyWaitsTellsTheDaemonToLook) {
  Keeper a(h_);
  a.Acquire();
  Peer b = h_.Open();
  const CallId waits = h_.Acquire(b, Ask("1"));
  EXPECT_EQ(a.Put(), PutBack::kWanted);
  EXPECT_FALSE(a.Take());
  EXPECT_FALSE(h_.Answered(waits));
  EXPECT_TRUE(h_.Get<ReleaseResult>(h_.ReleaseIfIdle(a.peer, a.held.acquisition)).returned);
  EXPECT_TRUE(h_.Get<AcquireResult>(waits).epoch > 0);
  // Said again, it changes nothing.
  EXPECT_FALSE(h_.Get<ReleaseResult>(h_.ReleaseIfIdle(a.peer, a.held.acquisition)).returned);
  EXPECT_EQ(h_.Pool().out, 1u);
}

TEST_F(CoreKeptTest, WhoIsStoppedBeforeItTellsKeepsNobodyWaiting) {
  Keeper a(h_);
  a.Acquire();
  Peer b = h_.Open();
  const CallId waits = h_.Acquire(b, Ask("1"));
  a.Put();
  h_.now = h_.core->next_deadline();
  h_.Tick();
  EXPECT_TRUE(h_.Get<AcquireResult>(waits).epoch > 0);
  EXPECT_EQ(h_.core->next_deadline(), absl::InfiniteFuture());
}

TEST_F(CoreKeptTest, WhatIsUsedIsNotTakenHoweverOftenTheDaemonLooks) {
  Keeper a(h_);
  a.Acquire();
  Peer b = h_.Open();
  const CallId waits = h_.Acquire(b, Ask("1"));
  EXPECT_FALSE(h_.Get<ReleaseResult>(h_.ReleaseIfIdle(a.peer, a.held.acquisition)).returned);
  for (int i = 0; i < 5; ++i) {
    h_.now = h_.core->next_deadline();
    h_.Tick();
  }
  EXPECT_FALSE(h_.Answered(waits));
  // Nobody waits any more: it is kept as before.
  h_.Forget(b, b.sequence);
  EXPECT_EQ(a.Put(), PutBack::kKept);
  EXPECT_TRUE(a.Take());
}

TEST_F(CoreKeptTest, AReleaseThroughTheDaemonEndsTheKeeping) {
  Keeper a(h_);
  a.Acquire();
  EXPECT_TRUE(h_.Get<ReleaseResult>(h_.Release(a.peer, a.held.acquisition)).returned);
  EXPECT_EQ(a.Put(), PutBack::kNotOurs);
  EXPECT_EQ(h_.Pool().out, 0u);
}

TEST_F(CoreKeptTest, WhatNestsInItStaysOutWhenItIsTakenBack) {
  Keeper a(h_);
  a.Acquire();
  const AcquireResult inner = h_.MustAcquire(a.peer, Ask("kept"));
  EXPECT_TRUE(inner.nested);
  EXPECT_FALSE(inner.kept);
  a.Put();
  Peer b = h_.Open();
  const CallId waits = h_.Acquire(b, Ask("1"));
  EXPECT_FALSE(h_.Answered(waits));
  EXPECT_FALSE(a.Take());
  EXPECT_TRUE(h_.Get<ReleaseResult>(h_.Release(a.peer, inner.acquisition)).returned);
  EXPECT_TRUE(h_.Answered(waits));
}

TEST_F(CoreKeptTest, AProcessKeepsOnePermitOfAllPools) {
  Keeper a(h_);
  EXPECT_TRUE(a.Acquire().kept);
  AcquireRequest other = {.pool = "wide", .holder_key = "2", .keep = true};
  EXPECT_FALSE(h_.MustAcquire(a.peer, other).kept);
  // Another process of the session keeps another.
  Keeper b(h_, h_.JoinTo(a.peer));
  other.holder_key = "3";
  EXPECT_TRUE(h_.MustAcquire(b.peer, other).kept);
}

TEST_F(CoreKeptTest, OnlyWhatTheNextUseWouldAskForIsKeptAndOnlyWithAPage) {
  Peer without = h_.Open();
  AcquireRequest plain = {.pool = "wide", .holder_key = "1", .keep = true};
  EXPECT_FALSE(h_.MustAcquire(without, plain).kept);
  Keeper a(h_);
  AcquireRequest request = plain;
  request.units = 2;
  EXPECT_FALSE(h_.MustAcquire(a.peer, request).kept);
  request = plain;
  request.holder_key = "2";
  request.client_cap = 8;
  EXPECT_FALSE(h_.MustAcquire(a.peer, request).kept);
  request = plain;
  request.holder_key = "3";
  request.independent = true;
  request.adoptable = true;
  EXPECT_FALSE(h_.MustAcquire(a.peer, request).kept);
  request = plain;
  request.holder_key = "4";
  request.independent = true;
  request.device.pick = DevicePick::kAny;
  EXPECT_FALSE(h_.MustAcquire(a.peer, request).kept);
}

TEST_F(CoreKeptTest, AnExclusiveOneAndATenantsCapHaveWhatIsIdleToo) {
  SetPool({.cap = 3, .tenant_cap = 1});
  Keeper a(h_);
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

TEST_F(CoreKeptTest, ALoweredCapTakesWhatIsIdleFirstAndThenWhatIsPutBack) {
  SetPool({.cap = 3});
  Keeper idle(h_), used(h_), third(h_);
  for (Keeper* const keeper : {&idle, &used, &third}) keeper->Acquire();
  idle.Put();
  SetPool({.cap = 1});
  EXPECT_EQ(h_.Pool().out, 2u);
  EXPECT_FALSE(idle.Take());
  EXPECT_EQ(used.Put(), PutBack::kWanted);
  h_.ReleaseIfIdle(used.peer, used.held.acquisition);
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_EQ(third.Put(), PutBack::kKept);
}

TEST_F(CoreKeptTest, AHangUpASessionsEndAndADeathBringBackWhatIsIdle) {
  for (const char* const end : {"channel", "lifeline", "death"}) {
    Keeper a(h_);
    a.Acquire();
    a.Put();
    Peer other = h_.JoinTo(a.peer);
    if (end == std::string("channel")) h_.HangUpChannel(a.peer);
    if (end == std::string("lifeline")) h_.HangUp(a.peer);
    if (end == std::string("death")) h_.Gone(a.peer);
    EXPECT_EQ(h_.Pool().out, 0u) << end;
    EXPECT_TRUE(!h_.permit_words.contains(a.peer.channel) || !a.Take()) << end;
    h_.HangUp(a.peer);
    h_.Gone(a.peer);
    h_.Gone(other);
  }
}

TEST_F(CoreKeptTest, WhatIsUsedAtAnEndComesBackAsAnyPermit) {
  Keeper a(h_);
  a.Acquire();
  h_.HangUp(a.peer);
  EXPECT_EQ(h_.Pool().out, 1u);
  // It is kept no more.
  EXPECT_EQ(a.Put(), PutBack::kNotOurs);
  EXPECT_EQ(h_.Pool().out, 1u);
  h_.Gone(a.peer);
  EXPECT_EQ(h_.Pool().out, 0u);
  EXPECT_TRUE(h_.pages.empty());
}

TEST_F(CoreKeptTest, WhatIsRevokedIsKeptNoMore) {
  Keeper a(h_);
  a.Acquire();
  h_.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.RevokePermit(h_.now, a.held.permit, effects).ok());
  });
  EXPECT_EQ(h_.Pool().out, 0u);
  EXPECT_EQ(a.Put(), PutBack::kNotOurs);
  // The next one is another.
  const PermitId before = a.held.permit;
  a.Acquire();
  EXPECT_FALSE(a.word().Take(before.value()));
  EXPECT_EQ(a.word().Put(before.value()), PutBack::kNotOurs);
  EXPECT_EQ(a.Put(), PutBack::kKept);
}

TEST_F(CoreKeptTest, AForgottenGrantIsKeptNoMore) {
  Keeper a(h_);
  a.Acquire();
  h_.Forget(a.peer, a.peer.sequence);
  EXPECT_EQ(h_.Pool().out, 0u);
  EXPECT_EQ(a.Put(), PutBack::kNotOurs);
}

TEST_F(CoreKeptTest, IdleIsNotHolding) {
  SetPool({.hold_warning = absl::Seconds(10), .hold_limit = absl::Seconds(20)});
  Keeper a(h_);
  a.Acquire();
  a.Put();
  // Used again and again: each use is short.
  for (int i = 0; i < 60; ++i) {
    h_.now += absl::Seconds(1);
    EXPECT_TRUE(a.Take());
    h_.Tick();
    EXPECT_EQ(h_.Pool().overdue, 0u) << i;
    EXPECT_EQ(a.Put(), PutBack::kKept);
  }
  // Not used for longer than the warning: it goes back.
  h_.now += absl::Seconds(30);
  h_.Tick();
  EXPECT_EQ(h_.Pool().out, 0u);
  EXPECT_EQ(h_.Pool().revoked_total, 0u);
}

TEST_F(CoreKeptTest, AUseThatLastsIsOverdueAndRevoked) {
  SetPool({.hold_warning = absl::Seconds(10), .hold_limit = absl::Seconds(20)});
  Keeper a(h_);
  a.Acquire();
  a.Put();
  EXPECT_TRUE(a.Take());
  // When it began the daemon learns as it looks.
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

// What a process that lies with its word gets: at most its own one permit, and no longer than the limit while somebody
// waits.
TEST_F(CoreKeptTest, ALiarKeepsAtMostItsOwnPermit) {
  SetPool({.hold_limit = absl::Seconds(20)});
  Keeper liar(h_);
  liar.Acquire();
  Peer b = h_.Open();
  const CallId waits = h_.Acquire(b, Ask("1"));
  auto* const raw = reinterpret_cast<std::atomic<uint64_t>*>(&liar.word());
  for (uint64_t i = 0; i < 30 && !h_.Answered(waits); ++i) {
    // Looks as if it were used anew each time, or is no word at all.
    raw->store(i % 2 == 0 ? liar.held.permit.value() << 24 | i << 2 | 2 : ~i);
    raw[1].store(0);
    h_.now += absl::Seconds(1);
    h_.Tick();
  }
  EXPECT_TRUE(h_.Answered(waits));
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_EQ(h_.Pool().revoked_total, 1u);
  // Its word is of no interest any more.
  raw->store(liar.held.permit.value() << 24 | 1);
  Peer c = h_.Open();
  const CallId third = h_.Acquire(c, Ask("1"));
  h_.now += absl::Seconds(1);
  h_.Tick();
  EXPECT_FALSE(h_.Answered(third));
  EXPECT_EQ(h_.Pool().out, 1u);
}

TEST_F(CoreKeptTest, AStrangersReleaseOfWhatIsKeptChangesNothing) {
  Keeper a(h_);
  a.Acquire();
  a.Put();
  Peer b = h_.Open();
  EXPECT_FALSE(h_.Get<ReleaseResult>(h_.ReleaseIfIdle(b, a.held.acquisition)).returned);
  EXPECT_TRUE(a.Take());
}

TEST_F(CoreKeptTest, AProcessHasOnePageForItsStreamsAndItsPermit) {
  Keeper a(h_);
  h_.Get<OpenStreamResult>(h_.OpenStream(a.peer));
  EXPECT_EQ(h_.pages.size(), 1u);
  Peer b = h_.Open();
  h_.Get<OpenStreamResult>(h_.OpenStream(b));
  Keeper keeper(h_, b);
  EXPECT_EQ(h_.pages.size(), 2u);
  EXPECT_TRUE(keeper.Acquire().kept);
  for (const Peer& peer : {a.peer, b}) {
    h_.HangUp(peer);
    h_.Gone(peer);
  }
  EXPECT_TRUE(h_.pages.empty());
}

}  // namespace
}  // namespace berth::core
