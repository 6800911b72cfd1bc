#include <algorithm>
#include <vector>

#include "common/wire/fence_page.h"
#include "daemon/core/testing/core_harness.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

// Two processes of one session; the first owns a block.
class CoreFenceTest : public testing::Test {
 protected:
  CoreFenceTest() : CoreFenceTest(CoreHarness::DefaultConfig()) {}
  explicit CoreFenceTest(const Config& config)
      : h(config),
        a(h.Open()),
        b(h.JoinTo(a)),
        granted(h.MustAllocate(a, MiB(2))),
        block(granted.block.handle.block) {}

  // Opens a stream; returns its slot.
  uint32_t Stream(Peer& peer) { return h.Get<OpenStreamResult>(h.OpenStream(peer)).stream.slot; }
  ImportResult Import(Peer& peer) { return h.Get<ImportResult>(h.Import(peer, granted.block.handle)); }
  // Both processes have a stream, and share the block.
  void Share() {
    sa = Stream(a);
    sb = Stream(b);
    const CallId call = h.Import(b, granted.block.handle);
    h.HandOver(a, block);
    imported = h.Get<ImportResult>(call).import;
  }
  Prepared Begin(Peer& peer, uint32_t slot, Access access) {
    return h.Get<Prepared>(h.Prepare(peer, slot, {{block, access}}));
  }
  absl::StatusOr<BlockView> ClearTorn(const Caller& caller, BlockId id) {
    absl::StatusOr<BlockView> view;
    h.Do([&](Core& core, Effects* effects) { view = core.ClearTorn(h.now, caller, id, effects); });
    return view;
  }
  void Wait(absl::Duration time) {
    h.now += time;
    h.Tick();
  }
  // Counts the deliveries of that kind to the process.
  uint64_t Sent(const Peer& peer, attach::DeliveryKind what) const {
    uint64_t count = 0;
    for (const Deliver& deliver : h.deliveries) {
      count += deliver.channel == peer.channel && deliver.delivery.what == what ? 1 : 0;
    }
    return count;
  }

  CoreHarness h;
  Peer a;
  Peer b;
  const AllocateResult granted;
  const BlockId block;
  uint32_t sa = 0;
  uint32_t sb = 0;
  ImportId imported;
};

TEST_F(CoreFenceTest, FirstStreamMakesPageEveryStreamDeliversIt) {
  const CallId first = h.OpenStream(a);
  EXPECT_EQ(h.last_effects, "make-page deliver reply");
  const OpenStreamResult opened = h.Get<OpenStreamResult>(first);
  EXPECT_EQ(opened.id, 1u);
  EXPECT_EQ(h.deliveries.back().delivery.what, attach::DeliveryKind::kOwnPage);
  EXPECT_EQ(h.deliveries.back().delivery.sequence, a.sequence);
  EXPECT_FALSE(h.deliveries.back().read_only);
  h.OpenStream(a, 0, /*default_stream=*/true);
  EXPECT_EQ(h.last_effects, "deliver reply");
}

TEST_F(CoreFenceTest, InvalidOrExcessStreamsAreRejected) {
  EXPECT_TRUE(h.Refused(h.OpenStream(a, 9), Reason::kNotFound));
  EXPECT_TRUE(h.Refused(h.CloseStream(a, 0), Reason::kNotFound));
  for (int i = 0; i < 16; ++i) {
    h.Acknowledge(a, h.deliveries.empty() ? 0 : h.deliveries.back().delivery.number);
    Stream(a);
  }
  EXPECT_TRUE(h.Refused(h.OpenStream(a), Reason::kLimit));
  h.Get<CloseStreamResult>(h.CloseStream(a, 3));
  EXPECT_EQ(h.Get<OpenStreamResult>(h.OpenStream(a)).stream.slot, 3u);
}

TEST_F(CoreFenceTest, ForgottenStreamClosesAndPrepareIsAbandoned) {
  Share();
  h.OpenStream(a);
  const uint64_t opening = a.sequence;
  EXPECT_EQ(h.core->ListStreams(CoreHarness::Admin()).size(), 3u);
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(a, opening)).outcome, ForgetOutcome::kUndone);
  EXPECT_EQ(h.core->ListStreams(CoreHarness::Admin()).size(), 2u);
  Begin(a, sa, Access::kWrite);
  const CallId waiting = h.Prepare(b, sb, {{block, Access::kRead}});
  EXPECT_FALSE(h.Answered(waiting));
  h.Forget(a, a.sequence);
  EXPECT_EQ(h.Get<Prepared>(waiting).waits.size(), 0u);
}

