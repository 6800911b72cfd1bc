#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

TEST(CoreBlockTest, FreeRetiresUnmappedBlockUntilRelease) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  EXPECT_EQ(h.Get<FreeResult>(h.Free(a, block.block.handle, {block.import})).state, BlockState::kRetired);
  EXPECT_EQ(h.last_effects, "reply release");
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  EXPECT_EQ(h.BytesOf(0).outstanding(), MiB(2));
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreBlockTest, FreeQuarantinesMappedBlockAndRecallsItOncePerProcess) {
  CoreHarness h;
  Peer owner = h.Open();
  Peer sibling = h.JoinTo(owner);
  const AllocateResult block = h.MustAllocate(owner, MiB(2));
  const ImportId one = h.Get<ImportResult>(h.Import(sibling, block.block.handle)).import;
  const ImportId two = h.Get<ImportResult>(h.Import(sibling, block.block.handle)).import;
  const size_t before = h.deliveries.size();
  EXPECT_EQ(h.Get<FreeResult>(h.Free(owner, block.block.handle, {block.import})).state,
            BlockState::kQuarantined);
  EXPECT_EQ(h.last_effects, "reply recall");
  ASSERT_EQ(h.deliveries.size(), before + 1);
  EXPECT_EQ(h.deliveries.back().channel, sibling.channel);
  EXPECT_EQ(h.deliveries.back().delivery.block, block.block.handle.block.value());
  const BlockView view = h.core->ListBlocks(owner.caller()).at(0);
  EXPECT_EQ(view.state, BlockState::kQuarantined);
  EXPECT_EQ(view.owner, SessionId());
  EXPECT_TRUE(view.imports.at(0).recalled && view.imports.at(1).recalled);
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(2));
  h.LetGo(sibling, one);
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(2));
  h.LetGo(sibling, two);
  EXPECT_EQ(h.last_effects, "release");
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreBlockTest, OnlyOwnersSessionFreesBlock) {
  CoreHarness h;
  Peer owner = h.Open(), other = h.Open();
  Peer sibling = h.JoinTo(owner);
  const AllocateResult block = h.MustAllocate(owner, MiB(2));
  h.Get<GrantResult>(h.Grant(owner, block.block.handle, other.tenant));
  const ImportId import = h.Get<ImportResult>(h.Import(other, block.block.handle)).import;
  const std::string before = h.Accounts();
  EXPECT_TRUE(h.Refused(h.Free(other, block.block.handle, {import}), Reason::kNotFound));
  BlockHandle handle = block.block.handle;
  handle.block = BlockId(5);
  EXPECT_TRUE(h.Refused(h.Free(owner, handle, {block.import}), Reason::kNotFound));
  handle = block.block.handle;
  ++handle.incarnation;
  EXPECT_TRUE(h.Refused(h.Free(owner, handle, {block.import}), Reason::kStale));
  handle = block.block.handle;
  ++handle.node;
  EXPECT_TRUE(h.Refused(h.Free(owner, handle, {block.import}), Reason::kStale));
  handle = block.block.handle;
  ++handle.block_generation;
  EXPECT_TRUE(h.Refused(h.Free(owner, handle, {block.import}), Reason::kStale));
  handle = block.block.handle;
  ++handle.generation;
  EXPECT_TRUE(h.Refused(h.Free(owner, handle, {block.import}), Reason::kStale));
  EXPECT_EQ(h.Accounts(), before);
  EXPECT_TRUE(h.StatusOf(h.Free(sibling, block.block.handle)).ok());
}

TEST(CoreBlockTest, FreedBlockIsStaleUntilReleasedThenNotFound) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  h.Free(a, block.block.handle);
  EXPECT_TRUE(h.Refused(h.Free(a, block.block.handle), Reason::kStale));
  h.LetGo(a, block.import);
  EXPECT_TRUE(h.Refused(h.Free(a, block.block.handle), Reason::kStale));
  h.WorkAll();
  EXPECT_TRUE(h.Refused(h.Free(a, block.block.handle), Reason::kNotFound));
}

