// Notices about the end of leases, and the drain before a stop.

#include <functional>
#include <string>
#include <vector>

#include <berth/end_notice.h>
#include <berth/error.h>

#include "daemon/core/testing/core_harness.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

AcquireRequest One(const std::string& key) {
  return {.pool = "gpu-tests", .units = 1, .holder_key = key, .wait = true, .deadline = absl::InfiniteFuture()};
}

// Returns the end notice in the last delivery of that kind on the peer's channel.
EndNotice NoticesTo(const CoreHarness& h, const Peer& peer, attach::DeliveryKind what) {
  EndNotice notified;
  for (const Deliver& deliver : h.deliveries) {
    if (deliver.channel != peer.channel || deliver.delivery.what != what) continue;
    notified = {.reason = static_cast<EndReason>(deliver.delivery.why),
                .uid = static_cast<uint32_t>(deliver.delivery.owner)};
  }
  return notified;
}

TEST(CoreEndTest, EachStopNamesReasonAndOperator) {
  struct Way {
    const char* name;
    attach::DeliveryKind what;
    EndNotice notified;
    std::function<void(CoreHarness&, Peer&, const AcquireResult&)> end;
  };
  const std::vector<Way> ways = {
      {"revoked", attach::DeliveryKind::kRevoked, {EndReason::kRevoked, 7},
       [](CoreHarness& h, Peer&, const AcquireResult& held) {
         h.Do([&](Core& core, Effects* effects) {
           EXPECT_TRUE(core.RevokePermit(h.now, held.permit, effects, /*by_uid=*/7).ok());
         });
       }},
      {"hold limit", attach::DeliveryKind::kRevoked, {EndReason::kHoldLimit, 0},
       [](CoreHarness& h, Peer&, const AcquireResult&) {
         h.Do([&](Core& core, Effects* effects) {
           EXPECT_TRUE(core.SetPool(h.now, "gpu-tests", {.hold_limit = absl::Seconds(1)}, effects).ok());
         });
         h.now += absl::Seconds(2);
         h.Tick();
       }},
      {"ended by an operator", attach::DeliveryKind::kEnded, {EndReason::kSessionEnded, 0},
       [](CoreHarness& h, Peer& peer, const AcquireResult&) {
         Peer boss = h.Open(0);
         Caller caller = boss.caller();
         caller.admin = true;
         h.Do([&](Core& core, Effects* effects) {
           EXPECT_TRUE(core.EndSession(h.now, caller, peer.session, effects).ok());
         });
       }},
      {"lifeline closed", attach::DeliveryKind::kEnded, {EndReason::kLifelineClosed, 0},
       [](CoreHarness& h, Peer& peer, const AcquireResult&) { h.HangUp(peer); }},
      {"lifeline lost", attach::DeliveryKind::kEnded, {EndReason::kStateLost, 0},
       [](CoreHarness& h, Peer& peer, const AcquireResult&) {
         h.Do([&](Core& core, Effects* effects) {
           core.LifelineHungUp(h.now, peer.session, effects, EndReason::kStateLost);
         });
       }},
  };
  for (const Way& way : ways) {
    CoreHarness h;
    Peer holder = h.Open();
    Peer sibling = h.JoinTo(holder);
    const AcquireResult held = h.MustAcquire(holder, One("1"));
    way.end(h, holder, held);
    EXPECT_EQ(NoticesTo(h, holder, way.what), way.notified) << way.name;
    EXPECT_EQ(NoticesTo(h, sibling, way.what), way.notified) << way.name;
  }
}

TEST(CoreEndTest, ProcessEndingItsSessionGetsNoReason) {
  CoreHarness h;
  Peer ender = h.Open();
  Peer sibling = h.JoinTo(ender);
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.EndSession(h.now, ender.caller(), SessionId(), effects).ok());
  });
  EXPECT_EQ(NoticesTo(h, ender, attach::DeliveryKind::kEnded), EndNotice());
  EXPECT_EQ(NoticesTo(h, sibling, attach::DeliveryKind::kEnded).reason, EndReason::kEndedByOwnProcess);
}

