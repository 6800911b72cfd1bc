#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

struct Published : CoreHarness {
  explicit Published(const Config& config = DefaultConfig()) : CoreHarness(config) {
    publisher = Open(1000);
    const AllocateResult made = MustAllocate(publisher, MiB(4));
    handle = made.block.handle;
    const BlockView view = Get<PublishResult>(Publish(publisher, handle, "weights", {made.import})).block;
    EXPECT_EQ(view.name, "weights");
    EXPECT_EQ(view.owner, SessionId());
  }
  Peer publisher;
  BlockHandle handle;
};

TEST(CorePublishTest, PublishedBlockOutlivesPublisherChargedToTenant) {
  Published h;
  EXPECT_EQ(h.Budget(Layer::kSession, 0, h.publisher).bytes.charged(), Bytes(0));
  h.HangUp(h.publisher);
  h.Gone(h.publisher);
  EXPECT_EQ(h.BytesOf(0).live, MiB(4));
  const UsageView usage = h.core->GetUsage(h.Admin());
  ASSERT_EQ(usage.rows.size(), 1);
  EXPECT_EQ(usage.rows[0].session, SessionId());
  EXPECT_EQ(usage.rows[0].tenant, h.publisher.tenant);
  Peer reader = h.Open(1000);
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, reader).bytes.live, MiB(4));
  const ImportResult imported = h.Get<ImportResult>(h.ImportNamed(reader, "weights"));
  EXPECT_EQ(imported.read_only, ReadOnly::kEnforced);
  EXPECT_EQ(imported.block.handle, h.handle);
  EXPECT_TRUE(h.deliveries.back().read_only);
}

TEST(CorePublishTest, WritableImportBlocksPublicationAndIsNamed) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult made = h.MustAllocate(a, MiB(2));
  Peer b = h.Open();
  h.Grant(a, made.block.handle, b.session);
  const ImportResult writer = h.Get<ImportResult>(h.Import(b, made.block.handle));
  // The publisher must release its own import, too.
  EXPECT_TRUE(h.Refused(h.Publish(a, made.block.handle, "x"), Reason::kBlockMapped));
  const CallId refused = h.Publish(a, made.block.handle, "x", {made.import});
  EXPECT_TRUE(h.Refused(refused, Reason::kBlockMapped));
  EXPECT_EQ(h.NamedValue(refused, "import"), std::to_string(writer.import.value()));
  EXPECT_EQ(h.NamedValue(refused, "process"), "tester");
  EXPECT_EQ(h.core->ListBlocks(h.Admin()).at(0).owner, a.session);
  h.LetGo(b, writer.import);
  EXPECT_TRUE(h.StatusOf(h.Import(b, made.block.handle, /*read_only=*/true)).ok());
  EXPECT_TRUE(h.StatusOf(h.Publish(a, made.block.handle, "x")).ok());
}

TEST(CorePublishTest, SecondPublisherOfNameIsRejected) {
  Published h;
  Peer other = h.Open(1000);
  const AllocateResult made = h.MustAllocate(other, MiB(2));
  const CallId refused = h.Publish(other, made.block.handle, "weights", {made.import});
  EXPECT_TRUE(h.Refused(refused, Reason::kNameTaken));
  EXPECT_EQ(h.NamedValue(refused, "name"), "weights");
  EXPECT_TRUE(h.StatusOf(h.Publish(other, made.block.handle, "more")).ok());
  // A block cannot have a second name.
  EXPECT_TRUE(h.Refused(h.Publish(other, made.block.handle, "again"), Reason::kNameTaken));
  // Each tenant has its own names.
  Peer stranger = h.Open(1001);
  const AllocateResult theirs = h.MustAllocate(stranger, MiB(2));
  EXPECT_TRUE(h.StatusOf(h.Publish(stranger, theirs.block.handle, "weights", {theirs.import})).ok());
}