TEST(CoreBlockTest, FailedReleaseStaysChargedUntilNextWorkerReleases) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult block = h.MustAllocate(a, MiB(2));
  h.Free(a, block.block.handle, {block.import});
  h.WorkOnce(Refuse(Reason::kDriver, "no"));
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  EXPECT_EQ(h.core->ListDevices()[0].failed_releases, 1);
  EXPECT_EQ(h.core->ListBlocks(h.Admin()).at(0).state, BlockState::kRetired);
  EXPECT_EQ(h.core->ListBlocks(h.Admin()).at(0).release_error, "no");
  h.Do([&](Core& core, Effects* effects) {
    core.WorkerDown(h.now, 0, WorkerKind::kMain, DeviceState::kRebuilding, effects);
  });
  EXPECT_EQ(h.BytesOf(0).retired, MiB(2));
  h.Do([&](Core& core, Effects* effects) { core.WorkerUp(h.now, 0, WorkerKind::kMain, effects); });
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CoreBlockTest, ImportNeedsOwnershipOrGrant) {
  CoreHarness h;
  Peer owner = h.Open(1000), by_session = h.Open(2000), by_tenant = h.Open(3000), stranger = h.Open(2000);
  const BlockHandle handle = h.MustAllocate(owner, MiB(2)).block.handle;
  BlockHandle unknown = handle;
  unknown.block = BlockId(5);
  const CallId denied = h.Import(stranger, handle);
  EXPECT_TRUE(h.Refused(denied, Reason::kDenied));
  EXPECT_TRUE(h.Refused(h.Import(by_session, handle), Reason::kDenied));
  h.Get<GrantResult>(h.Grant(owner, handle, by_session.session));
  h.Get<GrantResult>(h.Grant(owner, handle, by_session.session));
  h.Get<GrantResult>(h.Grant(owner, handle, by_tenant.tenant));
  const std::string before = h.Accounts();
  EXPECT_TRUE(h.Refused(h.Import(stranger, handle), Reason::kDenied));
  const CallId missing = h.Import(stranger, unknown);
  EXPECT_TRUE(h.Refused(missing, Reason::kDenied));
  BlockHandle guessed = handle;
  ++guessed.block_generation;
  EXPECT_TRUE(h.Refused(h.Import(by_session, guessed), Reason::kDenied));
  guessed = handle;
  guessed.device_uuid = "DEVICE-1";
  EXPECT_TRUE(h.Refused(h.Import(by_session, guessed), Reason::kDenied));
  guessed = handle;
  ++guessed.incarnation;
  EXPECT_TRUE(h.Refused(h.Import(stranger, guessed), Reason::kStale));
  EXPECT_EQ(h.Accounts(), before);
  std::string text(h.StatusOf(missing).message());
  const size_t at = text.find(" 5 ");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(h.StatusOf(denied).code(), h.StatusOf(missing).code());
  EXPECT_TRUE(h.StatusOf(h.Import(by_session, handle)).ok());
  EXPECT_TRUE(h.StatusOf(h.Import(by_tenant, handle)).ok());
  EXPECT_TRUE(h.StatusOf(h.Import(owner, handle)).ok());
  h.Free(owner, handle);
  EXPECT_TRUE(h.Refused(h.Import(by_tenant, handle), Reason::kDenied));
  EXPECT_TRUE(h.Refused(h.Grant(owner, handle, stranger.session), Reason::kStale));
}