TEST_F(CoreFenceTest, SharingNeedsNoHandOverWithoutStream) {
  const CallId call = h.Import(b, granted.block.handle);
  EXPECT_EQ(h.last_effects, "deliver reply");
  EXPECT_EQ(h.deliveries.back().delivery.shared, 1u);
  h.Get<ImportResult>(call);
  // A process that opens a stream later gets the list of its shared blocks.
  EXPECT_EQ(h.Get<OpenStreamResult>(h.OpenStream(a)).shared, std::vector<BlockId>({block}));
}

TEST_F(CoreFenceTest, SoleImporterTracksBlockItself) {
  Stream(a);
  Import(a);
  EXPECT_EQ(h.last_effects, "deliver reply");
  EXPECT_EQ(h.deliveries.back().delivery.shared, 0u);
}

TEST_F(CoreFenceTest, SecondImportWaitsForHandOver) {
  sa = Stream(a);
  sb = Stream(b);
  const CallId call = h.Import(b, granted.block.handle);
  EXPECT_EQ(h.last_effects, "hand-over");
  EXPECT_FALSE(h.Answered(call));
  h.HandOver(a, block, {{sa, 4, Access::kWrite}});
  h.Get<ImportResult>(call);
  EXPECT_EQ(h.deliveries.back().delivery.shared, 1u);
  const Prepared prepared = Begin(b, sb, Access::kRead);
  EXPECT_EQ(prepared.waits, std::vector<FenceWait>({{{a.channel, sa}, 4}}));
}

TEST_F(CoreFenceTest, NewPrepareDuringHandOverWaitsForIt) {
  sa = Stream(a);
  h.Import(b, granted.block.handle);
  const CallId preparing = h.Prepare(a, sa, {{block, Access::kWrite}});
  EXPECT_FALSE(h.Answered(preparing));
  h.HandOver(a, block);
  EXPECT_TRUE(h.Answered(preparing));
}

TEST_F(CoreFenceTest, MissingHandOverRejectsImport) {
  Stream(a);
  const CallId call = h.Import(b, granted.block.handle);
  EXPECT_EQ(h.core->next_deadline(), h.now + absl::Seconds(1));
  Wait(absl::Seconds(1));
  EXPECT_TRUE(h.Refused(call, Reason::kBlockInUse));
  EXPECT_EQ(h.NamedValue(call, "channel"), std::to_string(a.channel.value()));
  // A retry waits again without a second hand-over request.
  const CallId again = h.Import(b, granted.block.handle);
  EXPECT_EQ(h.last_effects, "");
  h.HandOver(a, block);
  h.Get<ImportResult>(again);
}

TEST_F(CoreFenceTest, DeathDuringHandOverReleasesImport) {
  sa = Stream(a);
  sb = Stream(b);
  h.fence_values[{a.channel, sa}] = {.begun = 2, .ended = 1};
  const CallId call = h.Import(b, granted.block.handle);
  h.Gone(a);
  h.Get<ImportResult>(call);
  EXPECT_EQ(Begin(b, sb, Access::kRead).torn, std::vector<BlockId>({block}));
}

TEST_F(CoreFenceTest, WaitingImportEndsByCancelForgetOrFree) {
  Stream(a);
  const CallId cancelled = h.Import(b, granted.block.handle);
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, cancelled, effects); });
  EXPECT_TRUE(h.Refused(cancelled, Reason::kCancelled));
  const CallId forgotten = h.Import(b, granted.block.handle);
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(b, b.sequence)).outcome, ForgetOutcome::kCancelled);
  EXPECT_TRUE(h.Refused(forgotten, Reason::kCancelled));
  const CallId freed = h.Import(b, granted.block.handle);
  h.Free(a, granted.block.handle);
  EXPECT_TRUE(h.Refused(freed, Reason::kDenied));
}