TEST(CorePublishTest, StrangersGetSameRefusalForAnyName) {
  Published h;
  Peer stranger = h.Open(1001);
  const CallId named = h.ImportNamed(stranger, "weights");
  const CallId unknown = h.ImportNamed(stranger, "nothing");
  EXPECT_TRUE(h.Refused(named, Reason::kDenied));
  EXPECT_EQ(h.NamedValue(named, "kind"), h.NamedValue(unknown, "kind"));
  EXPECT_TRUE(h.Refused(unknown, Reason::kDenied));
  EXPECT_TRUE(h.Refused(h.Import(stranger, h.handle, /*read_only=*/true), Reason::kDenied));
  EXPECT_TRUE(h.Refused(h.Unpublish(stranger, "weights"), Reason::kNotFound));
  const CallId other = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Unpublish(h.now, call, stranger.caller(), stranger.Next(),
                   {.name = "weights", .tenant = h.publisher.tenant}, effects);
  });
  EXPECT_TRUE(h.Refused(other, Reason::kAdminOnly));
  EXPECT_TRUE(h.core->ListBlocks(stranger.caller()).empty());
}

TEST(CorePublishTest, PublishedBlockIsImportedReadOnly) {
  Published h;
  Peer reader = h.Open(1000);
  const CallId refused = h.Import(reader, h.handle);
  EXPECT_TRUE(h.Refused(refused, Reason::kInvalidField));
  EXPECT_EQ(h.NamedValue(refused, "field"), "read_only");
  EXPECT_TRUE(h.StatusOf(h.Import(reader, h.handle, /*read_only=*/true)).ok());
  // A grant by its tenant lets other tenants read it, too.
  Peer stranger = h.Open(1001);
  EXPECT_TRUE(h.StatusOf(h.Grant(reader, h.handle, stranger.tenant)).ok());
  const ImportResult theirs = h.Get<ImportResult>(h.Import(stranger, h.handle, /*read_only=*/true));
  EXPECT_EQ(h.core->ListBlocks(stranger.caller()).at(0).name, "");
  h.LetGo(stranger, theirs.import);
}

TEST(CorePublishTest, UnpublishedNameIsFreeAndMemoryWaitsForReaders) {
  Published h;
  Peer reader = h.Open(1000);
  const ImportResult imported = h.Get<ImportResult>(h.ImportNamed(reader, "weights"));
  EXPECT_EQ(h.Get<UnpublishResult>(h.Unpublish(reader, "weights")).state, BlockState::kQuarantined);
  EXPECT_TRUE(h.Refused(h.ImportNamed(reader, "weights"), Reason::kDenied));
  EXPECT_TRUE(h.Refused(h.Unpublish(reader, "weights"), Reason::kNotFound));
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(4));
  EXPECT_EQ(h.Budget(Layer::kTenant, 0, reader).bytes.quarantined, MiB(4));
  h.LetGo(reader, imported.import);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
  const AllocateResult made = h.MustAllocate(reader, MiB(2));
  EXPECT_TRUE(h.StatusOf(h.Publish(reader, made.block.handle, "weights", {made.import})).ok());
  // Any session of its tenant may free it by its handle, too.
  EXPECT_EQ(h.Get<FreeResult>(h.Free(h.publisher, made.block.handle)).state, BlockState::kRetired);
}

TEST(CorePublishTest, OperatorUnpublishesForeignBlock) {
  Published h;
  Peer other = h.Open(0);
  Caller admin = other.caller();
  admin.admin = true;
  const CallId call = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Unpublish(h.now, call, admin, other.Next(), {.name = "weights", .tenant = h.publisher.tenant},
                   effects);
  });
  EXPECT_EQ(h.Get<UnpublishResult>(call).state, BlockState::kRetired);
}

TEST(CorePublishTest, ForgottenPublicationReturnsBlockToSession) {
  Published h;
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(h.publisher, h.publisher.sequence)).outcome, ForgetOutcome::kUndone);
  const BlockView view = h.core->ListBlocks(h.Admin()).at(0);
  EXPECT_EQ(view.owner, h.publisher.session);
  EXPECT_EQ(view.name, "");
  EXPECT_EQ(h.Budget(Layer::kSession, 0, h.publisher).bytes.live, MiB(4));
  h.HangUp(h.publisher);
  h.Gone(h.publisher);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0), ByteCounts());
}

