// Lease records. CoreHarness checks in every test that each lease is reported once at its grant and once at its end.

#include <algorithm>
#include <string>
#include <vector>

#include <berth/error.h>

#include "daemon/core/testing/core_harness.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

const LeaseRecord& Last(const CoreHarness& h) { return h.leases.back(); }

AcquireRequest One(const std::string& key = "a") { return {.pool = "gpu-tests", .holder_key = key, .label = "job"}; }

TEST(CoreLeaseTest, PermitRecordNamesHolderWaitAndHoldTime) {
  CoreHarness h;
  Peer holder = h.Open(), peer = h.Open(1001);
  const AcquireResult first = h.MustAcquire(holder, {.pool = "gpu-tests", .units = 2});
  const CallId call = h.Acquire(peer, One());
  h.now += absl::Seconds(3);
  h.Release(holder, first.acquisition);
  EXPECT_EQ(h.leases.at(1).end, LeaseEnd::kReleased);
  EXPECT_EQ(h.leases.at(1).held, absl::Seconds(3));
  const LeaseRecord granted = Last(h);
  EXPECT_EQ(granted.kind, LeaseKind::kPermit);
  EXPECT_EQ(granted.id, h.Get<AcquireResult>(call).permit.value());
  EXPECT_EQ(granted.session, peer.session);
  EXPECT_EQ(granted.tenant, peer.tenant);
  EXPECT_EQ(granted.process.name, "tester");
  EXPECT_EQ(granted.label, "job");
  EXPECT_EQ(granted.pool, "gpu-tests");
  EXPECT_EQ(granted.units, 1u);
  EXPECT_EQ(granted.waited, absl::Seconds(3));
  // A nested acquisition is not a lease.
  const size_t notified = h.leases.size();
  h.Release(peer, h.MustAcquire(peer, One()).acquisition);
  EXPECT_EQ(h.leases.size(), notified);
  h.now += absl::Seconds(2);
  h.Release(peer, h.Get<AcquireResult>(call).acquisition);
  EXPECT_EQ(Last(h).held, absl::Seconds(2));
  EXPECT_EQ(Last(h).waited, absl::Seconds(3));
}

TEST(CoreLeaseTest, PermitEndHasItsReason) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[0].hold_limit = absl::Seconds(30);
  CoreHarness h(config);
  Peer peer = h.Open();
  const AcquireResult revoked = h.MustAcquire(peer, One());
  h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.RevokePermit(h.now, revoked.permit, effects).ok()); });
  EXPECT_EQ(Last(h).end, LeaseEnd::kRevoked);
  h.MustAcquire(peer, One());
  h.now += absl::Seconds(30);
  h.Tick();
  EXPECT_EQ(Last(h).end, LeaseEnd::kExpired);
  h.MustAcquire(peer, One());
  h.Forget(peer, peer.sequence);
  EXPECT_EQ(Last(h).end, LeaseEnd::kForgotten);
  h.MustAcquire(peer, One());
  h.HangUp(peer);
  EXPECT_EQ(Last(h).end, LeaseEnd::kNone);
  h.Gone(peer);
  EXPECT_EQ(Last(h).end, LeaseEnd::kSessionEnd);
}

TEST(CoreLeaseTest, CachedPermitEndsAsTakenBack) {
  CoreHarness h;
  Peer cacher = h.Open(), other = h.Open();
  h.KeepPermits(cacher);
  AcquireRequest keep = One();
  keep.keep = true;
  const AcquireResult cached = h.MustAcquire(cacher, keep);
  h.permit_slots[cacher.channel].Put(cached.permit.value());
  h.MustAcquire(other, {.pool = "gpu-tests", .units = 2});
  EXPECT_EQ(h.leases.at(1).end, LeaseEnd::kTakenBack);
  EXPECT_EQ(h.leases.at(1).id, cached.permit.value());
}

TEST(CoreLeaseTest, GangsPermitsAndBytesAreSeparateLeases) {
  CoreHarness h;
  Peer peer = h.Open();
  const GangResult gang = h.Get<GangResult>(
      h.AcquireGang(peer, {.members = {{.pool = "gpu-tests"}, {.pool = "wide", .units = 2}},
                           .reserve = {{.bytes = MiB(2)}, {.device = 1, .bytes = MiB(4)}},
                           .holder_key = "g"}));
  ASSERT_EQ(h.leases.size(), 3u);
  const LeaseRecord& reservation = h.leases[2];
  EXPECT_EQ(reservation.kind, LeaseKind::kReservation);
  EXPECT_EQ(reservation.id, gang.reservation->id.value());
  EXPECT_EQ(reservation.bytes, MiB(6));
  EXPECT_EQ(reservation.devices, "DEVICE-0,DEVICE-1");
  h.Forget(peer, peer.sequence);
  ASSERT_EQ(h.leases.size(), 6u);
  for (size_t i = 3; i < 6; ++i) EXPECT_EQ(h.leases[i].end, LeaseEnd::kForgotten);
}

