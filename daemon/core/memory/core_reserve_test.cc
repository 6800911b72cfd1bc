#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

struct ReserveHarness : CoreHarness {
  explicit ReserveHarness(const Config& config = DefaultConfig()) : CoreHarness(config) {}
  ReservationView MustReserve(Peer& peer, const ReserveRequest& request) {
    return Get<ReserveResult>(Reserve(peer, request)).reservation;
  }
  CallId Draw(Peer& peer, ReservationId id, Bytes bytes, uint32_t device = 0) {
    return Allocate(peer, {.device = device, .bytes = bytes, .reservation = id});
  }
  uint64_t Left(size_t claim = 0) const {
    return core->ListReservations(Admin()).at(0).claims.at(claim).left.count();
  }
};

TEST(CoreReserveTest, ReservedBytesCountForAllAndAreDrawnExactly) {
  ReserveHarness h;
  Peer a = h.Open(), b = h.Open(1001);
  const ReservationView reservation = h.MustReserve(a, {.items = {{.bytes = Bytes(MiB(10).count() - 1)}}});
  ASSERT_EQ(reservation.claims.size(), 1);
  EXPECT_EQ(reservation.claims[0].bytes, MiB(10));
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(10));
  EXPECT_TRUE(h.Refused(h.Allocate(b, MiB(8)), Reason::kOverBudget));
  // The session itself must draw from its reservation to use these bytes.
  EXPECT_TRUE(h.Refused(h.Allocate(a, MiB(8)), Reason::kOverBudget));
  const CallId first = h.Draw(a, reservation.id, Bytes(1));
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(10));
  h.WorkAll();
  const AllocateResult drawn = h.Get<AllocateResult>(first);
  EXPECT_EQ(h.BytesOf(0).live, MiB(2));
  EXPECT_EQ(h.Left(), MiB(8).count());
  const std::string before = h.Accounts();
  const CallId over = h.Draw(a, reservation.id, MiB(10));
  EXPECT_TRUE(h.Refused(over, Reason::kOverBudget));
  EXPECT_EQ(h.NamedValue(over, "layer"), "reservation");
  EXPECT_EQ(h.NamedValue(over, "current"), std::to_string(MiB(2).count()));
  EXPECT_EQ(h.NamedValue(over, "remaining"), std::to_string(MiB(8).count()));
  EXPECT_EQ(h.NamedValue(over, "limit"), std::to_string(MiB(10).count()));
  EXPECT_TRUE(h.Refused(h.Draw(a, reservation.id, MiB(2), 1), Reason::kOverBudget));
  EXPECT_TRUE(h.Refused(h.Draw(b, reservation.id, MiB(2)), Reason::kNotFound));
  EXPECT_TRUE(h.Refused(h.Draw(a, ReservationId(4711), MiB(2)), Reason::kNotFound));
  EXPECT_EQ(h.Accounts(), before);
  // A drawn block is an ordinary block: its bytes do not return to the reservation when it is freed.
  h.Free(a, drawn.block.handle, {drawn.import});
  h.WorkAll();
  EXPECT_EQ(h.Left(), MiB(8).count());
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(8));
}

TEST(CoreReserveTest, ReservationOverDevicesIsAtomic) {
  ReserveHarness h;
  Peer a = h.Open();
  h.MustAllocate(a, MiB(10), 1);
  const std::string before = h.Accounts();
  const CallId refused =
      h.Reserve(a, {.items = {{.device = 0, .bytes = MiB(4)}, {.device = 1, .bytes = MiB(8)}}});
  EXPECT_TRUE(h.Refused(refused, Reason::kOverBudget));
  EXPECT_EQ(h.NamedValue(refused, "device"), "1");
  EXPECT_EQ(h.Accounts(), before);
  const ReservationView reservation =
      h.MustReserve(a, {.items = {{.device = 0, .bytes = MiB(4)},
                                  {.device_uuid = "DEVICE-1", .bytes = MiB(4)},
                                  {.device = 1, .bytes = MiB(2)}}});
  ASSERT_EQ(reservation.claims.size(), 2);
  EXPECT_EQ(reservation.claims[1].bytes, MiB(6));
  EXPECT_EQ(h.BytesOf(1).charged(), MiB(16));
}