TEST(CorePublishTest, DeathLeavesNoNameOrCompletePublication) {
  CoreHarness h;
  Peer a = h.Open(), reader = h.Open();
  const AllocateResult made = h.MustAllocate(a, MiB(2));
  h.HangUp(a);
  h.Gone(a);
  EXPECT_TRUE(h.Refused(h.Publish(a, made.block.handle, "x", {made.import}), Reason::kBadCredentials));
  EXPECT_TRUE(h.Refused(h.ImportNamed(reader, "x"), Reason::kDenied));
  Published after;
  after.HangUp(after.publisher);
  after.Gone(after.publisher);
  Peer late = after.Open(1000);
  EXPECT_TRUE(after.StatusOf(after.ImportNamed(late, "weights")).ok());
}

TEST(CorePublishTest, NamesPerTenantAreLimited) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.names_per_tenant = 1;
  Published h(config);
  const AllocateResult made = h.MustAllocate(h.publisher, MiB(2));
  const CallId refused = h.Publish(h.publisher, made.block.handle, "more", {made.import});
  EXPECT_TRUE(h.Refused(refused, Reason::kLimit));
  EXPECT_EQ(h.NamedValue(refused, "what"), "names_per_tenant");
}

TEST(CorePublishTest, StaleBlockIsNotPublished) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult made = h.MustAllocate(a, MiB(2));
  h.Do([&](Core& core, Effects* effects) {
    core.ReportDevice(h.now, 0, WorkerKind::kMain, {.generation = 2}, effects);
  });
  EXPECT_TRUE(h.Refused(h.Publish(a, made.block.handle, "x", {made.import}), Reason::kStale));
}

// Publishes with replacement; the harness's own method does not replace.
CallId Replace(CoreHarness& h, Peer& peer, const AllocateResult& made, const std::string& name) {
  return h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Publish(h.now, call, peer.caller(), peer.Next(),
                 {.handle = made.block.handle, .name = name, .let_go = {made.import}, .replace = true}, effects);
  });
}

TEST(CorePublishTest, ReplacementMovesNameAtomically) {
  Published h;
  Peer reader = h.Open(1000);
  const ImportResult old = h.Get<ImportResult>(h.ImportNamed(reader, "weights"));
  const AllocateResult made = h.MustAllocate(h.publisher, MiB(2));
  const PublishResult result = h.Get<PublishResult>(Replace(h, h.publisher, made, "weights"));
  EXPECT_TRUE(result.replaced);
  EXPECT_EQ(h.Get<ImportResult>(h.ImportNamed(reader, "weights")).block.handle, made.block.handle);
  // The reader of the old block still maps it.
  EXPECT_EQ(h.BytesOf(0).quarantined, MiB(4));
  h.LetGo(reader, old.import);
  h.WorkAll();
  EXPECT_EQ(h.BytesOf(0).quarantined, Bytes());
  // Replacement also succeeds if the name is unused.
  const AllocateResult first = h.MustAllocate(h.publisher, MiB(2));
  EXPECT_FALSE(h.Get<PublishResult>(Replace(h, h.publisher, first, "fresh")).replaced);
}

TEST(CorePublishTest, RejectedReplacementKeepsOldBlock) {
  Published h;
  Peer other = h.Open(1000);
  const AllocateResult made = h.MustAllocate(other, MiB(2));
  const CallId refused = h.Ask([&](Core& core, CallId call, Effects* effects) {
    core.Publish(h.now, call, other.caller(), other.Next(),
                 {.handle = made.block.handle, .name = "weights", .replace = true}, effects);
  });
  EXPECT_TRUE(h.Refused(refused, Reason::kBlockMapped));
  EXPECT_EQ(h.Get<ImportResult>(h.ImportNamed(other, "weights")).block.handle, h.handle);
}

