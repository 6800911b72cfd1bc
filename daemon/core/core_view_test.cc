#include "daemon/core/core_harness.h"

namespace berth::core {
namespace {

AcquireRequest One(const std::string& key) {
  return {.pool = "gpu-tests", .holder_key = key, .label = "l " + key};
}

TEST(CoreViewTest, ATenantSeesItsOwnAndAnAdminEverything) {
  CoreHarness h;
  Peer a = h.Open(1000), b = h.Open(2000);
  h.MustAcquire(a, One("1"));
  h.MustAcquire(b, One("1"));
  h.Acquire(a, One("2"));
  h.Acquire(b, One("2"));
  h.MustAllocate(a, MiB(2));
  h.MustAllocate(b, MiB(4));
  EXPECT_EQ(h.core->ListSessions(a.caller()).size(), 1);
  EXPECT_EQ(h.core->ListSessions(h.Admin()).size(), 2);
  EXPECT_EQ(h.core->ListPermits(a.caller(), "").size(), 1);
  EXPECT_EQ(h.core->ListPermits(h.Admin(), "gpu-tests").size(), 2);
  EXPECT_TRUE(h.core->ListPermits(h.Admin(), "wide").empty());
  ASSERT_EQ(h.core->ListWaiters(b.caller(), "").size(), 1);
  EXPECT_EQ(h.core->ListWaiters(b.caller(), "")[0].position, 2);
  EXPECT_EQ(h.core->ListWaiters(h.Admin(), "").size(), 2);
  EXPECT_EQ(h.core->ListBlocks(a.caller()).size(), 1);
  EXPECT_EQ(h.core->ListBlocks(h.Admin()).size(), 2);
  EXPECT_EQ(h.core->GetUsage(a.caller()).rows.size(), 1);
  EXPECT_EQ(h.core->GetUsage(h.Admin()).rows.size(), 2);
  EXPECT_EQ(h.core->GetUsage(a.caller()).devices[0].bytes.live, MiB(6));
  EXPECT_TRUE(IsRefusal(h.core->GetSession(a.caller(), b.session).status(), Reason::kNotFound));
  EXPECT_TRUE(h.core->GetSession(h.Admin(), b.session).ok());
  EXPECT_TRUE(IsRefusal(h.core->GetPool("none").status(), Reason::kNotFound));
  EXPECT_EQ(h.core->ListPools().size(), 2);
}

TEST(CoreViewTest, ASessionShowsWhatItHolds) {
  CoreHarness h;
  Peer a = h.Open();
  h.JoinTo(a);
  h.MustAcquire(a, One("1"));
  h.MustAcquire(a, {.pool = "wide", .units = 8, .holder_key = "1"});
  h.Acquire(a, {.pool = "wide", .holder_key = "2"});
  h.MustAllocate(a, MiB(2));
  const SessionView view = *h.core->GetSession(a.caller(), SessionId());
  EXPECT_EQ(view.id, a.session);
  EXPECT_EQ(view.tenant, a.tenant);
  EXPECT_EQ(view.label, "test");
  EXPECT_EQ(view.state, SessionState::kActive);
  EXPECT_EQ(view.opened_at, h.now);
  EXPECT_EQ(view.opener.pid, 1);
  EXPECT_EQ(view.processes.size(), 2);
  EXPECT_EQ(view.permit_units, 9);
  EXPECT_EQ(view.waiters, 1);
  EXPECT_EQ(view.live, MiB(2));
}

TEST(CoreViewTest, APermitShowsWhoHoldsItSinceWhenAndHowLongItWaited) {
  CoreHarness h;
  Peer a = h.Open();
  const AcquireResult first = h.MustAcquire(a, One("1"));
  h.MustAcquire(a, One("2"));
  h.Acquire(a, One("3"));
  EXPECT_EQ(h.core->ListWaiters(a.caller(), "")[0].since, h.now);
  h.now += absl::Seconds(5);
  h.Release(a, first.acquisition);
  const PermitView view = h.core->ListPermits(a.caller(), "gpu-tests").at(1);
  EXPECT_EQ(view.holder_key, "3");
  EXPECT_EQ(view.label, "l 3");
  EXPECT_EQ(view.granted_at, h.now);
  EXPECT_EQ(view.waited, absl::Seconds(5));
  EXPECT_EQ(view.process.name, "tester");
  EXPECT_EQ(view.depth, 1);
}

TEST(CoreViewTest, AQuarantinedBlockStandsInARowOfEachImportersTenantAndOnceInTheDevice) {
  CoreHarness h;
  Peer owner = h.Open(1000), b = h.Open(2000), c = h.Open(3000);
  const AllocateResult block = h.MustAllocate(owner, MiB(2));
  h.Grant(owner, block.block.handle, b.tenant);
  h.Grant(owner, block.block.handle, c.tenant);
  h.Import(b, block.block.handle);
  h.Import(b, block.block.handle);
  h.Import(c, block.block.handle);
  h.Free(owner, block.block.handle, {block.import});
  const UsageView usage = h.core->GetUsage(h.Admin());
  ASSERT_EQ(usage.rows.size(), 2);
  EXPECT_EQ(usage.rows[0].tenant, b.tenant);
  EXPECT_EQ(usage.rows[0].bytes.quarantined, MiB(2));
  EXPECT_EQ(usage.rows[0].session, SessionId());
  EXPECT_EQ(usage.rows[1].tenant, c.tenant);
  EXPECT_EQ(usage.devices[0].bytes.quarantined, MiB(2));
  EXPECT_TRUE(h.core->GetUsage(owner.caller()).rows.empty());
}

TEST(CoreViewTest, AnImporterSeesTheBlockButNotOtherTenantsImports) {
  CoreHarness h;
  Peer owner = h.Open(1000), importer = h.Open(2000);
  const AllocateResult block = h.MustAllocate(owner, MiB(2));
  h.Grant(owner, block.block.handle, importer.tenant);
  const ImportResult import = h.Get<ImportResult>(h.Import(importer, block.block.handle));
  ASSERT_EQ(import.block.imports.size(), 1);
  EXPECT_EQ(import.block.imports[0].id, import.import);
  EXPECT_EQ(h.core->ListBlocks(importer.caller()).at(0).imports.size(), 1);
  EXPECT_EQ(h.core->ListBlocks(owner.caller()).at(0).imports.size(), 2);
  EXPECT_EQ(h.core->ListBlocks(h.Admin()).at(0).imports.size(), 2);
}

TEST(CoreViewTest, UsageRowsAreBySessionAndLabel) {
  CoreHarness h;
  Peer a = h.Open();
  h.Allocate(a, {.bytes = MiB(2), .label = "x"});
  h.Allocate(a, {.bytes = MiB(4), .label = "x"});
  h.Allocate(a, {.bytes = MiB(2), .label = "y"});
  h.WorkOnce();
  const UsageView usage = h.core->GetUsage(a.caller());
  ASSERT_EQ(usage.rows.size(), 2);
  EXPECT_EQ(usage.rows[0].label, "x");
  EXPECT_EQ(usage.rows[0].bytes.live, MiB(2));
  EXPECT_EQ(usage.rows[0].bytes.reserved, MiB(4));
  EXPECT_EQ(usage.rows[1].bytes.reserved, MiB(2));
}

}  // namespace
}  // namespace berth::core
