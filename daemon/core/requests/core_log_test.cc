#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

const LogRecord& Last(const CoreHarness& h) { return h.log.back(); }

TEST(CoreLogTest, BlockLifeIsLoggedInOrder) {
  CoreHarness h;
  Peer owner = h.Open(1000), guest = h.Open(1001);
  const AllocateResult made = h.MustAllocate(owner, Bytes(1));
  EXPECT_EQ(Last(h).action, LogAction::kAllocate);
  EXPECT_EQ(Last(h).session, owner.session);
  EXPECT_EQ(Last(h).tenant, owner.tenant);
  EXPECT_EQ(Last(h).request.sequence, owner.sequence);
  EXPECT_EQ(Last(h).block, made.block.handle.block);
  EXPECT_EQ(Last(h).block_generation, made.block.handle.block_generation);
  EXPECT_EQ(Last(h).bytes, MiB(2));
  EXPECT_EQ(Last(h).label, "block");
  EXPECT_EQ(Last(h).error, "");
  h.Grant(owner, made.block.handle, guest.tenant);
  const ImportResult import = h.Get<ImportResult>(h.Import(guest, made.block.handle));
  h.Free(owner, made.block.handle, {made.import});
  h.LetGo(guest, import.import);
  h.WorkAll();
  std::vector<LogAction> actions;
  for (const LogRecord& record : h.log) actions.push_back(record.action);
  EXPECT_EQ(actions, (std::vector<LogAction>{LogAction::kAllocate, LogAction::kGrant, LogAction::kImport,
                                             LogAction::kImportEnd, LogAction::kFree, LogAction::kImportEnd,
                                             LogAction::kRelease}));
  EXPECT_EQ(h.log[5].cause, LogCause::kLetGo);
  EXPECT_EQ(h.log[5].tenant, guest.tenant);
  EXPECT_EQ(h.log[5].process.name, "tester");
}

TEST(CoreLogTest, ImportEndIsLoggedWithProof) {
  CoreHarness h;
  Peer owner = h.Open(), guest = h.Open();
  const AllocateResult made = h.MustAllocate(owner, MiB(2));
  h.Grant(owner, made.block.handle, guest.session);
  h.Acknowledge(owner, 1);
  h.Get<ImportResult>(h.Import(guest, made.block.handle));
  h.Gone(guest);
  EXPECT_EQ(Last(h).action, LogAction::kImportEnd);
  EXPECT_EQ(Last(h).cause, LogCause::kProcessGone);
  EXPECT_EQ(Last(h).session, guest.session);
  h.HangUp(owner);
  h.Gone(owner);
  ASSERT_GE(h.log.size(), 2u);
  EXPECT_EQ(h.log[h.log.size() - 1].action, LogAction::kFree);
  EXPECT_EQ(h.log[h.log.size() - 1].cause, LogCause::kSessionEnd);
  EXPECT_EQ(h.log[h.log.size() - 2].cause, LogCause::kProcessGone);
}

TEST(CoreLogTest, RefusalIsLoggedWithReasonAndRequest) {
  CoreHarness h;
  Peer a = h.Open();
  h.Allocate(a, {.device = 1, .bytes = MiB(17), .label = "much"});
  EXPECT_EQ(Last(h).action, LogAction::kAllocate);
  EXPECT_EQ(Last(h).error, "OVER_BUDGET");
  EXPECT_NE(Last(h).message.find("limit"), std::string::npos);
  EXPECT_EQ(Last(h).bytes, MiB(17));
  EXPECT_EQ(Last(h).device, 1u);
  EXPECT_EQ(Last(h).block, BlockId());
  h.Reserve(a, {.items = {{.bytes = MiB(99)}}});
  EXPECT_EQ(Last(h).action, LogAction::kReserve);
  EXPECT_EQ(Last(h).error, "OVER_BUDGET");
  const AllocateResult made = h.MustAllocate(a, MiB(2));
  h.Free(a, made.block.handle, {made.import});
  h.WorkOnce(Refuse(Reason::kDriver, "no"));
  EXPECT_EQ(Last(h).action, LogAction::kRelease);
  EXPECT_EQ(Last(h).error, "DRIVER");
  // The waiting request is cancelled.
  const CallId cancelled = h.Allocate(a, {.bytes = MiB(16), .wait = true});
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, cancelled, effects); });
  EXPECT_EQ(Last(h).action, LogAction::kAllocate);
  EXPECT_EQ(Last(h).error, "CANCELLED");
}

TEST(CoreLogTest, LongMessageIsCutBetweenCharacters) {
  CoreHarness h;
  Peer a = h.Open();
  h.Allocate(a, MiB(2));
  std::string text = "x";
  for (int i = 0; i < 200; ++i) text += "\u00e4";
  h.WorkOnce(Refuse(Reason::kDriver, text));
  EXPECT_EQ(Last(h).error, "DRIVER");
  EXPECT_EQ(Last(h).message.size(), 255u + 3u);
  EXPECT_EQ(Last(h).message.substr(253), "\u00e4\u2026");
}

TEST(CoreLogTest, ReservationLifeIsLogged) {
  CoreHarness h;
  Peer a = h.Open();
  const ReservationId first =
      h.Get<ReserveResult>(h.Reserve(a, {.items = {{.bytes = MiB(4)}}, .ttl = absl::Seconds(1)}))
          .reservation.id;
  EXPECT_EQ(Last(h).action, LogAction::kReserve);
  EXPECT_EQ(Last(h).reservation, first);
  EXPECT_EQ(Last(h).bytes, MiB(4));
  h.now += absl::Seconds(2);
  h.Tick();
  EXPECT_EQ(Last(h).action, LogAction::kReservationEnd);
  EXPECT_EQ(Last(h).cause, LogCause::kExpired);
  h.Get<ReserveResult>(h.Reserve(a, {.items = {{.bytes = MiB(4)}}}));
  h.HangUp(a);
  EXPECT_EQ(Last(h).action, LogAction::kReservationEnd);
  EXPECT_EQ(Last(h).cause, LogCause::kSessionEnd);
}

TEST(CoreLogTest, NumbersBelongToNamedIncarnation) {
  Config config = CoreHarness::DefaultConfig();
  config.incarnation = 77;
  CoreHarness h(config);
  Peer a = h.Open();
  h.MustAllocate(a, MiB(2));
  h.MustAllocate(a, MiB(2));
  ASSERT_EQ(h.log.size(), 2u);
  for (uint64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(h.log[i].number, i + 1);
    EXPECT_EQ(h.log[i].incarnation, 77u);
  }
}

TEST(CoreLogTest, PermitsAreNotLogged) {
  CoreHarness h;
  Peer a = h.Open();
  const AcquireResult acquired = h.MustAcquire(a, {.pool = "gpu-tests", .holder_key = "k"});
  h.Release(a, acquired.acquisition);
  EXPECT_TRUE(h.log.empty());
}

}  // namespace
}  // namespace berth::core