TEST(CorePublishTest, ReplacementNeedsNoNameQuota) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.names_per_tenant = 1;
  Published h(config);
  const AllocateResult made = h.MustAllocate(h.publisher, MiB(2));
  EXPECT_TRUE(h.StatusOf(Replace(h, h.publisher, made, "weights")).ok());
  const AllocateResult more = h.MustAllocate(h.publisher, MiB(2));
  EXPECT_TRUE(h.Refused(Replace(h, h.publisher, more, "more"), Reason::kLimit));
}

TEST(CorePublishTest, ForgottenReplacementKeepsName) {
  Published h;
  const AllocateResult made = h.MustAllocate(h.publisher, MiB(2));
  EXPECT_TRUE(h.StatusOf(Replace(h, h.publisher, made, "weights")).ok());
  EXPECT_EQ(h.Get<ForgetResult>(h.Forget(h.publisher, h.publisher.sequence)).outcome, ForgetOutcome::kNothingToDo);
  Peer reader = h.Open(1000);
  EXPECT_EQ(h.Get<ImportResult>(h.ImportNamed(reader, "weights")).block.handle, made.block.handle);
}

TEST(CorePublishTest, GranteeImportsByPublishersName) {
  Published h;
  Peer stranger = h.Open(1001), third = h.Open(1002);
  const auto import = [&](Peer& peer, const Tenant& publisher) {
    return h.Ask([&](Core& core, CallId call, Effects* effects) {
      core.Import(h.now, call, peer.caller(), peer.Next(),
                  {.read_only = true, .name = "weights", .publisher = publisher}, effects);
    });
  };
  const CallId before = import(stranger, h.publisher.tenant);
  EXPECT_TRUE(h.Refused(before, Reason::kDenied));
  EXPECT_EQ(h.NamedValue(before, "id"), "weights") << "what is not granted looks like what does not exist";
  EXPECT_EQ(h.NamedValue(before, "kind"), h.NamedValue(import(stranger, third.tenant), "kind"));
  EXPECT_TRUE(h.StatusOf(h.Grant(h.publisher, h.handle, stranger.tenant)).ok());
  EXPECT_EQ(h.Get<ImportResult>(import(stranger, h.publisher.tenant)).read_only, ReadOnly::kEnforced);
  EXPECT_TRUE(h.Refused(import(third, h.publisher.tenant), Reason::kDenied));
  EXPECT_TRUE(h.Refused(h.ImportNamed(stranger, "weights"), Reason::kDenied)) << "a name of its own it is not";
}

TEST(CorePublishTest, LostBlockIsCountedAndLosesItsName) {
  struct Case {
    const char* what;
    void (*lose)(Published& h);
  };
  const Case cases[] = {
      {"the driver lost the device",
       [](Published& h) {
         h.Do([&](Core& core, Effects* effects) { core.DeviceSurveyed(h.now, 0, {.lost = true}, effects); });
         h.LoseMemory(0, 2);
         h.StopDevice(0);
       }},
      {"the device was reset", [](Published& h) { h.LoseMemory(0, 2); }},
      {"an operator dropped the device",
       [](Published& h) {
         h.Do([&](Core& core, Effects* effects) { EXPECT_TRUE(core.DropDevice(h.now, 0, effects).ok()); });
       }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    Published h;
    EXPECT_EQ(h.core->ListDevices().at(0).lost_blocks, 0);
    each.lose(h);
    EXPECT_EQ(h.core->ListDevices().at(0).lost_blocks, 1);
    EXPECT_EQ(h.core->ListDevices().at(1).lost_blocks, 0);
    EXPECT_TRUE(h.core->ListBlocks(h.Admin()).at(0).lost);
    Peer reader = h.Open(1000);
    EXPECT_TRUE(h.Refused(h.ImportNamed(reader, "weights"), Reason::kStale));
    const AllocateResult made = h.MustAllocate(h.publisher, MiB(2), 1);
    EXPECT_TRUE(h.StatusOf(h.Publish(h.publisher, made.block.handle, "weights", {made.import})).ok());
    EXPECT_EQ(h.Get<ImportResult>(h.ImportNamed(reader, "weights")).block.handle, made.block.handle);
    EXPECT_EQ(h.core->ListDevices().at(0).lost_blocks, 0);
  }
}

}  // namespace
}  // namespace berth::core
