#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

AcquireRequest One(const std::string& key) { return {.pool = "gpu-tests", .holder_key = key}; }

TEST(CoreSessionTest, HangUpEndsSessionPermitsReturnWithProcesses) {
  CoreHarness h;
  Peer a = h.Open(), other = h.Open();
  Peer sibling = h.JoinTo(a);
  h.MustAcquire(a, One("1"));
  h.MustAcquire(a, One("2"));
  const CallId own = h.Acquire(sibling, One("3"));
  const CallId next = h.Acquire(other, One("1"));
  h.HangUp(a);
  EXPECT_TRUE(h.Refused(own, Reason::kSessionEnded));
  EXPECT_TRUE(h.Refused(h.Acquire(a, One("1")), Reason::kSessionEnded));
  EXPECT_TRUE(IsRefusal(h.core->JoinSession(h.now, a.session, a.secret, a.tenant, {}).status(),
                        Reason::kSessionEnded));
  EXPECT_TRUE(h.core->Authenticate(a.caller()).ok());
  EXPECT_EQ(h.core->GetSession(a.caller(), SessionId())->state, SessionState::kEnding);
  h.Gone(a);
  EXPECT_EQ(h.Pool().out, 2);
  EXPECT_FALSE(h.Answered(next));
  h.Gone(sibling);
  EXPECT_TRUE(h.StatusOf(next).ok());
  EXPECT_EQ(h.last_effects, "drop-channel reply drop-session");
  EXPECT_EQ(h.dropped_sessions, std::vector<SessionId>{a.session});
  EXPECT_EQ(h.Pool().out, 1);
  EXPECT_TRUE(IsRefusal(h.core->Authenticate(a.caller()), Reason::kBadCredentials));
}

TEST(CoreSessionTest, JoinDistinguishesEndedFromForeignSessions) {
  CoreHarness h;
  const Peer living = h.Open(1000);
  Peer ending = h.Open(1000), over = h.Open(1000);
  h.MustAcquire(ending, One("1"));
  h.HangUp(ending);
  h.Gone(over);
  h.HangUp(over);
  const Tenant other = {.uid = 2000}, container = {.uid = 1000, .container = "/docker/1"};
  const struct {
    const char* what;
    const Peer& peer;
    Secret secret;
    Tenant tenant;
    Reason reason;
  } rows[] = {
      {"ending, its permit still out", ending, ending.secret, ending.tenant, Reason::kSessionEnded},
      {"over", over, over.secret, over.tenant, Reason::kSessionEnded},
      {"over, asked by another user", over, over.secret, other, Reason::kSessionEnded},
      {"wrong secret", living, over.secret, living.tenant, Reason::kSessionEnded},
      {"wrong secret, another user", living, over.secret, other, Reason::kSessionEnded},
      {"right secret, another user", living, living.secret, other, Reason::kBadCredentials},
      {"right secret, a container", living, living.secret, container, Reason::kBadCredentials},
  };
  for (const auto& row : rows) {
    const absl::Status refused =
        h.core->JoinSession(h.now, row.peer.session, row.secret, row.tenant, {}).status();
    EXPECT_TRUE(IsRefusal(refused, row.reason)) << row.what << ": " << refused;
  }
  EXPECT_TRUE(h.core->JoinSession(h.now, living.session, living.secret, living.tenant, {}).ok());
  h.Gone(ending);
}

TEST(CoreSessionTest, ProcessesEndedBeforeHangUpEndSession) {
  CoreHarness h;
  Peer a = h.Open();
  h.MustAcquire(a, One("1"));
  h.Gone(a);
  // Other processes may still hold the lifeline: the permit belongs to the session.
  EXPECT_EQ(h.Pool().out, 1);
  EXPECT_EQ(h.core->GetSession(h.Admin(), a.session)->state, SessionState::kActive);
  h.HangUp(a);
  EXPECT_EQ(h.Pool().out, 0);
  EXPECT_TRUE(h.core->ListSessions(h.Admin()).empty());
  h.HangUp(a);
  h.Gone(a);
  EXPECT_EQ(h.last_effects, "");
}

TEST(CoreSessionTest, UnjoinedSessionEndsAtHangUp) {
  CoreHarness h;
  const auto session = h.core->OpenSession(h.now, {}, {.uid = 1}, "", {});
  h.Do([&](Core& core, Effects* effects) { core.LifelineHungUp(h.now, *session, effects); });
  EXPECT_EQ(h.last_effects, "drop-session");
}