TEST(CoreBlockTest, ReadOnlyIsEnforcedOnHostCooperativeOnCuda) {
  CoreHarness h;
  Peer a = h.Open();
  const BlockHandle host = h.MustAllocate(a, MiB(2), 0).block.handle;
  const BlockHandle cuda = h.MustAllocate(a, MiB(2), 1).block.handle;
  EXPECT_EQ(h.Get<ImportResult>(h.Import(a, host, true)).read_only, ReadOnly::kEnforced);
  EXPECT_EQ(h.last_effects, "deliver reply");
  EXPECT_TRUE(h.deliveries.back().read_only);
  EXPECT_EQ(h.Get<ImportResult>(h.Import(a, cuda, true)).read_only, ReadOnly::kCooperative);
  EXPECT_FALSE(h.deliveries.back().read_only);
  EXPECT_EQ(h.Get<ImportResult>(h.Import(a, host, false)).read_only, ReadOnly::kNo);
  EXPECT_FALSE(h.deliveries.back().read_only);
}

TEST(CoreBlockTest, OnlyOwnerGrantsAndGrantRevealsNothing) {
  CoreHarness h;
  Peer owner = h.Open(), other = h.Open(2000);
  const BlockHandle handle = h.MustAllocate(owner, MiB(2)).block.handle;
  EXPECT_TRUE(h.Refused(h.Grant(other, handle, other.session), Reason::kNotFound));
  h.Get<GrantResult>(h.Grant(owner, handle, SessionId(4)));
  BlockHandle guessed = handle;
  ++guessed.block_generation;
  EXPECT_TRUE(h.Refused(h.Grant(owner, guessed, other.session), Reason::kStale));
  EXPECT_TRUE(h.Refused(h.Import(other, handle), Reason::kDenied));
}

TEST(CoreBlockTest, ImportsAndGrantsPerBlockAreLimited) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.imports_per_block = 2;
  config.limits.grants_per_block = 2;
  CoreHarness h(config);
  Peer owner = h.Open(), other = h.Open(), third = h.Open();
  const BlockHandle handle = h.MustAllocate(owner, MiB(2)).block.handle;
  EXPECT_TRUE(h.StatusOf(h.Import(owner, handle)).ok());
  const CallId imports = h.Import(owner, handle);
  EXPECT_TRUE(h.Refused(imports, Reason::kLimit));
  EXPECT_EQ(h.NamedValue(imports, "what"), "imports_per_block");
  h.Get<GrantResult>(h.Grant(owner, handle, other.session));
  h.Get<GrantResult>(h.Grant(owner, handle, Tenant{.uid = 5}));
  const CallId grants = h.Grant(owner, handle, third.session);
  EXPECT_TRUE(h.Refused(grants, Reason::kLimit));
  EXPECT_EQ(h.NamedValue(grants, "what"), "grants_per_block");
  h.Gone(other);
  h.HangUp(other);
  h.Get<GrantResult>(h.Grant(owner, handle, third.session));
}

TEST(CoreBlockTest, GrantToForeignEndedSessionStaysCounted) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.grants_per_block = 1;
  for (const bool was : {true, false}) {
    CoreHarness h(config);
    Peer owner = h.Open(1000), other = h.Open(2000), third = h.Open(2000);
    const BlockHandle handle = h.MustAllocate(owner, MiB(2)).block.handle;
    h.Get<GrantResult>(h.Grant(owner, handle, was ? other.session : SessionId(4)));
    h.Gone(other);
    h.HangUp(other);
    EXPECT_TRUE(h.Refused(h.Grant(owner, handle, third.session), Reason::kLimit)) << was;
  }
}

TEST(CoreBlockTest, ImportsPerProcessAreLimitedIncludingPending) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.imports_per_channel = 3;
  CoreHarness h(config);
  Peer a = h.Open();
  Peer sibling = h.JoinTo(a);
  const AllocateResult first = h.MustAllocate(a, MiB(2));
  const ImportResult second = h.Get<ImportResult>(h.Import(a, first.block.handle));
  const CallId making = h.Allocate(a, MiB(2));
  for (const CallId refused : {h.Import(a, first.block.handle), h.Allocate(a, MiB(2))}) {
    EXPECT_TRUE(h.Refused(refused, Reason::kLimit));
    EXPECT_EQ(h.NamedValue(refused, "what"), "imports_per_channel");
    EXPECT_EQ(h.NamedValue(refused, "current"), "3");
    EXPECT_EQ(h.NamedValue(refused, "limit"), "3");
  }
  h.WorkAll();
  EXPECT_TRUE(h.StatusOf(making).ok());
  EXPECT_TRUE(h.Refused(h.Import(a, first.block.handle), Reason::kLimit));
  // Another process has its own limit, and an ended import no longer counts.
  EXPECT_TRUE(h.StatusOf(h.Import(sibling, first.block.handle)).ok());
  h.LetGo(a, second.import);
  EXPECT_TRUE(h.StatusOf(h.Import(a, first.block.handle)).ok());
}

