// Restores ledgers of earlier schemas. testdata/ledger_schema_1 and ledger_schema_2 were written by programs of these
// schemas, with a record of each kind. ledger_schema_3 is of the current schema (docs/design/0018 describes their
// origin). With BERTH_WRITE_LEDGER=FILE in its environment this test writes that last file anew, until a program of the
// schema is released.

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "daemon/core/testing/core_harness.h"
#include "daemon/core/types/record_kind.h"
#include "daemon/ledger/ledger.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr char kGolden[] = "daemon/core/recovery/testdata/ledger_schema_1";
constexpr char kOfYesterday[] = "daemon/core/recovery/testdata/ledger_schema_2";
constexpr char kOfToday[] = "daemon/core/recovery/testdata/ledger_schema_3";

constexpr RecordKind kKinds[] = {
    RecordKind::kCounters,     RecordKind::kSession,        RecordKind::kChannel,
    RecordKind::kRequest,      RecordKind::kDelivery,       RecordKind::kPool,
    RecordKind::kPoolTenant,   RecordKind::kPermit,         RecordKind::kWaiter,
    RecordKind::kGang,         RecordKind::kPlan,           RecordKind::kAcquisition,
    RecordKind::kPoolCounters, RecordKind::kMemoryCounters, RecordKind::kDevice,
    RecordKind::kBudget,       RecordKind::kBlock,          RecordKind::kImport,
    RecordKind::kReservation,  RecordKind::kStream,         RecordKind::kUse,
    RecordKind::kFence,        RecordKind::kByteWaiter,
};

// Start and death of the schema 1 broker by its clock, the wall clock.
const absl::Time kBegun = absl::FromUnixSeconds(1'772'366'400);
const absl::Time kDied = kBegun + absl::Seconds(15);
// The death by the boot clock.
const absl::Time kBootTime = absl::UnixEpoch() + absl::Seconds(5'000);
const absl::Duration kClock = kBootTime - kDied;

// The last state that the broker showed, without the work under way outside.
constexpr char kAccounts[] = R"(session 1002 state 1 processes 2 units 5 waiters 0 live 2097152
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
    Take(kGolden);
    h_.now = kBootTime;
  }
  ~MigrationTest() override { std::filesystem::remove_all(folder_); }

  static LedgerIdentity Identity(uint32_t schema, uint32_t earliest) {
    return {.schema = schema, .earliest_schema = earliest, .node = 7, .incarnation = 9, .boot = "golden"};
  }
  std::unique_ptr<Ledger> Open() {
    auto ledger = Ledger::Open(folder_, Identity(kRecordSchema, kEarliestRecordSchema));
    EXPECT_TRUE(ledger.ok()) << ledger.status();
    return ledger.ok() ? *std::move(ledger) : nullptr;
  }
  static std::unique_ptr<Core> NewCore() {
    return std::make_unique<Core>(
        MakeConfig(), [] { return 1; }, [](StreamKey) { return FenceValues(); });
  }
  void Take(const char* file) {
    std::filesystem::copy_file(file, folder_ + "/" + Ledger::kName, std::filesystem::copy_options::overwrite_existing);
  }
  // Restores the golden ledger into the harness. Only the times of schema 1 use another clock.
  void Migrate(absl::Duration clock = kClock) {
    const std::unique_ptr<Ledger> ledger = Open();
    h_.core = NewCore();
    const absl::Status restored =
        Restore(ledger->AllRecords(), h_.core.get(), {.schema = ledger->schema(), .clock = clock});
    ASSERT_TRUE(restored.ok()) << restored;
    h_.records = h_.core->AllRecords();
    // Log records continue from the last number.
    const std::string& counters = h_.records.at(KeyOf(RecordKind::kCounters));
    LogRecord last;
    memcpy(&last.number, counters.data() + counters.size() - sizeof(last.number), sizeof(last.number));
    h_.log.push_back(last);
    for (const LeaseRecord& lease : h_.core->ListLeases()) h_.open_leases[{lease.kind, lease.id}] = lease;
  }

  CoreHarness h_;
  std::string folder_;
};