TEST(CoreReserveTest, SecondReservationOfEverythingIsRejected) {
  ReserveHarness h;
  Peer a = h.Open(), b = h.Open();
  h.MustReserve(a, {.items = {{.bytes = MiB(16)}}});
  EXPECT_TRUE(h.Refused(h.Reserve(b, {.items = {{.bytes = MiB(16)}}}), Reason::kOverBudget));
}

TEST(CoreReserveTest, InnerLayersCountReservations) {
  ReserveHarness h;
  Peer a = h.Open();
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.session, .limit = MiB(4)}).ok());
  EXPECT_EQ(h.NamedValue(h.Reserve(a, {.items = {{.bytes = MiB(6)}}}), "layer"), "session");
  h.MustReserve(a, {.items = {{.bytes = MiB(4)}}});
  EXPECT_EQ(h.NamedValue(h.Allocate(a, MiB(2)), "layer"), "session");
  EXPECT_EQ(h.Budget(Layer::kSession, 0, a).peak, MiB(4));
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, a).bytes.reserved, MiB(4));
}

TEST(CoreReserveTest, ReservationWaitsForReleasesAndTakesWarmBytes) {
  Config config = CoreHarness::DefaultConfig();
  config.warm_blocks_per_size = 1;
  ReserveHarness h(config);
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(6));
  EXPECT_EQ(h.BytesOf(0).warm, MiB(6));
  h.Free(a, block.block.handle, {block.import});
  const CallId waiting = h.Reserve(a, {.items = {{.bytes = MiB(16)}}});
  EXPECT_FALSE(h.Answered(waiting));
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(16));
}

TEST(CoreReserveTest, UnusedBytesReturnAtReleaseExpiryAndSessionEnd) {
  ReserveHarness h;
  Peer a = h.Open(), b = h.Open();
  const ReservationView released = h.MustReserve(a, {.items = {{.bytes = MiB(8)}}});
  h.Draw(a, released.id, MiB(2));
  h.WorkAll();
  EXPECT_TRUE(h.Refused(h.ReleaseReservation(b, released.id), Reason::kNotFound));
  EXPECT_TRUE(h.StatusOf(h.ReleaseReservation(a, released.id)).ok());
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(2));
  EXPECT_TRUE(h.Refused(h.ReleaseReservation(a, released.id), Reason::kNotFound));

  h.MustReserve(a, {.items = {{.bytes = MiB(14)}}, .ttl = absl::Seconds(5)});
  const CallId waiting =
      h.Allocate(b, {.bytes = MiB(4), .wait = true, .deadline = h.now + absl::Seconds(20)});
  EXPECT_EQ(h.core->next_deadline(), h.now + absl::Seconds(5));
  h.now += absl::Seconds(5);
  h.Do([&](Core& core, Effects* effects) { core.Tick(h.now, effects); });
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(waiting).ok());

  h.MustReserve(a, {.items = {{.bytes = MiB(10)}}});
  h.HangUp(a);
  EXPECT_TRUE(h.core->ListReservations(h.Admin()).empty());
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(6));
}

TEST(CoreReserveTest, FailedDrawReturnsItsBytes) {
  ReserveHarness h;
  Peer a = h.Open();
  const ReservationView reservation = h.MustReserve(a, {.items = {{.bytes = MiB(8)}}});
  const CallId failed = h.Draw(a, reservation.id, MiB(4));
  EXPECT_EQ(h.Left(), MiB(4).count());
  h.WorkOnce(Refuse(Reason::kDriver, "no"));
  EXPECT_TRUE(h.Refused(failed, Reason::kDriver));
  EXPECT_EQ(h.Left(), MiB(8).count());
  // Forgotten during its creation: the bytes return once the memory is released.
  h.Draw(a, reservation.id, MiB(4));
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(a, a.sequence)).outcome, ForgetOutcome::kUndone);
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(8));
  h.WorkAll();
  EXPECT_EQ(h.Left(), MiB(8).count());
  // Forgotten after its creation.
  h.Draw(a, reservation.id, MiB(4));
  h.WorkAll();
  const ImportId import(h.deliveries.back().delivery.import);
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(a, a.sequence)).outcome, ForgetOutcome::kUndone);
  h.LetGo(a, import);
  h.WorkAll();
  EXPECT_EQ(h.Left(), MiB(8).count());
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(8));
}

