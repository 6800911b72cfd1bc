// The core after the daemon lost every socket: Detach() and Rejoined().

#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "daemon/core/testing/core_harness.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

AcquireRequest One() { return {.pool = "gpu-tests"}; }

class DetachTest : public testing::Test {
 protected:
  // A new daemon continues, without the peers' sockets.
  void Detach(const std::vector<Peer>& peers, bool unproven = false, bool unseen = false) {
    // The restart restores what was written down.
    h_.Tick();
    h_.Restart();
    Core::Detached detached;
    for (const Peer& peer : peers) {
      detached.sessions.push_back(peer.session);
      if (unseen) detached.unseen.push_back(peer.session);
      if (unseen) detached.awaited.push_back(peer.session);
      detached.processes.push_back(peer.channel);
      if (unproven) detached.unproven.push_back(peer.channel);
    }
    h_.Do([&](Core& core, Effects* effects) { core.Detach(h_.now, detached, effects); });
    EXPECT_TRUE(h_.core->CheckInvariants().ok()) << h_.core->CheckInvariants();
  }
  bool IsKnown(const Peer& peer) const {
    for (const RestoredState::Lifeline& lifeline : h_.core->WhatStands().lifelines) {
      if (lifeline.session == peer.session) return true;
    }
    return false;
  }
  void Pass(absl::Duration time) {
    h_.now += time;
    h_.Tick();
  }
  absl::Status CheckRejoin(const Peer& peer, const Secret& secret, ChannelId channel) {
    return h_.core->CheckRejoin(peer.session, secret, peer.tenant, channel);
  }
  void EndByOperator(const Peer& peer) {
    h_.Do([&](Core& core, Effects* effects) {
      // An operator's caller needs a session of its own.
      Caller caller = operator_.caller();
      caller.admin = true;
      ASSERT_TRUE(core.EndSession(h_.now, caller, peer.session, effects).ok());
    });
  }

  CoreHarness h_;
  Peer operator_ = h_.Open(7);
};

TEST_F(DetachTest, DetachedProcessKeepsAndReleasesPermit) {
  Peer peer = h_.Open();
  const AcquireResult held = h_.MustAcquire(peer, One());
  Detach({peer});
  EXPECT_EQ(h_.Pool().out, 1u);
  EXPECT_TRUE(CheckRejoin(peer, peer.secret, peer.channel).ok());
  h_.Get<ReleaseResult>(h_.Release(peer, held.acquisition));
  EXPECT_EQ(h_.Pool().out, 0u);
}

TEST_F(DetachTest, ProcessEndReturnsItsPermits) {
  Peer peer = h_.Open();
  h_.MustAcquire(peer, One());
  Detach({peer});
  h_.HangUp(peer);
  EXPECT_EQ(h_.Pool().out, 1u) << "the process lives";
  h_.Gone(peer);
  EXPECT_EQ(h_.Pool().out, 0u);
}

TEST_F(DetachTest, CachedPermitIsReleasedLikeAnyOther) {
  Peer peer = h_.Open();
  h_.KeepPermits(peer);
  AcquireRequest keep = One();
  keep.keep = true;
  const AcquireResult held = h_.MustAcquire(peer, keep);
  Detach({peer});
  EXPECT_FALSE(h_.pages.contains(peer.channel)) << "its page is another's now";
  EXPECT_EQ(h_.Pool().out, 1u);
  h_.Get<ReleaseResult>(h_.Release(peer, held.acquisition));
  EXPECT_EQ(h_.Pool().out, 0u);
}

// A process calls the next daemon before its side channel has rejoined: it then caches permits in its earlier page.
TEST_F(DetachTest, ProcessCachesNothingBeforeItMapsItsNextPage) {
  Peer peer = h_.Open(), holder = h_.Open();
  peer.takes_up = true;
  h_.KeepPermits(peer);
  Detach({peer, holder});
  const AcquireResult all = h_.MustAcquire(holder, {.pool = "gpu-tests", .units = 2});
  AcquireRequest keep = One();
  keep.keep = true;
  const CallId waiting = h_.Acquire(peer, keep);
  ASSERT_TRUE(h_.pages.contains(peer.channel));
  const uint64_t page = h_.deliveries.back().delivery.number;
  h_.Get<ReleaseResult>(h_.Release(holder, all.acquisition));
  const auto before = h_.Get<AcquireResult>(waiting);
  EXPECT_FALSE(before.cached);
  h_.Get<ReleaseResult>(h_.Release(peer, before.acquisition));
  h_.Do([&](Core& core, Effects* effects) { core.Rejoined(h_.now, peer.channel, effects); });
  h_.Acknowledge(peer, page);
  EXPECT_TRUE(h_.MustAcquire(peer, keep).cached);
}