TEST_F(CoreFenceTest, FalseHandOverIsIgnored) {
  h.HandOver(b, block);
  h.HandOver(a, BlockId(4711), {{0, 1, Access::kWrite}});
  sa = Stream(a);
  sb = Stream(b);
  const CallId call = h.Import(b, granted.block.handle);
  h.HandOver(b, block);
  EXPECT_FALSE(h.Answered(call));
  h.HandOver(a, block,
             {{77, 1, Access::kWrite}, {sa, kFenceTop, Access::kWrite}, {sa, UINT64_MAX, Access::kRead}});
  EXPECT_EQ(Begin(b, sb, Access::kWrite).waits.size(), 0u);
}

TEST_F(CoreFenceTest, PageIsDeliveredBeforeAnswerThatNamesIt) {
  Share();
  h.Finish(a, Begin(a, sa, Access::kWrite).use, 1);
  EXPECT_EQ(Sent(b, attach::DeliveryKind::kForeignPage), 0u);
  const CallId reading = h.Prepare(b, sb, {{block, Access::kRead}});
  EXPECT_EQ(h.last_effects, "deliver reply");
  EXPECT_EQ(h.deliveries.back().delivery.owner, a.channel.value());
  EXPECT_TRUE(h.deliveries.back().read_only);
  h.Finish(b, h.Get<Prepared>(reading).use, 1);
  Begin(b, sb, Access::kRead);
  EXPECT_EQ(h.last_effects, "reply");
}

TEST_F(CoreFenceTest, ConflictingUseIsAnsweredAfterFinish) {
  Share();
  const Prepared writing = Begin(a, sa, Access::kWrite);
  const CallId reading = h.Prepare(b, sb, {{block, Access::kRead}});
  EXPECT_FALSE(h.Answered(reading));
  h.Get<FinishUseResult>(h.Finish(a, writing.use, 3));
  EXPECT_EQ(h.Get<Prepared>(reading).waits, std::vector<FenceWait>({{{a.channel, sa}, 3}}));
}

TEST_F(CoreFenceTest, MissingFinishRejectsWaiterWithBlockInUse) {
  Share();
  Begin(a, sa, Access::kWrite);
  const CallId reading = h.Prepare(b, sb, {{block, Access::kRead}});
  Wait(absl::Milliseconds(999));
  EXPECT_FALSE(h.Answered(reading));
  Wait(absl::Milliseconds(1));
  EXPECT_TRUE(h.Refused(reading, Reason::kBlockInUse));
  const std::vector<StreamView> streams = h.core->ListStreams(b.caller());
  ASSERT_EQ(streams.size(), 2u);
  EXPECT_EQ(streams[0].open_uses, 1u);
  EXPECT_EQ(h.now - streams[0].open_since, absl::Seconds(1));
}

TEST_F(CoreFenceTest, UseRequiresMappingWithSameAccess) {
  Share();
  Peer other = h.Open(2000);
  const uint32_t so = Stream(other);
  EXPECT_TRUE(h.Refused(h.Prepare(other, so, {{block, Access::kRead}}), Reason::kDenied));
  EXPECT_TRUE(h.Refused(h.Prepare(a, sa, {{BlockId(4711), Access::kRead}}), Reason::kDenied));
  EXPECT_TRUE(h.Refused(h.Prepare(a, 99, {{block, Access::kRead}}), Reason::kNotFound));
  Peer reader = h.JoinTo(a);
  const uint32_t sr = Stream(reader);
  h.Get<ImportResult>(h.Import(reader, granted.block.handle, /*read_only=*/true));
  EXPECT_TRUE(h.Refused(h.Prepare(reader, sr, {{block, Access::kWrite}}), Reason::kDenied));
  h.Get<Prepared>(h.Prepare(reader, sr, {{block, Access::kRead}}));
  EXPECT_EQ(h.core->ListStreams(other.caller()).size(), 1u);
}

TEST_F(CoreFenceTest, FalseValuesChangeNothing) {
  Share();
  const Prepared writing = Begin(a, sa, Access::kWrite);
  EXPECT_TRUE(h.Refused(h.Finish(a, writing.use, 0), Reason::kInvalidField));
  EXPECT_TRUE(h.Refused(h.Finish(a, writing.use, UINT64_MAX), Reason::kInvalidField));
  EXPECT_TRUE(h.Refused(h.Finish(b, writing.use, 1), Reason::kNotFound));
  EXPECT_TRUE(h.Refused(h.Abandon(b, writing.use), Reason::kNotFound));
  h.Get<FinishUseResult>(h.Finish(a, writing.use, 1));
  EXPECT_TRUE(h.Refused(h.Finish(a, writing.use, 2), Reason::kNotFound));
}