TEST(CoreLeaseTest, BlockLeaseEndsWithItsOwner) {
  CoreHarness h;
  Peer owner = h.Open(), guest = h.Open();
  const CallId call = h.Allocate(owner, {.device = 1, .bytes = Bytes(1), .label = "b"});
  h.now += absl::Seconds(1);
  h.WorkAll();
  const AllocateResult made = h.Get<AllocateResult>(call);
  EXPECT_EQ(Last(h).kind, LeaseKind::kBlock);
  EXPECT_EQ(Last(h).id, made.block.handle.block.value());
  EXPECT_EQ(Last(h).bytes, MiB(2));
  EXPECT_EQ(Last(h).devices, "DEVICE-1");
  EXPECT_EQ(Last(h).waited, absl::Seconds(1));
  EXPECT_EQ(Last(h).process.name, "tester");
  h.Grant(owner, made.block.handle, guest.session);
  h.Get<ImportResult>(h.Import(guest, made.block.handle));
  h.now += absl::Seconds(5);
  h.Free(owner, made.block.handle, {made.import});
  EXPECT_EQ(Last(h).end, LeaseEnd::kReleased) << "whoever still maps it";
  EXPECT_EQ(Last(h).held, absl::Seconds(5));
  const AllocateResult second = h.MustAllocate(owner, MiB(2));
  h.Do([&](Core& core, Effects* effects) {
    EXPECT_TRUE(core.FreeById(h.now, owner.caller(), second.block.handle.block, effects).ok());
  });
  EXPECT_EQ(Last(h).end, LeaseEnd::kById);
  h.MustAllocate(owner, MiB(2));
  h.HangUp(owner);
  h.Gone(owner);
  EXPECT_EQ(Last(h).end, LeaseEnd::kSessionEnd);
}

TEST(CoreLeaseTest, PublishedBlockOutlivesSessionUntilUnpublished) {
  CoreHarness h;
  Peer owner = h.Open();
  const AllocateResult made = h.MustAllocate(owner, MiB(2));
  h.Publish(owner, made.block.handle, "weights", {made.import});
  const size_t notified = h.leases.size();
  h.HangUp(owner);
  h.Gone(owner);
  EXPECT_EQ(h.leases.size(), notified);
  Peer later = h.Open();
  h.Unpublish(later, "weights");
  EXPECT_EQ(Last(h).end, LeaseEnd::kReleased);
  EXPECT_EQ(Last(h).session, SessionId());
  EXPECT_EQ(Last(h).tenant, owner.tenant);
}

TEST(CoreLeaseTest, ReservationExpiresAtItsTime) {
  CoreHarness h;
  Peer peer = h.Open();
  h.Reserve(peer, {.items = {{.bytes = MiB(4)}}, .label = "brief", .ttl = absl::Seconds(5)});
  EXPECT_EQ(Last(h).label, "brief");
  h.now += absl::Seconds(5);
  h.Tick();
  EXPECT_EQ(Last(h).end, LeaseEnd::kExpired);
  EXPECT_EQ(Last(h).bytes, MiB(4));
}

TEST(CoreLeaseTest, PlanAndReplanAreSameLease) {
  CoreHarness h;
  Peer peer = h.Open();
  const PlanId plan =
      h.Get<PlanResult>(h.MakePlan(peer, {.units = 10, .label = "split", .bytes_per_unit = Bytes(1), .reserve = true}))
          .layout->id;
  EXPECT_EQ(Last(h).kind, LeaseKind::kPlan);
  EXPECT_EQ(Last(h).id, plan.value());
  EXPECT_EQ(Last(h).units, 10u);
  EXPECT_EQ(Last(h).label, "split");
  EXPECT_FALSE(Last(h).devices.empty());
  h.now += absl::Seconds(7);
  h.StopDevice(0);
  h.Replan(peer, plan);
  EXPECT_TRUE(h.open_leases.contains({LeaseKind::kPlan, plan.value()}));
  h.now += absl::Seconds(1);
  h.ReleasePlan(peer, plan);
  const auto ended = std::find_if(h.leases.rbegin(), h.leases.rend(),
                                  [](const LeaseRecord& lease) { return lease.kind == LeaseKind::kPlan; });
  EXPECT_EQ(ended->end, LeaseEnd::kReleased);
  EXPECT_EQ(ended->held, absl::Seconds(8));
  EXPECT_TRUE(h.open_leases.empty());
}

TEST(CoreLeaseTest, RestartPreservesLeasesAndWaitStart) {
  CoreHarness h;
  Peer holder = h.Open(), peer = h.Open();
  h.MustAcquire(holder, {.pool = "gpu-tests", .units = 2});
  const AllocateResult large = h.MustAllocate(holder, MiB(16));
  AllocateRequest waits{.bytes = MiB(16), .label = "waits", .wait = true};
  waits.deadline = h.now + absl::Hours(1);
  h.Allocate(peer, waits);
  h.now += absl::Seconds(10);
  h.Restart();
  EXPECT_EQ(h.core->ListLeases().size(), 2u);
  --peer.sequence;
  const CallId again = h.Allocate(peer, waits);
  h.now += absl::Seconds(5);
  h.Free(holder, large.block.handle, {large.import});
  h.WorkAll();
  EXPECT_TRUE(h.Answered(again));
  EXPECT_EQ(Last(h).kind, LeaseKind::kBlock);
  EXPECT_EQ(Last(h).waited, absl::Seconds(15));
}

}  // namespace
}  // namespace berth::core