TEST(CoreSessionTest, EndingSessionGrantsNoPermitToItsWaiters) {
  CoreHarness h;
  Peer a = h.Open(), other = h.Open();
  h.MustAcquire(other, One("1"));
  AcquireRequest two = One("big");
  two.units = 2;
  const CallId head = h.Acquire(a, two);
  for (int i = 0; i < 16; ++i) h.Release(other, h.MustAcquire(other, One("2")).acquisition);
  const CallId behind = h.Acquire(a, One("small"));
  const CallId last = h.Acquire(other, One("3"));
  EXPECT_FALSE(h.Answered(behind));
  h.HangUp(a);
  EXPECT_TRUE(h.Refused(head, Reason::kSessionEnded));
  EXPECT_TRUE(h.Refused(behind, Reason::kSessionEnded));
  EXPECT_TRUE(h.StatusOf(last).ok());
}

TEST(CoreSessionTest, EndedProcessLosesWaitersAndImports) {
  CoreHarness h;
  Peer a = h.Open(), other = h.Open();
  Peer sibling = h.JoinTo(a);
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  h.Get<ImportResult>(h.Import(sibling, block.block.handle));
  h.MustAcquire(other, One("1"));
  h.MustAcquire(other, One("2"));
  const CallId waiting = h.Acquire(sibling, One("3"));
  h.Gone(sibling);
  EXPECT_TRUE(h.Refused(waiting, Reason::kCancelled));
  const std::vector<BlockView> blocks = h.core->ListBlocks(a.caller());
  ASSERT_EQ(blocks.size(), 1);
  EXPECT_EQ(blocks[0].imports.size(), 1);
  EXPECT_EQ(blocks[0].state, BlockState::kLive);
  EXPECT_EQ(h.dropped_channels, std::vector<ChannelId>{sibling.channel});
}

TEST(CoreSessionTest, OwnersEndQuarantinesBlocksMappedByOthers) {
  CoreHarness h;
  Peer owner = h.Open(1000), importer = h.Open(2000);
  const AllocateResult block = h.MustAllocate(owner, MiB(2));
  h.Get<GrantResult>(h.Grant(owner, block.block.handle, importer.session));
  h.Get<ImportResult>(h.Import(importer, block.block.handle));
  h.HangUp(owner);
  EXPECT_EQ(h.BytesOf(0).live, MiB(2));
  h.Gone(owner);
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(2));
  EXPECT_EQ(h.deliveries.back().delivery.what, attach::DeliveryKind::kRecall);
  EXPECT_EQ(h.deliveries.back().channel, importer.channel);
  const UsageView usage = h.core->GetUsage(importer.caller());
  ASSERT_EQ(usage.rows.size(), 1);
  EXPECT_EQ(usage.rows[0].session, SessionId());
  EXPECT_EQ(usage.rows[0].tenant, importer.tenant);
  h.Gone(importer);
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreSessionTest, ClosedChannelLosesWaitersAndUnsentFdsNotMappings) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.unacknowledged_fds_per_channel = 1;
  CoreHarness h(config);
  Peer a = h.Open();
  const AllocateResult sent = h.MustAllocate(a, MiB(2));
  h.MustAllocate(a, MiB(2));
  ASSERT_EQ(h.deliveries.size(), 1);
  const CallId making = h.Allocate(a, MiB(2));
  h.Do([&](Core& core, Effects* effects) { core.ChannelHungUp(h.now, a.channel, effects); });
  EXPECT_TRUE(h.Refused(making, Reason::kNotJoined));
  for (const BlockView& block : h.core->ListBlocks(a.caller())) {
    EXPECT_EQ(block.imports.size(), block.handle == sent.block.handle ? 1 : 0);
  }
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).live, MiB(4));
  EXPECT_EQ(h.BytesOf(0).reserved, Bytes(0));
  h.Gone(a);
  h.HangUp(a);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreSessionTest, HungUpChannelClosesAtOnceAndDropsWithProcess) {
  CoreHarness h;
  Peer a = h.Open();
  h.HangUpChannel(a);
  EXPECT_EQ(h.last_effects, "close-channel");
  EXPECT_EQ(h.closed_channels, std::vector<ChannelId>{a.channel});
  h.HangUpChannel(a);
  EXPECT_EQ(h.last_effects, "");
  h.Gone(a);
  EXPECT_EQ(h.last_effects, "drop-channel");
}