TEST_F(CoreFenceTest, DeathDuringUseLeavesBlockTorn) {
  Share();
  Begin(a, sa, Access::kWrite);
  const CallId reading = h.Prepare(b, sb, {{block, Access::kRead}});
  h.Gone(a);
  EXPECT_EQ(h.pages, std::set<ChannelId>({b.channel}));
  EXPECT_EQ(h.last_effects, "drop-page reply drop-channel");
  const Prepared prepared = h.Get<Prepared>(reading);
  EXPECT_EQ(prepared.torn, std::vector<BlockId>({block}));
  EXPECT_EQ(prepared.waits.size(), 0u);
  EXPECT_TRUE(h.core->ListBlocks(CoreHarness::Admin()).at(0).torn);
  h.Finish(b, prepared.use, 1);
  h.Finish(b, Begin(b, sb, Access::kWrite).use, 2);
  EXPECT_FALSE(h.core->ListBlocks(CoreHarness::Admin()).at(0).torn);
}

TEST_F(CoreFenceTest, UseOfDeadSoleProcessLeavesBlockTorn) {
  sa = Stream(a);
  h.fence_values[{a.channel, sa}] = {.begun = 2, .ended = 1};
  h.Gone(a);
  sb = Stream(b);
  Import(b);
  EXPECT_EQ(h.deliveries.back().delivery.shared, 1u);
  EXPECT_EQ(Begin(b, sb, Access::kRead).torn, std::vector<BlockId>({block}));
}

TEST_F(CoreFenceTest, OwnerOrOperatorScrubTornBlock) {
  sa = Stream(a);
  h.fence_values[{a.channel, sa}] = {.begun = 2, .ended = 1};
  h.Gone(a);
  sb = Stream(b);
  Import(b);
  const auto torn = [&] { return h.core->ListBlocks(CoreHarness::Admin()).at(0).torn; };
  ASSERT_TRUE(torn());
  // Another session is not the owner; the refusal does not reveal whether the block exists.
  const Peer stranger = h.Open();
  for (const BlockId other : {block, BlockId(987)}) {
    const absl::Status denied = ClearTorn(stranger.caller(), other).status();
    EXPECT_TRUE(IsRefusal(denied, Reason::kDenied)) << denied;
  }
  EXPECT_TRUE(torn());
  Caller operator_ = b.caller();
  operator_.admin = true;
  const absl::Status unknown = ClearTorn(operator_, BlockId(987)).status();
  EXPECT_TRUE(IsRefusal(unknown, Reason::kNotFound)) << unknown;
  const absl::StatusOr<BlockView> whole = ClearTorn(operator_, block);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_FALSE(whole->torn);
  EXPECT_FALSE(torn());
  EXPECT_TRUE(Begin(b, sb, Access::kRead).torn.empty());
}

TEST_F(CoreFenceTest, OwningSessionScrubTornBlock) {
  Share();
  Begin(b, sb, Access::kWrite);
  h.Gone(b);
  ASSERT_TRUE(h.core->ListBlocks(CoreHarness::Admin()).at(0).torn);
  EXPECT_TRUE(ClearTorn(a.caller(), block).ok());
  EXPECT_TRUE(Begin(a, sa, Access::kRead).torn.empty());
  EXPECT_TRUE(ClearTorn(a.caller(), block).ok());
}

