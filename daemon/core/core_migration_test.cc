// A broker of today finds what one of yesterday has kept: testdata/ledger_schema_1 is a ledger as the last program of
// schema 1 wrote it, with a row of each kind, and ledger_schema_2 one of today's schema (docs/design/0018 says how they
// came about).

#include <stdlib.h>
#include <string.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "daemon/core/core_harness.h"
#include "daemon/core/row_kind.h"
#include "daemon/ledger/ledger.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr char kGolden[] = "daemon/core/testdata/ledger_schema_1";
constexpr char kOfToday[] = "daemon/core/testdata/ledger_schema_2";

constexpr RowKind kKinds[] = {
    RowKind::kCounters,       RowKind::kSession,     RowKind::kChannel, RowKind::kRequest, RowKind::kDelivery,
    RowKind::kPool,           RowKind::kPoolTenant,  RowKind::kPermit,  RowKind::kWaiter,  RowKind::kGang,
    RowKind::kPlan,           RowKind::kAcquisition, RowKind::kPoolFigures,
    RowKind::kMemoryCounters, RowKind::kDevice,      RowKind::kBudget,  RowKind::kBlock,   RowKind::kImport,
    RowKind::kReservation,    RowKind::kStream,      RowKind::kUse,     RowKind::kFence,   RowKind::kRoomWaiter,
};

