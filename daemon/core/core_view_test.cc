#include <string>
#include <vector>

#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

AcquireRequest One(const std::string& key) {
  return {.pool = "gpu-tests", .holder_key = key, .label = "l " + key};
}

TEST(CoreViewTest, TenantSeesItsOwnAdminSeesAll) {
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

TEST(CoreViewTest, SessionShowsItsLeases) {
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

TEST(CoreViewTest, PermitShowsHolderSinceAndWaitTime) {
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

TEST(CoreViewTest, QuarantinedBlockHasRowPerImporterTenant) {
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

TEST(CoreViewTest, ImporterSeesBlockWithoutOthersImports) {
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

// Returns the keys of all entries, read page by page; after each page `between` may change the core.
template <typename List, typename Key, typename Between>
std::vector<uint64_t> ReadPages(uint64_t rows, List list, Key key, Between between) {
  std::vector<uint64_t> keys;
  PageRequest request = {.rows = rows};
  while (true) {
    const auto page = list(request);
    EXPECT_LE(page.size(), rows);
    for (const auto& row : page) keys.push_back(key(row));
    if (!page.more) return keys;
    EXPECT_FALSE(page.empty());
    request.after = page.last;
    between();
  }
}

TEST(CoreViewTest, PagesOfAnySizeMakeUpList) {
  CoreHarness h;
  std::vector<Peer> peers;
  for (int i = 0; i < 6; ++i) {
    peers.push_back(h.Open(i % 2 == 0 ? 1000 : 2000));
    h.MustAllocate(peers.back(), MiB(2));
    h.MustAcquire(peers.back(), {.pool = "wide", .holder_key = "k"});
  }
  h.MustAcquire(peers[0], One("1"));
  const auto nothing = [] {};
  for (const Caller& caller : {h.Admin(), peers[0].caller(), peers[1].caller()}) {
    for (const uint64_t rows : {1, 2, 3, 5, 6, 7, 100}) {
      const auto sessions = [&](const PageRequest& page) { return h.core->ListSessions(caller, page); };
      const auto session_id = [](const SessionView& view) { return view.id.value(); };
      const auto blocks = [&](const PageRequest& page) { return h.core->ListBlocks(caller, page); };
      const auto block_id = [](const BlockView& view) { return view.handle.block.value(); };
      const auto permits = [&](const PageRequest& page) { return h.core->ListPermits(caller, "", page); };
      const auto permit_id = [](const PermitView& view) { return view.id.value(); };
      const auto pools = [&](const PageRequest& page) { return h.core->ListPools(page); };
      const auto pool_size = [](const PoolView& view) { return view.config.cap; };
      EXPECT_EQ(ReadPages(rows, sessions, session_id, nothing),
                ReadPages(UINT64_MAX, sessions, session_id, nothing));
      EXPECT_EQ(ReadPages(rows, blocks, block_id, nothing), ReadPages(UINT64_MAX, blocks, block_id, nothing));
      EXPECT_EQ(ReadPages(rows, permits, permit_id, nothing),
                ReadPages(UINT64_MAX, permits, permit_id, nothing));
      EXPECT_EQ(ReadPages(rows, pools, pool_size, nothing), (std::vector<uint64_t>{2, 8}));
    }
  }
  EXPECT_EQ(h.core->ListBlocks(h.Admin(), {.rows = 6}).more, false) << "the last page says that it is";
}

TEST(CoreViewTest, ChangesBetweenPagesShiftNoRecords) {
  CoreHarness h;
  std::vector<Peer> peers;
  std::vector<uint64_t> opened;
  for (int i = 0; i < 4; ++i) {
    peers.push_back(h.Open());
    opened.push_back(peers.back().session.value());
  }
  int page = 0;
  const std::vector<uint64_t> read = ReadPages(
      2, [&](const PageRequest& request) { return h.core->ListSessions(h.Admin(), request); },
      [](const SessionView& view) { return view.id.value(); },
      [&] {
        if (page++ > 0) return;
        for (const int gone : {0, 1}) {
          h.Gone(peers[gone]);
          h.HangUp(peers[gone]);
        }
        opened.push_back(h.Open().session.value());
      });
  EXPECT_EQ(read, opened);
}

TEST(CoreViewTest, PageEndsEarlyAtImporterLimit) {
  CoreHarness h;
  Peer a = h.Open();
  for (int i = 0; i < 3; ++i) {
    const BlockHandle handle = h.MustAllocate(a, MiB(2)).block.handle;
    for (int k = 0; k < 2; ++k) h.Import(a, handle);
  }
  const Page<BlockView> page = h.core->ListBlocks(h.Admin(), {.parts = 4});
  EXPECT_EQ(page.size(), 2u) << "the row that goes over the bound is whole, and the last";
  EXPECT_TRUE(page.more);
  EXPECT_EQ(h.core->ListBlocks(h.Admin(), {.after = page.last, .parts = 1}).size(), 1u);
}

TEST(CoreViewTest, WaiterListIsTruncatedToFirst) {
  CoreHarness h;
  Peer a = h.Open(1000), b = h.Open(2000);
  h.MustAcquire(a, {.pool = "gpu-tests", .units = 2, .holder_key = "all"});
  for (int i = 0; i < 4; ++i) h.Acquire(i % 2 == 0 ? a : b, One(std::to_string(i)));
  const std::vector<WaiterView> of_b = h.core->ListWaiters(b.caller(), "", 1);
  ASSERT_EQ(of_b.size(), 1u);
  EXPECT_EQ(of_b[0].position, 1) << "its tenant has had nothing, the other everything";
  EXPECT_EQ(h.core->ListWaiters(h.Admin(), "", 3).size(), 3u);
}

TEST(CoreViewTest, CountsCoverPermitsAndWaitersOfAllPages) {
  CoreHarness h;
  Peer a = h.Open(1000), b = h.Open(2000);
  h.MustAcquire(a, {.pool = "gpu-tests", .units = 2, .holder_key = "all"});
  h.MustAcquire(b, {.pool = "wide", .units = 3, .holder_key = "some"});
  for (int i = 0; i < 5; ++i) h.Acquire(i < 2 ? a : b, One(std::to_string(i)));
  const PermitCounts of_a = h.core->CountPermits(a.caller(), "");
  ASSERT_EQ(of_a.pools.size(), 2u);
  EXPECT_EQ(of_a.pools[0].pool, "gpu-tests");
  EXPECT_EQ(of_a.pools[0].cap, 2u);
  EXPECT_EQ(of_a.pools[0].all, (PoolUse::Counts{.units = 2, .holders = 1, .waiters = 5}));
  EXPECT_EQ(of_a.pools[0].visible, (PoolUse::Counts{.units = 2, .holders = 1, .waiters = 2}));
  EXPECT_EQ(of_a.pools[1].all, (PoolUse::Counts{.units = 3, .holders = 1}));
  EXPECT_EQ(of_a.pools[1].visible, PoolUse::Counts());
  EXPECT_EQ(of_a.waiting_requests, 2u);
  const PermitCounts of_admin = h.core->CountPermits(h.Admin(), "wide");
  ASSERT_EQ(of_admin.pools.size(), 1u);
  EXPECT_EQ(of_admin.pools[0].visible, of_a.pools[1].all);
  EXPECT_EQ(of_admin.waiting_requests, 0u);
}

TEST(CoreViewTest, WaitingGangCountsAsOneRequest) {
  CoreHarness h;
  Peer a = h.Open(1000), b = h.Open(2000);
  h.MustAcquire(a, {.pool = "gpu-tests", .units = 2, .holder_key = "all"});
  h.AcquireGang(b, {.members = {{.pool = "gpu-tests"}, {.pool = "wide"}}, .holder_key = "g"});
  h.Acquire(a, One("1"));
  EXPECT_EQ(h.core->CountPermits(a.caller(), "").waiting_requests, 1u);
  EXPECT_EQ(h.core->CountPermits(b.caller(), "").waiting_requests, 1u);
  EXPECT_EQ(h.core->CountPermits(h.Admin(), "").waiting_requests, 2u);
  EXPECT_EQ(h.core->CountPermits(h.Admin(), "").pools[1].visible.waiters, 1u);
  EXPECT_EQ(h.core->CountPermits(h.Admin(), "gpu-tests").waiting_requests, 2u);
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