TEST_F(DetachTest, LeaseDeliveriesAreResentAfterRejoin) {
  Peer peer = h_.Open();
  const AcquireResult held = h_.MustAcquire(peer, One());
  Detach({peer});
  h_.Do([&](Core& core, Effects* effects) { ASSERT_TRUE(core.RevokePermit(h_.now, held.permit, effects).ok()); });
  h_.deliveries.clear();
  h_.Do([&](Core& core, Effects* effects) { core.Rejoined(h_.now, peer.channel, effects); });
  ASSERT_EQ(h_.deliveries.size(), 1u);
  EXPECT_EQ(h_.deliveries.front().delivery.what, attach::DeliveryKind::kRevoked);
  EXPECT_EQ(h_.deliveries.front().delivery.number, 1u);
}

TEST_F(DetachTest, BlockDeliveriesAreDropped) {
  Peer owner = h_.Open();
  Peer importer = h_.JoinTo(owner);
  const AllocateResult block = h_.MustAllocate(owner, MiB(2));
  h_.Get<ImportResult>(h_.Import(importer, block.block.handle));
  Detach({owner, importer});
  h_.deliveries.clear();
  h_.Do([&](Core& core, Effects* effects) { core.Rejoined(h_.now, importer.channel, effects); });
  EXPECT_TRUE(h_.deliveries.empty());
}

TEST_F(DetachTest, BrokerContinuesAfterDroppedDeliveries) {
  Peer owner = h_.Open();
  Peer importer = h_.JoinTo(owner);
  const AllocateResult block = h_.MustAllocate(owner, MiB(2));
  const AcquireResult first = h_.MustAcquire(importer, {.pool = "wide"});
  const auto revoke = [&](PermitId permit) {
    h_.Do([&](Core& core, Effects* effects) { ASSERT_TRUE(core.RevokePermit(h_.now, permit, effects).ok()); });
  };
  revoke(first.permit);
  h_.Get<ImportResult>(h_.Import(importer, block.block.handle));
  revoke(h_.MustAcquire(importer, {.pool = "wide"}).permit);
  Detach({owner, importer});
  h_.Restart();
  h_.deliveries.clear();
  h_.Do([&](Core& core, Effects* effects) { core.Rejoined(h_.now, importer.channel, effects); });
  ASSERT_EQ(h_.deliveries.size(), 2u) << "of the revocations, and not of the block in between";
  EXPECT_EQ(h_.deliveries.front().delivery.number, 1u);
  EXPECT_EQ(h_.deliveries.back().delivery.number, 3u);
}

TEST_F(DetachTest, RejectedRejoinNamesReason) {
  Peer peer = h_.Open();
  Peer other = h_.Open(2);
  Peer hung_up = h_.JoinTo(peer);
  h_.HangUpChannel(hung_up);
  Detach({peer});
  struct Case {
    const char* name;
    const Peer* session;
    const Peer* secret;
    ChannelId channel;
    Reason reason;
  };
  for (const Case& test : {Case{"another's secret", &peer, &other, peer.channel, Reason::kBadCredentials},
                           Case{"another's session", &other, &peer, other.channel, Reason::kBadCredentials},
                           Case{"another session's channel", &peer, &peer, other.channel, Reason::kNotJoined},
                           Case{"no channel", &peer, &peer, ChannelId(4711), Reason::kNotJoined},
                           Case{"a channel that hung up", &peer, &peer, hung_up.channel, Reason::kNotJoined}}) {
    SCOPED_TRACE(test.name);
    const absl::Status refused = CheckRejoin(*test.session, test.secret->secret, test.channel);
    EXPECT_TRUE(IsRefusal(refused, test.reason)) << refused;
  }
  EXPECT_TRUE(CheckRejoin(peer, peer.secret, ChannelId()).ok()) << "the lifeline";
  h_.HangUp(peer);
  EXPECT_TRUE(IsRefusal(CheckRejoin(peer, peer.secret, ChannelId()), Reason::kSessionEnded));
}