TEST_F(CoreFenceTest, OnlyTornUsesAreLogged) {
  Share();
  const size_t before = h.log.size();
  const Prepared prepared = Begin(a, sa, Access::kRead);
  h.Finish(a, prepared.use, 1);
  EXPECT_EQ(h.log.size(), before);
  Begin(b, sb, Access::kWrite);
  h.Gone(b);
  const auto torn = std::find_if(h.log.begin(), h.log.end(),
                                 [](const LogRecord& record) { return record.action == LogAction::kTorn; });
  ASSERT_NE(torn, h.log.end());
  EXPECT_EQ(torn->cause, LogCause::kProcessGone);
  EXPECT_EQ(torn->block, block);
  EXPECT_EQ(torn->request.channel, b.channel);
  EXPECT_EQ(torn->process.name, "tester");
  EXPECT_TRUE(ClearTorn(a.caller(), block).ok());
  EXPECT_EQ(h.log.back().action, LogAction::kClearTorn);
  EXPECT_EQ(h.log.back().session, a.session);
  // The block is consistent already.
  const size_t records = h.log.size();
  EXPECT_TRUE(ClearTorn(a.caller(), block).ok());
  EXPECT_EQ(h.log.size(), records);
}

class LoggedFenceTest : public CoreFenceTest {
 protected:
  LoggedFenceTest() : CoreFenceTest(Logged()) {}
  static Config Logged() {
    Config config = CoreHarness::DefaultConfig();
    config.log_fences = true;
    return config;
  }
};

TEST_F(LoggedFenceTest, SharedBlockUseIsLoggedWithOutcome) {
  const AllocateResult other = h.MustAllocate(a, MiB(4));
  Share();
  EXPECT_EQ(h.log.at(h.log.size() - 2).action, LogAction::kHandOver);
  EXPECT_EQ(h.log.at(h.log.size() - 2).request.channel, a.channel);
  const size_t before = h.log.size();
  const BlockId alone = other.block.handle.block;
  const Prepared both =
      h.Get<Prepared>(h.Prepare(a, sa, {{block, Access::kRead}, {alone, Access::kReadWrite}}));
  ASSERT_EQ(h.log.size(), before + 2);
  const LogRecord first = h.log[before], second = h.log[before + 1];
  for (const LogRecord& record : {first, second}) {
    EXPECT_EQ(record.action, LogAction::kUsePrepare);
    EXPECT_EQ(record.use, both.use);
    EXPECT_EQ(record.slot, sa);
    EXPECT_EQ(record.request.channel, a.channel);
    EXPECT_EQ(record.error, "");
  }
  EXPECT_EQ(first.block, block);
  EXPECT_EQ(first.access, Access::kRead);
  EXPECT_EQ(first.bytes, MiB(2));
  EXPECT_EQ(second.block, alone);
  EXPECT_EQ(second.access, Access::kReadWrite);
  h.Finish(a, both.use, 7);
  ASSERT_EQ(h.log.size(), before + 4);
  EXPECT_EQ(h.log.back().action, LogAction::kUseFinish);
  EXPECT_EQ(h.log.back().use, both.use);
  EXPECT_EQ(h.log.back().value, 7u);
  // Uses abandoned by their process, and by a forgotten request.
  h.Abandon(b, Begin(b, sb, Access::kWrite).use);
  EXPECT_EQ(h.log.back().action, LogAction::kUseAbandon);
  Begin(b, sb, Access::kWrite);
  h.Forget(b, b.sequence);
  EXPECT_EQ(h.log.back().action, LogAction::kUseAbandon);
  EXPECT_EQ(h.log.back().cause, LogCause::kForgotten);
  // A refusal with its reason.
  EXPECT_TRUE(h.Refused(h.Prepare(b, sb, {{alone, Access::kRead}}), Reason::kDenied));
  EXPECT_EQ(h.log.back().action, LogAction::kUsePrepare);
  EXPECT_EQ(h.log.back().error, "DENIED");
  EXPECT_EQ(h.log.back().use, UseId());
}

TEST_F(CoreFenceTest, FreedBlockStaysRetiredUntilUsesEnd) {
  Share();
  const Prepared writing = Begin(a, sa, Access::kWrite);
  h.Free(a, granted.block.handle, {granted.import});
  h.LetGo(b, imported);
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  EXPECT_TRUE(h.jobs.empty());
  h.Get<FinishUseResult>(h.Finish(a, writing.use, 5));
  Wait(absl::Seconds(1));
  EXPECT_TRUE(h.jobs.empty());
  EXPECT_LE(h.core->next_deadline() - h.now, absl::Milliseconds(50));
  h.fence_values[{a.channel, sa}] = {.done = 5};
  Wait(absl::Milliseconds(50));
  EXPECT_EQ(h.jobs.size(), 1u);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).outstanding(), Bytes(0));
  EXPECT_EQ(h.core->next_deadline(), absl::InfiniteFuture());
}