TEST(CoreBlockTest, AnswerNamesOnlyItsImport) {
  CoreHarness h;
  Peer owner = h.Open();
  const AllocateResult made = h.MustAllocate(owner, MiB(2));
  ASSERT_EQ(made.block.imports.size(), 1u);
  EXPECT_EQ(made.block.imports[0].id, made.import);
  for (int i = 0; i < 3; ++i) {
    const ImportResult imported = h.Get<ImportResult>(h.Import(owner, made.block.handle));
    ASSERT_EQ(imported.block.imports.size(), 1u);
    EXPECT_EQ(imported.block.imports[0].id, imported.import);
  }
  EXPECT_EQ(h.core->ListBlocks(owner.caller()).at(0).imports.size(), 4u);
}

TEST(CoreBlockTest, OnlyImportingProcessReleasesImport) {
  CoreHarness h;
  Peer owner = h.Open();
  Peer sibling = h.JoinTo(owner);
  const AllocateResult block = h.MustAllocate(owner, MiB(2));
  const std::string before = h.Accounts();
  h.LetGo(sibling, block.import);
  h.LetGo(owner, ImportId(999));
  EXPECT_EQ(h.Accounts(), before);
  h.LetGo(owner, block.import);
  // No process maps the block; it is still the owner's.
  EXPECT_EQ(h.BytesOf(0).live, MiB(2));
  EXPECT_EQ(h.Get<FreeResult>(h.Free(owner, block.block.handle)).state, BlockState::kRetired);
}

TEST(CoreBlockTest, PendingFdsAreBoundedAndSentInOrder) {
  CoreHarness h;
  Peer a = h.Open();
  const BlockHandle handle = h.MustAllocate(a, MiB(2)).block.handle;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(h.StatusOf(h.Import(a, handle)).ok());
  EXPECT_EQ(h.deliveries.size(), 8);
  h.Acknowledge(a, 99);
  EXPECT_EQ(h.deliveries.size(), 8);
  h.Acknowledge(a, 2);
  EXPECT_EQ(h.deliveries.size(), 10);
  h.Acknowledge(a, 2);
  EXPECT_EQ(h.deliveries.size(), 10);
  h.Acknowledge(a, 10);
  EXPECT_EQ(h.deliveries.size(), 11);
  for (size_t i = 0; i < h.deliveries.size(); ++i) {
    EXPECT_EQ(h.deliveries[i].delivery.number, i + 1);
    EXPECT_EQ(h.deliveries[i].delivery.import, i + 1);
  }
}

TEST(CoreBlockTest, OpenedTenantWindowServesOtherProcess) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.unacknowledged_fds_per_tenant = 2;
  CoreHarness h(config);
  Peer a = h.Open(), b = h.Open(), stranger = h.Open(2000);
  const BlockHandle handle = h.MustAllocate(a, MiB(2)).block.handle;
  h.Import(a, handle);
  h.MustAllocate(b, MiB(2));
  EXPECT_EQ(h.deliveries.size(), 2);
  h.MustAllocate(stranger, MiB(2));
  EXPECT_EQ(h.deliveries.size(), 3);
  h.Gone(a);
  EXPECT_EQ(h.deliveries.back().channel, b.channel);
}

}  // namespace
}  // namespace berth::core