TEST_F(DetachTest, AwayProcessIsNotifiedOfSessionEnd) {
  Peer peer = h_.Open();
  h_.MustAcquire(peer, One());
  Detach({peer});
  EndByOperator(peer);
  // Another daemon restores the notice.
  h_.Restart();
  ASSERT_TRUE(CheckRejoin(peer, peer.secret, peer.channel).ok());
  const absl::Status refused = h_.StatusOf(h_.Acquire(peer, One()));
  EXPECT_TRUE(IsRefusal(refused, Reason::kSessionEnded)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "an operator (uid 7) ended its session")) << refused;
  h_.deliveries.clear();
  h_.Do([&](Core& core, Effects* effects) { core.Rejoined(h_.now, peer.channel, effects); });
  ASSERT_EQ(h_.deliveries.size(), 1u);
  EXPECT_EQ(h_.deliveries[0].delivery.what, attach::DeliveryKind::kEnded);
  EXPECT_EQ(h_.deliveries[0].delivery.why, static_cast<uint64_t>(EndReason::kSessionEnded));
}

TEST_F(DetachTest, OperatorReleasesLeaseWithoutProvableEnd) {
  for (const bool unproven : {false, true}) {
    SCOPED_TRACE(unproven);
    Peer peer = h_.Open();
    h_.MustAcquire(peer, One());
    Detach({peer}, unproven);
    EndByOperator(peer);
    EXPECT_EQ(h_.Pool().out, unproven ? 0u : 1u);
    if (!unproven) h_.Gone(peer);
    EXPECT_EQ(h_.Pool().out, 0u);
  }
}

TEST_F(DetachTest, RejoinedProcessIsProvableAgain) {
  Peer peer = h_.Open();
  h_.MustAcquire(peer, One());
  Detach({peer}, /*unproven=*/true);
  EXPECT_TRUE(h_.core->WhatStands().processes.back().unproven);
  h_.Do([&](Core& core, Effects* effects) { core.Rejoined(h_.now, peer.channel, effects); });
  EndByOperator(peer);
  EXPECT_EQ(h_.Pool().out, 1u) << "its end can be waited for";
}

// A daemon that took the pid for one of its own namespace would count the process as ended.
TEST_F(DetachTest, PidOfUnprovenProcessIsForgotten) {
  Peer peer = h_.Open();
  EXPECT_NE(h_.core->WhatStands().processes.back().process.pid, 0);
  Detach({peer}, /*unproven=*/true);
  h_.Do([&](Core& core, Effects* effects) { core.Rejoined(h_.now, peer.channel, effects); });
  h_.Restart();
  EXPECT_FALSE(h_.core->WhatStands().processes.back().unproven);
  EXPECT_EQ(h_.core->WhatStands().processes.back().process.pid, 0);
}

TEST_F(DetachTest, DetachedMarksOutliveBroker) {
  Peer peer = h_.Open();
  h_.Do([&](Core& core, Effects*) { core.RecordSessionCredentials(h_.now, peer.session, 4711); });
  Detach({peer}, /*unproven=*/true);
  h_.Restart();
  const RestoredState restored_state = h_.core->WhatStands();
  EXPECT_EQ(restored_state.lifelines.back().session_credentials, 4711u);
  EXPECT_TRUE(restored_state.lifelines.back().detached);
  EXPECT_FALSE(restored_state.lifelines.front().detached);
  EXPECT_TRUE(restored_state.processes.back().unproven);
}

