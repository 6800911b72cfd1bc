#include "daemon/core/core_harness.h"

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

TEST(CorePublishTest, APublishedBlockOutlivesItsPublisherAtItsTenantsCost) {
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

TEST(CorePublishTest, WhoCanStillWriteKeepsItFromBeingPublishedAndIsNamed) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult made = h.MustAllocate(a, MiB(2));
  Peer b = h.Open();
  h.Grant(a, made.block.handle, b.session);
  const ImportResult writer = h.Get<ImportResult>(h.Import(b, made.block.handle));
  // Its own import it must let go as well.
  EXPECT_TRUE(h.Refused(h.Publish(a, made.block.handle, "x"), Reason::kBlockMapped));
  const CallId refused = h.Publish(a, made.block.handle, "x", {made.import});
  EXPECT_TRUE(h.Refused(refused, Reason::kBlockMapped));
  EXPECT_EQ(h.Figure(refused, "import"), std::to_string(writer.import.value()));
  EXPECT_EQ(h.Figure(refused, "process"), "tester");
  EXPECT_EQ(h.core->ListBlocks(h.Admin()).at(0).owner, a.session);
  h.LetGo(b, writer.import);
  EXPECT_TRUE(h.StatusOf(h.Import(b, made.block.handle, /*read_only=*/true)).ok());
  EXPECT_TRUE(h.StatusOf(h.Publish(a, made.block.handle, "x")).ok());
}

TEST(CorePublishTest, OfTwoPublishersOfOneNameOneWinsAndTheOtherIsTold) {
  Published h;
  Peer other = h.Open(1000);
  const AllocateResult made = h.MustAllocate(other, MiB(2));
  const CallId refused = h.Publish(other, made.block.handle, "weights", {made.import});
  EXPECT_TRUE(h.Refused(refused, Reason::kNameTaken));
  EXPECT_EQ(h.Figure(refused, "name"), "weights");
  EXPECT_TRUE(h.StatusOf(h.Publish(other, made.block.handle, "more")).ok());
  // A second name for one block is none.
  EXPECT_TRUE(h.Refused(h.Publish(other, made.block.handle, "again"), Reason::kNameTaken));
  // Another tenant's names are its own.
  Peer stranger = h.Open(1001);
  const AllocateResult theirs = h.MustAllocate(stranger, MiB(2));
  EXPECT_TRUE(h.StatusOf(h.Publish(stranger, theirs.block.handle, "weights", {theirs.import})).ok());
}

TEST(CorePublishTest, OtherTenantsLearnNothing) {
  Published h;
  Peer stranger = h.Open(1001);
  const CallId named = h.ImportNamed(stranger, "weights");
  const CallId unknown = h.ImportNamed(stranger, "nothing");
  EXPECT_TRUE(h.Refused(named, Reason::kDenied));
  EXPECT_EQ(h.Figure(named, "kind"), h.Figure(unknown, "kind"));
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

TEST(CorePublishTest, NobodyWritesToAPublishedBlock) {
  Published h;
  Peer reader = h.Open(1000);
  const CallId refused = h.Import(reader, h.handle);
  EXPECT_TRUE(h.Refused(refused, Reason::kInvalidField));
  EXPECT_EQ(h.Figure(refused, "field"), "read_only");
  EXPECT_TRUE(h.StatusOf(h.Import(reader, h.handle, /*read_only=*/true)).ok());
  // A grant of its tenant's lets others read it too.
  Peer stranger = h.Open(1001);
  EXPECT_TRUE(h.StatusOf(h.Grant(reader, h.handle, stranger.tenant)).ok());
  const ImportResult theirs = h.Get<ImportResult>(h.Import(stranger, h.handle, /*read_only=*/true));
  EXPECT_EQ(h.core->ListBlocks(stranger.caller()).at(0).name, "");
  h.LetGo(stranger, theirs.import);
}

TEST(CorePublishTest, DeletedItsNameIsFreeAtOnceAndItsMemoryWhenTheLastReaderIsDone) {
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
  // By its handle any session of its tenant frees it, too.
  EXPECT_EQ(h.Get<FreeResult>(h.Free(h.publisher, made.block.handle)).state, BlockState::kRetired);
}

TEST(CorePublishTest, AnOperatorDeletesAnybodys) {
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

TEST(CorePublishTest, AForgottenPublicationIsTheSessionsBlockAgain) {
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

TEST(CorePublishTest, ADeathBeforeThePublicationLeavesNoNameAndAfterItAWholeOne) {
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

TEST(CorePublishTest, NamesOfATenantAreBounded) {
  Config config = CoreHarness::DefaultConfig();
  config.limits.names_per_tenant = 1;
  Published h(config);
  const AllocateResult made = h.MustAllocate(h.publisher, MiB(2));
  const CallId refused = h.Publish(h.publisher, made.block.handle, "more", {made.import});
  EXPECT_TRUE(h.Refused(refused, Reason::kLimit));
  EXPECT_EQ(h.Figure(refused, "what"), "names_per_tenant");
}

TEST(CorePublishTest, AStaleBlockIsNotPublished) {
  CoreHarness h;
  Peer a = h.Open();
  const AllocateResult made = h.MustAllocate(a, MiB(2));
  h.Do([&](Core& core, Effects* effects) {
    core.ReportDevice(h.now, 0, Lane::kMain, {.generation = 2}, effects);
  });
  EXPECT_TRUE(h.Refused(h.Publish(a, made.block.handle, "x", {made.import}), Reason::kStale));
}

}  // namespace
}  // namespace berth::core