// When its broker began, by its clock, which was the wall's; and when it died.
const absl::Time kBegun = absl::FromUnixSeconds(1'772'366'400);
const absl::Time kDied = kBegun + absl::Seconds(15);
// When that was by the boot's.
const absl::Time kBootTime = absl::UnixEpoch() + absl::Seconds(5'000);
const absl::Duration kClock = kBootTime - kDied;

// What it showed last, but for what was under way outside.
constexpr char kBooks[] = R"(session 1002 state 1 processes 2 units 5 waiters 0 live 2097152
session 1008 state 1 processes 1 units 0 waiters 3 live 0
session 1012 state 1 processes 1 units 1 waiters 0 live 0
session 1016 state 2 processes 1 units 2 waiters 0 live 0
session 1027 state 1 processes 1 units 0 waiters 0 live 0
pool gpu-tests cap 2 out 2 holders 1 waiters 2 granted 1
pool placed cap 4 out 1 holders 1 waiters 0 granted 1
pool wide cap 8 out 5 holders 4 waiters 1 granted 4
permit 1 depth 2 units 2
permit 2 depth 1 units 1
permit 3 depth 1 units 1
permit 4 depth 1 units 1
permit 5 depth 1 units 1
permit 6 depth 1 units 2
block 1021 state 2 owner 1002 name  imports 2
block 1022 state 2 owner 0 name weights imports 0
block 1023 state 4 owner 0 name  imports 1
block 1030 state 1 owner 1012 name  imports 0
device 0 state 1 budget 16777216 live 6291456 retired 0 quarantined 2097152 warm 0 reserved 2097152
device 1 state 1 budget 16777216 live 0 retired 0 quarantined 0 warm 0 reserved 6291456
device budget on 0 tenant 0 session 0 charged 10485760 peak 10485760 allocations 3 busy 0
device budget on 1 tenant 0 session 0 charged 6291456 peak 4194304 allocations 0 busy 0
session budget on 0 tenant 1000 session 1002 charged 4194304 peak 4194304 allocations 2 busy 0
tenant budget on 0 tenant 1000 session 0 charged 4194304 peak 4194304 allocations 2 busy 0
session budget on 0 tenant 1002 session 1012 charged 0 peak 4194304 allocations 1 busy 0
tenant budget on 0 tenant 1002 session 0 charged 4194304 peak 4194304 allocations 1 busy 0
tenant budget on 0 tenant 1001 session 0 charged 2097152 peak 2097152 allocations 0 busy 0
session budget on 1 tenant 1001 session 1008 charged 4194304 peak 4194304 allocations 0 busy 0
tenant budget on 1 tenant 1001 session 0 charged 4194304 peak 4194304 allocations 0 busy 0
session budget on 1 tenant 1002 session 1012 charged 2097152 peak 0 allocations 0 busy 0
tenant budget on 1 tenant 1002 session 0 charged 2097152 peak 0 allocations 0 busy 0
reservation 1024 2097152
reservation 1025 4194304
plan 1019 revision 1 stale 0
)";

class MigrationTest : public testing::Test {
 protected:
  static Config MakeConfig() {
    Config config = CoreHarness::DefaultConfig();
    config.pools[0].hold_warning = absl::Hours(1);
    config.pools[0].hold_limit = absl::Hours(2);
    config.pools.push_back({.name = "placed", .cap = 4, .device_cap = 2});
    return config;
  }

  MigrationTest() : h_(MakeConfig()) {
    std::string name = testing::TempDir() + "/migration-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    std::filesystem::copy_file(kGolden, folder_ + "/" + Ledger::kName);
    h_.now = kBootTime;
  }
  ~MigrationTest() override { std::filesystem::remove_all(folder_); }

  static LedgerIdentity Identity(uint32_t schema, uint32_t earliest) {
    return {.schema = schema, .earliest_schema = earliest, .node = 7, .incarnation = 9, .boot = "golden"};
  }
  std::unique_ptr<Ledger> Open() {
    auto ledger = Ledger::Open(folder_, Identity(kRowSchema, kEarliestRowSchema));
    EXPECT_TRUE(ledger.ok()) << ledger.status();
    return ledger.ok() ? *std::move(ledger) : nullptr;
  }
  static std::unique_ptr<Core> NewCore() {
    return std::make_unique<Core>(
        MakeConfig(), [] { return 1; }, [](StreamKey) { return StreamWords(); });
  }
  // Has the harness go on with the golden ledger.
  void Migrate() {
    const std::unique_ptr<Ledger> ledger = Open();
    h_.core = NewCore();
    const absl::Status restored =
        Restore(ledger->AllRows(), h_.core.get(), {.schema = ledger->schema(), .clock = kClock});
    ASSERT_TRUE(restored.ok()) << restored;
    h_.rows = h_.core->AllRows();
    // Records go on from the number that was the last.
    const std::string& counters = h_.rows.at(KeyOf(RowKind::kCounters));
    LogRecord last;
    memcpy(&last.number, counters.data() + counters.size() - sizeof(last.number), sizeof(last.number));
    h_.log.push_back(last);
    for (const LeaseRecord& lease : h_.core->ListLeases()) h_.open_leases[{lease.kind, lease.id}] = lease;
  }

  CoreHarness h_;
  std::string folder_;
};

TEST_F(MigrationTest, AllIsAsItWas) {
  Migrate();
  h_.Restart(MakeConfig());
  EXPECT_TRUE(absl::StartsWith(h_.Books(), kBooks)) << h_.Books();
}

TEST_F(MigrationTest, ItsTimesAreTheBootsFromThenOn) {
  Migrate();
  const auto at = [](absl::Duration after_begin) { return kBootTime - (kDied - kBegun) + after_begin; };
  const auto permits = h_.core->ListPermits(CoreHarness::Admin(), "gpu-tests");
  EXPECT_EQ(permits.at(0).granted_at, at(absl::ZeroDuration()));
  EXPECT_EQ(h_.core->ListSessions(CoreHarness::Admin()).at(0).opened_at, at(absl::ZeroDuration()));
  EXPECT_EQ(h_.core->ListWaiters(CoreHarness::Admin(), "gpu-tests").at(0).since, at(absl::Seconds(10)));
  const auto reservations = h_.core->ListReservations(CoreHarness::Admin());
  EXPECT_EQ(reservations.at(0).since, at(absl::Seconds(10)));
  EXPECT_EQ(reservations.at(0).expires, at(absl::Seconds(10) + absl::Minutes(30)));
  EXPECT_EQ(reservations.at(1).expires, absl::InfiniteFuture());
  const auto blocks = h_.core->ListBlocks(CoreHarness::Admin());
  EXPECT_EQ(blocks.at(0).live_since, at(absl::Seconds(10)));
  EXPECT_EQ(h_.core->ListPlans(CoreHarness::Admin()).at(0).layout->made, at(absl::Seconds(10)));
  for (const LeaseRecord& lease : h_.core->ListLeases()) EXPECT_LE(lease.granted_at, kBootTime) << lease.id;
}

TEST_F(MigrationTest, DeadlinesAndHoldLimitsComeWhenTheyWouldHaveCome) {
  Migrate();
  h_.Restart(MakeConfig());
  EXPECT_EQ(h_.Pool().overdue, 0u);
  // Its holder was told once, after an hour, and loses it after two.
  h_.now = kBootTime - absl::Seconds(15) + absl::Hours(1);
  h_.Tick();
  EXPECT_EQ(h_.Pool().overdue, 1u);
  EXPECT_EQ(h_.core->ListReservations(CoreHarness::Admin()).size(), 1u) << "30 minutes are over";
  h_.now += absl::Hours(1) - absl::Seconds(1);
  h_.Tick();
  EXPECT_EQ(h_.Pool().out, 2u);
  h_.now += absl::Seconds(1);
  h_.Tick();
  EXPECT_EQ(h_.Pool().out, 0u);
}

TEST_F(MigrationTest, WhatIsKeptFromThenOnIsOfTodaysSchema) {
  {
    const std::unique_ptr<Ledger> ledger = Open();
    ASSERT_EQ(ledger->schema(), 1u);
    const std::unique_ptr<Core> core = NewCore();
    ASSERT_TRUE(Restore(ledger->AllRows(), core.get(), {.schema = 1, .clock = kClock}).ok());
    const Rows rows = core->AllRows();
    EXPECT_NE(rows, ledger->AllRows());
    const absl::Status migrated = ledger->Migrate(rows);
    ASSERT_TRUE(migrated.ok()) << migrated;
    EXPECT_EQ(ledger->schema(), kRowSchema);
    EXPECT_EQ(ledger->AllRows(), rows);
    RowBatch batch;
    batch.Put(KeyOf(RowKind::kPool, 4711), "more");
    EXPECT_TRUE(ledger->Commit(batch).ok());
    EXPECT_TRUE(ledger->CheckRoom().ok());
    batch.Clear();
    batch.Erase(KeyOf(RowKind::kPool, 4711));
    EXPECT_TRUE(ledger->Commit(batch).ok());
  }
  const std::unique_ptr<Ledger> again = Open();
  EXPECT_EQ(again->schema(), kRowSchema);
  const std::unique_ptr<Core> core = NewCore();
  ASSERT_TRUE(Restore(again->AllRows(), core.get()).ok());
  EXPECT_EQ(core->AllRows(), again->AllRows()) << "there is nothing left of the other schema";
  // Who knows only the earlier one says so, and changes nothing.
  const absl::Status refused = Ledger::Open(folder_, Identity(1, 0)).status();
  EXPECT_TRUE(absl::StrContains(refused.message(), "of version 1.2, this daemon reads 1.1")) << refused;
}

TEST_F(MigrationTest, ALedgerOfTodaysSchemaComesBackToTheByte) {
  std::filesystem::copy_file(kOfToday, folder_ + "/" + Ledger::kName,
                             std::filesystem::copy_options::overwrite_existing);
  const std::unique_ptr<Ledger> ledger = Open();
  ASSERT_EQ(ledger->schema(), kRowSchema) << "there is another schema: it needs a ledger of its own here, too";
  const Rows rows = ledger->AllRows();
  std::set<uint32_t> kinds;
  for (const auto& [key, content] : rows) kinds.insert(key.kind);
  for (const RowKind kind : kKinds) {
    EXPECT_EQ(kinds.erase(static_cast<uint32_t>(kind)), 1u) << "there is no row of kind " << static_cast<int>(kind);
  }
  EXPECT_TRUE(kinds.empty()) << *kinds.begin();
  const std::unique_ptr<Core> core = NewCore();
  const absl::Status restored = Restore(rows, core.get());
  ASSERT_TRUE(restored.ok()) << restored << ": a row has changed without its schema: move kRowSchema";
  const Rows again = core->AllRows();
  EXPECT_EQ(again.size(), rows.size());
  for (const auto& [key, content] : rows) {
    const auto same = again.find(key);
    ASSERT_NE(same, again.end()) << key.kind;
    EXPECT_TRUE(same->second == content) << "a row of kind " << key.kind << " has changed: move kRowSchema";
  }
}

TEST_F(MigrationTest, ASchemaThatIsNotReadIsSaid) {
  const absl::Status later = Ledger::Open(folder_, Identity(5, 2)).status();
  EXPECT_TRUE(absl::StrContains(later.message(), "of version 1.1, this daemon reads 1.2 to 1.5")) << later;
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/" + Ledger::kName));
}

TEST_F(MigrationTest, RowsThatAreCutShortAreUnreadableByTheEarlierSchemaToo) {
  const Rows good = Open()->AllRows();
  for (const auto& [key, content] : good) {
    Rows rows = good;
    rows[key] = content.substr(0, content.size() / 2);
    if (rows[key] == content) continue;
    EXPECT_FALSE(Restore(rows, NewCore().get(), {.schema = 1, .clock = kClock}).ok()) << key.kind;
  }
}

}  // namespace
}  // namespace berth::core