class CoreStopTest : public ::testing::Test {
 protected:
  CoreStopTest() : boss_(h_.Open(0)) {}

  CallId Drain(absl::Duration patience) {
    Caller caller = boss_.caller();
    caller.admin = true;
    return h_.Ask([&](Core& core, CallId call, Effects* effects) {
      core.DrainToStop(h_.now, call, caller, h_.now + patience, effects);
    });
  }

  CoreHarness h_;
  Peer boss_;
};

TEST_F(CoreStopTest, DrainGrantsNothingAndEndsWithLastLease) {
  Peer holder = h_.Open(), other = h_.Open();
  const AcquireResult held = h_.MustAcquire(holder, One("1"));
  const AllocateResult block = h_.MustAllocate(holder, MiB(2));
  const CallId drain = Drain(absl::InfiniteDuration());
  const CallId waiting = h_.Acquire(other, One("1"));
  EXPECT_FALSE(h_.Answered(waiting)) << "one of two units is free";
  EXPECT_TRUE(h_.core->stopping());
  const auto waiters = h_.core->ListWaiters(h_.Admin(), "gpu-tests");
  ASSERT_EQ(waiters.size(), 1u);
  EXPECT_EQ(h_.core->ExplainWait(h_.Admin(), waiters[0].number)->cause, WaitCause::kStopping);
  AcquireRequest impatient = One("2");
  impatient.wait = false;
  EXPECT_TRUE(h_.Refused(h_.Acquire(other, impatient), Reason::kNoPermit));
  // The holder can still nest and allocate.
  const AcquireResult nested = h_.MustAcquire(holder, One("1"));
  h_.Release(holder, nested.acquisition);
  h_.Release(holder, held.acquisition);
  EXPECT_FALSE(h_.Answered(drain)) << "there is a block";
  h_.Free(holder, block.block.handle, {block.import});
  ASSERT_TRUE(h_.Answered(drain));
  EXPECT_EQ(h_.Get<DrainResult>(drain).out.units, 0u);
  EXPECT_EQ(h_.Get<DrainResult>(drain).out.waiters, 1u);
  EXPECT_FALSE(h_.Answered(waiting)) << "nothing is granted between this and the stop";
}

TEST_F(CoreStopTest, DrainTimesOutAndReportsLiveLeases) {
  Peer holder = h_.Open();
  h_.MustAcquire(holder, One("1"));
  h_.MustAllocate(holder, MiB(2));
  const CallId drain = Drain(absl::Seconds(5));
  EXPECT_FALSE(h_.Answered(drain));
  EXPECT_EQ(h_.core->next_deadline(), h_.now + absl::Seconds(5));
  h_.now += absl::Seconds(5);
  h_.Tick();
  const OutCounts out = h_.Get<DrainResult>(drain).out;
  EXPECT_EQ(out.sessions, 1u);
  EXPECT_EQ(out.units, 1u);
  EXPECT_EQ(out.blocks, 1u);
  EXPECT_EQ(out.bytes, MiB(2));
}

TEST_F(CoreStopTest, CancelledDrainGrantsAgain) {
  Peer holder = h_.Open(), other = h_.Open();
  h_.MustAcquire(holder, One("1"));
  const CallId drain = Drain(absl::InfiniteDuration());
  const CallId waiting = h_.Acquire(other, One("1"));
  h_.Do([&](Core& core, Effects* effects) { core.CancelCall(h_.now, drain, effects); });
  EXPECT_TRUE(h_.Refused(drain, Reason::kCancelled));
  EXPECT_TRUE(h_.StatusOf(waiting).ok());
  EXPECT_FALSE(h_.core->stopping());
}

TEST_F(CoreStopTest, OnlyOperatorDrains) {
  Peer tenant = h_.Open();
  const CallId drain = h_.Ask([&](Core& core, CallId call, Effects* effects) {
    core.DrainToStop(h_.now, call, tenant.caller(), h_.now, effects);
  });
  EXPECT_TRUE(h_.Refused(drain, Reason::kAdminOnly));
  EXPECT_TRUE(h_.StatusOf(h_.Acquire(tenant, One("1"))).ok());
}

}  // namespace
}  // namespace berth::core