TEST(CoreSessionTest, SessionOfLivingProcessesEndsAfterAllHangUps) {
  CoreHarness h;
  Peer a = h.Open();
  Peer sibling = h.JoinTo(a);
  h.HangUp(a);
  h.HangUpChannel(a);
  EXPECT_EQ(h.last_effects, "close-channel");
  h.HangUpChannel(sibling);
  EXPECT_EQ(h.last_effects, "close-channel drop-channel drop-channel drop-session");
  EXPECT_TRUE(h.core->ListSessions(h.Admin()).empty());
  // The reverse order, with a block that no process maps.
  Peer b = h.Open();
  const AllocateResult block = h.MustAllocate(b, MiB(2));
  h.LetGo(b, block.import);
  h.HangUpChannel(b);
  EXPECT_EQ(h.BytesOf(0).live, MiB(2));
  h.HangUp(b);
  EXPECT_EQ(h.last_effects, "drop-channel release drop-session");
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreSessionTest, LivingProcessHoldsSessionForPermitOrImport) {
  CoreHarness h;
  Peer holder = h.Open(), mapper = h.Open();
  h.MustAcquire(holder, One("1"));
  h.MustAllocate(mapper, MiB(2));
  for (const Peer& peer : {holder, mapper}) {
    h.HangUpChannel(peer);
    h.HangUp(peer);
    EXPECT_EQ(h.last_effects, "");
  }
  EXPECT_EQ(h.Pool().out, 1);
  EXPECT_EQ(h.BytesOf(0).live, MiB(2));
  h.Gone(holder);
  EXPECT_EQ(h.last_effects, "drop-channel drop-session");
  h.Gone(mapper);
  EXPECT_EQ(h.last_effects, "drop-channel release drop-session");
}

TEST(CoreSessionTest, DeathOfLastImporterEndsSession) {
  CoreHarness h;
  Peer a = h.Open();
  Peer sibling = h.JoinTo(a);
  h.MustAllocate(sibling, MiB(2));
  h.HangUpChannel(a);
  h.HangUpChannel(sibling);
  h.HangUp(a);
  h.Gone(sibling);
  EXPECT_EQ(h.last_effects, "drop-channel drop-channel release drop-session");
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreSessionTest, RejoinedProcessTakesOverItsClosedChannel) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  h.HangUpChannel(a);
  Peer again = h.JoinTo(a);
  const auto replace = [&](ChannelId earlier, ChannelId channel) {
    h.Do([&](Core& core, Effects* effects) { core.ReplaceChannels(h.now, {&earlier, 1}, channel, effects); });
  };
  replace(a.channel, again.channel);
  EXPECT_EQ(h.last_effects, "drop-channel");
  EXPECT_EQ(h.dropped_channels, std::vector<ChannelId>{a.channel});
  EXPECT_EQ(h.core->GetSession(h.Admin(), a.session)->processes.size(), 1);
  EXPECT_EQ(h.core->ListBlocks(h.Admin()).at(0).imports.size(), 1);
  // The new channel owns the import now, and the channel's end ends the import.
  h.Get<FreeResult>(h.Free(again, block.block.handle));
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(2));
  h.LetGo(again, block.import);
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  h.Gone(a);
  EXPECT_EQ(h.last_effects, "");
  h.Gone(again);
  EXPECT_EQ(h.last_effects, "drop-channel");
}

TEST(CoreSessionTest, OnlyClosedChannelOfSameSessionIsReplaced) {
  CoreHarness h;
  Peer a = h.Open(), stranger = h.Open();
  Peer sibling = h.JoinTo(a);
  const auto replace = [&](ChannelId earlier, ChannelId channel) {
    h.Do([&](Core& core, Effects* effects) { core.ReplaceChannels(h.now, {&earlier, 1}, channel, effects); });
    return h.last_effects;
  };
  EXPECT_EQ(replace(sibling.channel, a.channel), "") << "it has not hung up";
  h.HangUpChannel(sibling);
  EXPECT_EQ(replace(sibling.channel, stranger.channel), "") << "of another session";
  EXPECT_EQ(replace(sibling.channel, sibling.channel), "") << "by itself";
  EXPECT_EQ(replace(sibling.channel, ChannelId(12345)), "") << "by nobody";
  EXPECT_EQ(replace(ChannelId(12345), a.channel), "") << "nobody";
  EXPECT_EQ(replace(sibling.channel, a.channel), "drop-channel");
}