TEST_F(CoreFenceTest, FreedBlockIsReleasedAtDeathOfLastUser) {
  Share();
  Begin(b, sb, Access::kWrite);
  h.Free(a, granted.block.handle, {granted.import});
  h.LetGo(b, imported);
  EXPECT_TRUE(h.jobs.empty());
  h.Gone(b);
  EXPECT_EQ(h.jobs.size(), 1u);
}

TEST_F(CoreFenceTest, UseOfFreedBlockIsStale) {
  Share();
  Begin(a, sa, Access::kWrite);
  const CallId waiting = h.Prepare(b, sb, {{block, Access::kRead}});
  h.Free(a, granted.block.handle);
  EXPECT_TRUE(h.Refused(waiting, Reason::kStale));
  EXPECT_TRUE(h.Refused(h.Prepare(b, sb, {{block, Access::kRead}}), Reason::kStale));
}

TEST_F(CoreFenceTest, WaitingPrepareEndsWithItsCallOrProcess) {
  Share();
  Peer c = h.JoinTo(a);
  const uint32_t sc = Stream(c);
  h.Get<ImportResult>(h.Import(c, granted.block.handle));
  Begin(a, sa, Access::kRead);
  const CallId writer = h.Prepare(b, sb, {{block, Access::kWrite}});
  const CallId reader = h.Prepare(c, sc, {{block, Access::kRead}});
  h.Do([&](Core& core, Effects* effects) { core.CancelCall(h.now, writer, effects); });
  EXPECT_TRUE(h.Refused(writer, Reason::kCancelled));
  EXPECT_TRUE(h.Answered(reader));
  const CallId again = h.Prepare(b, sb, {{block, Access::kWrite}});
  h.HangUpChannel(b);
  EXPECT_TRUE(h.Refused(again, Reason::kNotJoined));
}

TEST_F(CoreFenceTest, RequestsLeavingTogetherLeaveNoOpenUse) {
  Share();
  const uint32_t second = Stream(b);
  Begin(a, sa, Access::kRead);
  // The leave of the first request admits the second, which leaves too.
  h.Prepare(b, sb, {{block, Access::kWrite}});
  h.Prepare(b, second, {{block, Access::kRead}});
  h.HangUpChannel(b);
  for (const StreamView& stream : h.core->ListStreams(CoreHarness::Admin())) {
    EXPECT_EQ(stream.open_uses, stream.stream.channel == a.channel ? 1u : 0u);
  }
}

TEST_F(CoreFenceTest, EndedSessionStaysWhileOthersWaitForIt) {
  Peer other = h.Open();
  h.Get<GrantResult>(h.Grant(a, granted.block.handle, other.session));
  sa = Stream(a);
  const CallId call = h.Import(other, granted.block.handle);
  h.HandOver(a, block);
  const ImportId theirs = h.Get<ImportResult>(call).import;
  const uint32_t so = Stream(other);
  h.Finish(other, Begin(other, so, Access::kRead).use, 1);
  h.LetGo(other, theirs);
  h.HangUpChannel(other);
  h.Do([&](Core& core, Effects* effects) { core.LifelineHungUp(h.now, other.session, effects); });
  EXPECT_TRUE(h.dropped_sessions.empty());
  EXPECT_EQ(Begin(a, sa, Access::kWrite).waits.size(), 1u);
  h.Gone(other);
  EXPECT_EQ(h.dropped_sessions.size(), 1u);
}

class UntrackedTest : public CoreFenceTest {
 protected:
  static Config Untracked() {
    Config config = CoreHarness::DefaultConfig();
    config.devices[1].tracks_fences = false;
    return config;
  }
  UntrackedTest() : CoreFenceTest(Untracked()) {}
};

TEST_F(UntrackedTest, DeviceWithoutFencesRejectsStreams) {
  EXPECT_TRUE(h.Refused(h.OpenStream(a, 1), Reason::kUnsupported));
  EXPECT_EQ(h.last_effects, "reply");
  EXPECT_TRUE(h.core->ListStreams(CoreHarness::Admin()).empty());
}

}  // namespace
}  // namespace berth::core