TEST_F(MigrationTest, MigratedStateIsUnchanged) {
  Migrate();
  h_.Restart(MakeConfig());
  EXPECT_TRUE(absl::StartsWith(h_.Accounts(), kAccounts)) << h_.Accounts();
}

TEST_F(MigrationTest, MigratedTimesBecomeBootTimes) {
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

TEST_F(MigrationTest, MigratedDeadlinesExpireOnTime) {
  Migrate();
  h_.Restart(MakeConfig());
  EXPECT_EQ(h_.Pool().overdue, 0u);
  // The holder was notified once, after an hour, and loses the permit after two.
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

TEST_F(MigrationTest, MigratedLedgerHasCurrentSchema) {
  {
    const std::unique_ptr<Ledger> ledger = Open();
    ASSERT_EQ(ledger->schema(), 1u);
    const std::unique_ptr<Core> core = NewCore();
    ASSERT_TRUE(Restore(ledger->AllRecords(), core.get(), {.schema = 1, .clock = kClock}).ok());
    const LedgerRecords records = core->AllRecords();
    EXPECT_NE(records, ledger->AllRecords());
    const absl::Status migrated = ledger->Migrate(records);
    ASSERT_TRUE(migrated.ok()) << migrated;
    EXPECT_EQ(ledger->schema(), kRecordSchema);
    EXPECT_EQ(ledger->AllRecords(), records);
    RecordBatch batch;
    batch.Put(KeyOf(RecordKind::kPool, 4711), "more");
    EXPECT_TRUE(ledger->Commit(batch).ok());
    EXPECT_TRUE(ledger->CheckCapacity().ok());
    batch.Clear();
    batch.Erase(KeyOf(RecordKind::kPool, 4711));
    EXPECT_TRUE(ledger->Commit(batch).ok());
  }
  const std::unique_ptr<Ledger> again = Open();
  EXPECT_EQ(again->schema(), kRecordSchema);
  const std::unique_ptr<Core> core = NewCore();
  ASSERT_TRUE(Restore(again->AllRecords(), core.get()).ok());
  EXPECT_EQ(core->AllRecords(), again->AllRecords()) << "there is nothing left of the other schema";
  // A daemon that reads only the earlier schema says so, and changes nothing.
  const absl::Status refused = Ledger::Open(folder_, Identity(1, 0)).status();
  EXPECT_TRUE(absl::StrContains(refused.message(), "version 1.3, and this daemon reads 1.1")) << refused;
}

// In schema 2 a tenant was its own account.
TEST_F(MigrationTest, Schema2TenantBecomesItsOwnAccount) {
  Take(kOfYesterday);
  Migrate(absl::ZeroDuration());
  const auto sessions = h_.core->ListSessions(CoreHarness::Admin());
  ASSERT_FALSE(sessions.empty());
  for (const SessionView& session : sessions) {
    EXPECT_EQ(session.tenant.account(), (Account{.uid = session.tenant.uid, .container = session.tenant.container}));
  }
  const LedgerRecords records = h_.core->AllRecords();
  EXPECT_EQ(records.size(), Open()->AllRecords().size());
  const std::unique_ptr<Core> core = NewCore();
  ASSERT_TRUE(Restore(records, core.get()).ok());
  EXPECT_EQ(core->AllRecords(), records);
}

// The ledger of schema 2, with the additions of schema 3.
TEST_F(MigrationTest, CurrentSchemaIsWritten) {
  const char* const out = ::getenv("BERTH_WRITE_LEDGER");
  if (out == nullptr) GTEST_SKIP() << "only to make testdata";
  Take(kOfYesterday);
  const std::unique_ptr<Ledger> ledger = Open();
  const std::unique_ptr<Core> core = NewCore();
  ASSERT_TRUE(Restore(ledger->AllRecords(), core.get(), {.schema = 2}).ok());
  const Tenant contained = {.uid = 100'000, .container = "/a/b", .charged_account = Account{.uid = 1000}};
  const auto session = core->OpenSession(kBootTime, Secret(), contained, "contained", {.pid = 1, .uid = contained.uid});
  ASSERT_TRUE(session.ok()) << session.status();
  const auto channel = core->JoinSession(kBootTime, *session, Secret(), contained, {.pid = 2, .uid = contained.uid});
  ASSERT_TRUE(channel.ok()) << channel.status();
  Effects effects;
  core->Acquire(kBootTime, CallId(1),
                {.credentials = {.session = *session, .channel = *channel, .secret = Secret()}, .tenant = contained},
                {.sequence = 1}, {.pool = "wide", .holder_key = "a"}, &effects);
  ASSERT_TRUE(ledger->Migrate(core->AllRecords()).ok());
  std::ifstream file(folder_ + "/" + Ledger::kName, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // Free space follows the last commit; some of it stays, because a commit may end in zeroes.
  bytes.resize(std::min(bytes.size(), bytes.find_last_not_of('\0') + 65));
  std::ofstream(out, std::ios::binary) << bytes;
}

TEST_F(MigrationTest, CurrentSchemaLedgerIsRestoredByteForByte) {
  Take(kOfToday);
  const std::unique_ptr<Ledger> ledger = Open();
  ASSERT_EQ(ledger->schema(), kRecordSchema) << "there is another schema: it needs a ledger of its own here, too";
  const LedgerRecords records = ledger->AllRecords();
  std::set<uint32_t> kinds;
  for (const auto& [key, content] : records) kinds.insert(key.kind);
  for (const RecordKind kind : kKinds) {
    EXPECT_EQ(kinds.erase(static_cast<uint32_t>(kind)), 1u) << "there is no row of kind " << static_cast<int>(kind);
  }
  EXPECT_TRUE(kinds.empty()) << *kinds.begin();
  const std::unique_ptr<Core> core = NewCore();
  const absl::Status restored = Restore(records, core.get());
  ASSERT_TRUE(restored.ok()) << restored << ": a record has changed without its schema: move kRecordSchema";
  const LedgerRecords again = core->AllRecords();
  EXPECT_EQ(again.size(), records.size());
  for (const auto& [key, content] : records) {
    const auto same = again.find(key);
    ASSERT_NE(same, again.end()) << key.kind;
    EXPECT_TRUE(same->second == content) << "a record of kind " << key.kind << " has changed: move kRecordSchema";
  }
}

TEST_F(MigrationTest, Schema2IsMigratedToCurrent) {
  Take(kOfYesterday);
  const std::unique_ptr<Ledger> ledger = Open();
  ASSERT_EQ(ledger->schema(), 2u);
  const std::unique_ptr<Core> core = NewCore();
  const absl::Status restored = Restore(ledger->AllRecords(), core.get(), {.schema = 2});
  ASSERT_TRUE(restored.ok()) << restored;
  const LedgerRecords records = core->AllRecords();
  EXPECT_EQ(records.size(), ledger->AllRecords().size());
  ASSERT_TRUE(ledger->Migrate(records).ok());
  const std::unique_ptr<Core> again = NewCore();
  ASSERT_TRUE(Restore(Open()->AllRecords(), again.get()).ok());
  EXPECT_EQ(again->AllRecords(), records);
}

TEST_F(MigrationTest, UnreadSchemaIsRejectedByName) {
  const absl::Status later = Ledger::Open(folder_, Identity(5, 2)).status();
  EXPECT_TRUE(absl::StrContains(later.message(), "version 1.1, and this daemon reads 1.2 to 1.5")) << later;
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/" + Ledger::kName));
}

TEST_F(MigrationTest, TruncatedRecordsAreUnreadableInOldSchema) {
  const LedgerRecords good = Open()->AllRecords();
  for (const auto& [key, content] : good) {
    LedgerRecords records = good;
    records[key] = content.substr(0, content.size() / 2);
    if (records[key] == content) continue;
    EXPECT_FALSE(Restore(records, NewCore().get(), {.schema = 1, .clock = kClock}).ok()) << key.kind;
  }
}

}  // namespace
}  // namespace berth::core