TEST(CoreSessionTest, ProcessTakesOverAllClosedChannelsAtOnce) {
  CoreHarness h;
  const Peer a = h.Open();
  std::vector<ChannelId> earlier = {a.channel};
  for (int i = 0; i < 3; ++i) earlier.push_back(h.JoinTo(a).channel);
  Peer open = h.JoinTo(a), again = h.JoinTo(a);
  for (const ChannelId channel : earlier) h.HangUpChannel({.session = a.session, .channel = channel});
  earlier.insert(earlier.begin() + 1, open.channel);
  h.Do([&](Core& core, Effects* effects) { core.ReplaceChannels(h.now, earlier, again.channel, effects); });
  std::erase(earlier, open.channel);
  EXPECT_EQ(h.dropped_channels, earlier);
  EXPECT_EQ(h.core->GetSession(h.Admin(), a.session)->processes.size(), 2);
}

TEST(CoreSessionTest, EndSessionNeedsOwnershipOrAdmin) {
  CoreHarness h;
  Peer a = h.Open(1000), b = h.Open(1000), admin = h.Open(0);
  const auto end = [&](const Caller& caller, SessionId session) {
    absl::StatusOr<SessionView> view = absl::UnknownError("");
    h.Do([&](Core& core, Effects* effects) { view = core.EndSession(h.now, caller, session, effects); });
    return view;
  };
  EXPECT_TRUE(IsRefusal(end(b.caller(), a.session).status(), Reason::kNotFound));
  EXPECT_EQ(end(a.caller(), SessionId())->state, SessionState::kEnding);
  EXPECT_EQ(end(a.caller(), a.session)->state, SessionState::kEnding);
  Caller caller = admin.caller();
  caller.admin = true;
  EXPECT_EQ(end(caller, b.session)->id, b.session);
  EXPECT_TRUE(IsRefusal(end(caller, SessionId(4)).status(), Reason::kNotFound));
  EXPECT_TRUE(IsRefusal(end(Caller(), SessionId()).status(), Reason::kBadCredentials));
  EXPECT_TRUE(h.Refused(h.Acquire(b, One("1")), Reason::kSessionEnded));
}

TEST(CoreSessionTest, EveryProcessOfEndedSessionIsNotifiedOnce) {
  CoreHarness h;
  Peer a = h.Open();
  const Peer b = h.JoinTo(a);
  h.Open();
  h.MustAllocate(a, MiB(2));
  h.deliveries.clear();
  h.HangUp(a);
  h.HangUp(a);
  ASSERT_EQ(h.deliveries.size(), 2u);
  for (const Deliver& notified : h.deliveries) {
    EXPECT_EQ(notified.delivery.what, attach::DeliveryKind::kEnded);
    EXPECT_TRUE(notified.channel == a.channel || notified.channel == b.channel);
  }
  EXPECT_NE(h.deliveries[0].channel, h.deliveries[1].channel);
  EXPECT_EQ(h.BytesOf(0).outstanding(), MiB(2)) << "it has that mapped";
}

TEST(CoreSessionTest, SessionsAndChannelsHaveLimits) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.sessions = 1;
  config.limits.channels_per_session = 2;
  CoreHarness h(config);
  Peer a = h.Open();
  h.JoinTo(a);
  EXPECT_TRUE(IsRefusal(h.core->OpenSession(h.now, {}, {}, "", {}).status(), Reason::kLimit));
  EXPECT_TRUE(
      IsRefusal(h.core->JoinSession(h.now, a.session, a.secret, a.tenant, {}).status(), Reason::kLimit));
}

TEST(CoreSessionTest, EndedSessionIsDroppedAfterAllPermitsExpire) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[0].hold_limit = absl::Seconds(10);
  CoreHarness h(config);
  Peer peer = h.Open();
  for (const char* const key : {"1", "2"}) h.MustAcquire(peer, {.pool = "gpu-tests", .holder_key = key});
  h.HangUp(peer);
  h.HangUpChannel(peer);
  EXPECT_TRUE(h.dropped_sessions.empty()) << "its process lives, and may use them";
  h.now += absl::Seconds(11);
  h.Tick();
  EXPECT_EQ(h.Pool().out, 0u);
  EXPECT_EQ(h.dropped_sessions.size(), 1u);
}

}  // namespace
}  // namespace berth::core