TEST(CoreReserveTest, BytesReturningToReservationStayReserved) {
  ReserveHarness h;
  Peer a = h.Open();
  ASSERT_TRUE(h.SetBudget({.device = 0, .of = a.session, .limit = MiB(4)}).ok());
  const ReservationView reservation = h.MustReserve(a, {.items = {{.bytes = MiB(4)}}});
  h.Draw(a, reservation.id, MiB(4));
  h.WorkAll();
  const ImportId import(h.deliveries.back().delivery.import);
  // The process has its fd and has not released it yet.
  h.Forget(a, a.sequence);
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(4));
  EXPECT_EQ(h.NamedValue(h.Allocate(a, MiB(2)), "layer"), "session");
  h.LetGo(a, import);
  h.WorkAll();
  EXPECT_EQ(h.Left(), MiB(4).count());
  EXPECT_EQ(h.Budget(Layer::kSession, 0, a).bytes.charged(), MiB(4));
}

TEST(CoreReserveTest, DrawWaitsForWorkerWithItsBytes) {
  ReserveHarness h;
  Peer a = h.Open();
  const ReservationView reservation = h.MustReserve(a, {.items = {{.bytes = MiB(16)}}});
  h.Do([&](Core& core, Effects* effects) {
    core.WorkerDown(h.now, 0, WorkerKind::kMain, DeviceState::kRebuilding, effects);
  });
  const CallId cancelled = h.Draw(a, reservation.id, MiB(4));
  EXPECT_EQ(h.Left(), MiB(12).count());
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, cancelled, effects); });
  EXPECT_EQ(h.Left(), MiB(16).count());
  const CallId waiting = h.Draw(a, reservation.id, MiB(4));
  h.ReleaseReservation(a, reservation.id);
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(4));
  h.Do([&](Core& core, Effects* effects) { core.WorkerUp(h.now, 0, WorkerKind::kMain, effects); });
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(waiting).ok());
  EXPECT_EQ(h.BytesOf(0).charged(), MiB(4));
}

TEST(CoreReserveTest, RepeatedReserveIsIdempotentForgottenIsUndone) {
  ReserveHarness h;
  Peer a = h.Open();
  const ReserveRequest request{.items = {{.bytes = MiB(4)}}};
  const ReservationView first = h.MustReserve(a, request);
  const CallId again = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Reserve(h.now, call, a.caller(), a.Again(), request, effects);
  });
  EXPECT_EQ(h.Get<ReserveResult>(again).reservation.id, first.id);
  EXPECT_EQ(h.BytesOf(0).reserved, MiB(4));
  const CallId other = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Reserve(h.now, call, a.caller(), a.Again(), {.items = {{.bytes = MiB(6)}}}, effects);
  });
  EXPECT_TRUE(h.Refused(other, Reason::kRequestReused));
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(a, a.sequence)).outcome, ForgetOutcome::kUndone);
  EXPECT_EQ(h.BytesOf(0).reserved, Bytes(0));
}

TEST(CoreReserveTest, InvalidReservationIsRejectedAndChangesNothing) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.reservations_per_session = 1;
  ReserveHarness h(config);
  Peer a = h.Open();
  const std::string before = h.Accounts();
  EXPECT_TRUE(h.Refused(h.Reserve(a, {}), Reason::kInvalidField));
  EXPECT_TRUE(h.Refused(h.Reserve(a, {.items = std::vector<ReserveItem>(65, {.bytes = Bytes(1)})}),
                        Reason::kInvalidField));
  EXPECT_TRUE(h.Refused(h.Reserve(a, {.items = {{.bytes = Bytes(0)}}}), Reason::kInvalidField));
  EXPECT_TRUE(h.Refused(h.Reserve(a, {.items = {{.device = 9, .bytes = MiB(1)}}}), Reason::kNotFound));
  const Bytes most(uint64_t{INT64_MAX} - MiB(2).count());
  EXPECT_TRUE(h.Refused(h.Reserve(a, {.items = {{.bytes = most}, {.bytes = most}, {.bytes = most}}}),
                        Reason::kOutOfRange));
  EXPECT_EQ(h.Accounts(), before);
  h.MustReserve(a, {.items = {{.bytes = MiB(2)}}});
  EXPECT_EQ(h.NamedValue(h.Reserve(a, {.items = {{.bytes = MiB(2)}}}), "what"), "reservations_per_session");
}

}  // namespace
}  // namespace berth::core