TEST_F(DetachTest, UnseenSessionEndsOnceNothingOfItCounts) {
  Peer peer = h_.Open();
  const AcquireResult held = h_.MustAcquire(peer, One());
  const auto is_known = [&] { return IsKnown(peer); };
  const auto end_if_unused = [&] {
    h_.Do([&](Core& core, Effects* effects) { core.EndIfUnused(h_.now, peer.session, effects); });
  };
  Detach({peer}, /*unproven=*/false, /*unseen=*/true);
  h_.Restart();
  EXPECT_EQ(h_.core->WhatStands().lifelines.back().opener.pid, 0) << "nor is it seen by a later daemon";
  end_if_unused();
  EXPECT_TRUE(is_known()) << "a process is connected, and a permit is held";
  h_.Get<ReleaseResult>(h_.Release(peer, held.acquisition));
  end_if_unused();
  EXPECT_TRUE(is_known()) << "a process is connected";
  const AcquireResult again = h_.MustAcquire(peer, One());
  h_.HangUpChannel(peer);
  end_if_unused();
  EXPECT_TRUE(is_known()) << "an unseen process may use the permit";
  EXPECT_EQ(h_.Pool().out, 1u);
  h_.Do([&](Core& core, Effects* effects) { ASSERT_TRUE(core.RevokePermit(h_.now, again.permit, effects).ok()); });
  EndByOperator(peer);
  h_.Gone(peer);
  EXPECT_FALSE(is_known());
  EXPECT_EQ(h_.Pool().out, 0u);

  Peer idle = peer = h_.Open();
  Detach({idle}, /*unproven=*/false, /*unseen=*/true);
  h_.HangUpChannel(idle);
  end_if_unused();
  EXPECT_FALSE(is_known());
}

TEST_F(DetachTest, UnseenSessionWithoutLeaseEndsUnlessItReturns) {
  constexpr absl::Duration kTime = absl::Seconds(10);
  Peer idle = h_.Open(), holder = h_.Open(), planner = h_.Open(), owner = h_.Open();
  Peer process_returns = h_.Open(), lifeline_returns = h_.Open();
  Peer importer = h_.Open();
  const AcquireResult held = h_.MustAcquire(holder, One());
  h_.Get<PlanResult>(h_.MakePlan(planner, {.units = 4, .max_devices = 1}));
  const AllocateResult block = h_.MustAllocate(owner, MiB(2));
  h_.Grant(owner, block.block.handle, importer.session);
  h_.Get<ImportResult>(h_.Import(importer, block.block.handle));
  const std::vector<Peer> all = {idle, holder, planner, owner, process_returns, lifeline_returns, importer};
  Detach(all, /*unproven=*/true, /*unseen=*/true);
  Pass(kTime - absl::Milliseconds(1));
  for (const Peer& peer : all) EXPECT_TRUE(IsKnown(peer)) << peer.session.value();
  h_.Do([&](Core& core, Effects* effects) { core.Rejoined(h_.now, process_returns.channel, effects); });
  h_.Do([&](Core& core, Effects* effects) { core.LifelineRejoined(h_.now, lifeline_returns.session, effects); });
  EXPECT_EQ(h_.core->next_deadline(), h_.now + absl::Milliseconds(1));
  Pass(absl::Milliseconds(1));
  EXPECT_FALSE(IsKnown(idle));
  EXPECT_TRUE(IsRefusal(CheckRejoin(idle, idle.secret, idle.channel), Reason::kBadCredentials));
  Pass(absl::Hours(1));
  for (const Peer& peer : all) EXPECT_EQ(IsKnown(peer), peer.session != idle.session) << peer.session.value();
  EXPECT_EQ(h_.Pool().out, 1u);
  // A session without a lease left ends, too.
  h_.Do([&](Core& core, Effects* effects) { ASSERT_TRUE(core.RevokePermit(h_.now, held.permit, effects).ok()); });
  EXPECT_TRUE(IsKnown(holder));
  Pass(kTime);
  EXPECT_FALSE(IsKnown(holder));
  EndByOperator(planner);
  EXPECT_FALSE(IsKnown(planner));
}

TEST_F(DetachTest, UnseenSessionEndsWithItsLastConnectedProcess) {
  Peer peer = h_.Open();
  const Peer lost = h_.JoinTo(peer);
  Detach({peer, lost}, /*unproven=*/true, /*unseen=*/true);
  h_.Do([&](Core& core, Effects* effects) { core.LifelineRejoined(h_.now, peer.session, effects); });
  h_.Do([&](Core& core, Effects* effects) { core.Rejoined(h_.now, peer.channel, effects); });
  Pass(absl::Hours(1));
  h_.HangUpChannel(peer);
  h_.Gone(peer);
  h_.Do([&](Core& core, Effects* effects) { core.EndIfUnused(h_.now, peer.session, effects); });
  EXPECT_TRUE(IsKnown(peer)) << "the other process may return";
  Pass(absl::Seconds(10));
  EXPECT_FALSE(IsKnown(peer));
}

}  // namespace
}  // namespace berth::core
