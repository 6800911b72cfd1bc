#include "daemon/ledger/history_store.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using core::LeaseEnd;
using core::LeaseKind;
using core::LeaseRecord;

const absl::Time kStart = absl::FromUnixSeconds(1'772'366'400);

LeaseRecord Permit(uint64_t id, uint32_t uid = 1000) {
  return {.kind = LeaseKind::kPermit,
          .id = id,
          .session = SessionId(id + 100),
          .tenant = {.uid = uid},
          .process = {.pid = 42, .uid = uid, .name = "job"},
          .label = "a label",
          .pool = "gpu-tests",
          .units = 2,
          .bytes = MiB(3),
          .devices = "GPU-1,GPU-2",
          .granted_at = kStart + absl::Seconds(id),
          .waited = absl::Milliseconds(1500)};
}

LeaseRecord End(LeaseRecord lease, LeaseEnd how = LeaseEnd::kReleased, absl::Duration held = absl::Seconds(10)) {
  lease.end = how;
  lease.ended_at = lease.granted_at + held;
  lease.held = held;
  return lease;
}

class HistoryStoreTest : public testing::Test {
 protected:
  HistoryStoreTest() {
    std::string name = testing::TempDir() + "/history-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    options_ = {.folder = name, .size = MiB(8), .rows = 5'000, .incarnation = 9};
    Reopen();
  }
  ~HistoryStoreTest() override { std::filesystem::remove_all(options_.folder); }

  std::string path() const { return options_.folder + "/" + HistoryStore::kName; }
  void Reopen() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<HistoryStore>> store = HistoryStore::Open(options_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  void Write(const std::vector<LeaseRecord>& records) {
    size_t written = 0;
    const absl::Status status = store_->Write(records, &written);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(written, records.size());
  }
  core::Page<HistoryLease> List(HistoryQuery query = {}) {
    if (query.rows == 0) query.rows = 100'000;
    const auto page = store_->List(query);
    EXPECT_TRUE(page.ok()) << page.status();
    return page.value_or(core::Page<HistoryLease>());
  }
  std::vector<uint64_t> Ids(const HistoryQuery& query = {}) {
    std::vector<uint64_t> ids;
    for (const HistoryLease& row : List(query)) ids.push_back(row.lease.id);
    return ids;
  }
  // Closes the store and changes its database.
  void Execute(const std::string& text) {
    store_.reset();
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path().c_str(), &database), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(database, text.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(database);
    ASSERT_EQ(sqlite3_close(database), SQLITE_OK);
  }
  uint64_t BytesOnDisk() const {
    uint64_t bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(options_.folder)) bytes += file.file_size();
    return bytes;
  }

  HistoryStore::Options options_;
  std::unique_ptr<HistoryStore> store_;
};

TEST_F(HistoryStoreTest, FolderMayHaveAnyName) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(options_.folder);
  for (const std::string& name : std::vector<std::string>{"a b", "a%20b", "a?mode=ro", "a#b", "a,b:c", "a\nb", "a\xff",
                                                          "file:a", "file:a?mode=memory"}) {
    for (const std::string& folder : {name, absl::StrCat(options_.folder, "/", name)}) {
      HistoryStore::Options options = options_;
      options.folder = folder;
      const auto store = HistoryStore::Open(options);
      EXPECT_TRUE(store.ok()) << store.status();
      EXPECT_TRUE(std::filesystem::exists(absl::StrCat(options_.folder, "/", name, "/history.db"))) << folder;
    }
  }
  std::filesystem::current_path(before);
}

TEST_F(HistoryStoreTest, TooLongPathIsRefusedWithLimit) {
  HistoryStore::Options options = options_;
  for (int i = 0; i < 3; ++i) absl::StrAppend(&options.folder, "/", std::string(200, 'x'));
  std::filesystem::create_directories(options.folder);
  const absl::Status status = HistoryStore::Open(options).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "limit 504 of SQLite")) << status;
}

TEST_F(HistoryStoreTest, LeaseIsRecordedAndCompletedByItsEnd) {
  const LeaseRecord granted = Permit(7);
  Write({granted});
  ASSERT_EQ(List().size(), 1u);
  EXPECT_EQ(List()[0].lease.end, LeaseEnd::kNone);
  EXPECT_FALSE(List()[0].end_seen);
  Write({End(granted, LeaseEnd::kRevoked)});
  Reopen();
  const auto page = List();
  ASSERT_EQ(page.size(), 1u);
  const HistoryLease& row = page[0];
  const LeaseRecord& lease = row.lease;
  EXPECT_EQ(row.incarnation, 9u);
  EXPECT_EQ(lease.kind, LeaseKind::kPermit);
  EXPECT_EQ(lease.id, 7u);
  EXPECT_EQ(lease.session, granted.session);
  EXPECT_EQ(lease.tenant, granted.tenant);
  EXPECT_EQ(lease.process.pid, 42);
  EXPECT_EQ(lease.process.name, "job");
  EXPECT_EQ(lease.label, "a label");
  EXPECT_EQ(lease.pool, "gpu-tests");
  EXPECT_EQ(lease.units, 2u);
  EXPECT_EQ(lease.bytes, MiB(3));
  EXPECT_EQ(lease.devices, granted.devices);
  EXPECT_EQ(lease.granted_at, granted.granted_at);
  EXPECT_EQ(lease.waited, granted.waited);
  EXPECT_EQ(lease.end, LeaseEnd::kRevoked);
  EXPECT_TRUE(row.end_seen);
  EXPECT_EQ(lease.ended_at, granted.granted_at + absl::Seconds(10));
  EXPECT_EQ(lease.held, absl::Seconds(10));
}

TEST_F(HistoryStoreTest, GrantAndEndTogetherAreSingleRecordWithRequester) {
  LeaseRecord block = Permit(1);
  block.kind = LeaseKind::kBlock;
  LeaseRecord ended = End(block);
  ended.process = {};
  ended.waited = absl::ZeroDuration();
  Write({block, ended, Permit(1)});
  ASSERT_EQ(Ids(), (std::vector<uint64_t>{1, 1})) << "a permit and a block of one number are two";
  EXPECT_EQ(List()[1].lease.process.name, "job");
  EXPECT_EQ(List()[1].lease.waited, block.waited);
  EXPECT_EQ(List()[1].lease.end, LeaseEnd::kReleased);
}

TEST_F(HistoryStoreTest, EndWithoutRecordedGrantIsRecordedWhole) {
  Write({End(Permit(3))});
  ASSERT_EQ(List().size(), 1u);
  EXPECT_EQ(List()[0].lease.granted_at, Permit(3).granted_at);
  EXPECT_TRUE(List()[0].end_seen);
}

TEST_F(HistoryStoreTest, NextBrokerRecordsLiveLeasesAndEndsUnseenOnes) {
  Write({Permit(1), Permit(2), Permit(3), End(Permit(3))});
  Reopen();
  // Permit 2 ended and permit 4 was granted while no broker wrote.
  ASSERT_TRUE(store_->Resume({Permit(1), Permit(4)}).ok());
  const auto page = List();
  ASSERT_EQ(page.size(), 4u);
  EXPECT_EQ(page[0].lease.id, 4u);
  EXPECT_EQ(page[0].lease.end, LeaseEnd::kNone);
  EXPECT_EQ(page[1].lease.end, LeaseEnd::kReleased);
  EXPECT_EQ(page[2].lease.end, LeaseEnd::kUnseen);
  EXPECT_FALSE(page[2].end_seen);
  EXPECT_EQ(page[3].lease.end, LeaseEnd::kNone);
  Write({End(Permit(1)), End(Permit(4))});
  EXPECT_EQ(List().size(), 4u);
  EXPECT_TRUE(List()[0].end_seen && List()[3].end_seen);
  // The next daemon reuses the permit numbers.
  Write({Permit(5)});
  options_.incarnation = 10;
  Reopen();
  ASSERT_TRUE(store_->Resume({}).ok());
  EXPECT_EQ(List()[0].lease.end, LeaseEnd::kDaemonEnd);
  Write({Permit(1), End(Permit(1))});
  EXPECT_EQ(List().size(), 6u);
  EXPECT_EQ(List()[0].incarnation, 10u);
}

TEST_F(HistoryStoreTest, QueriesFilterAndPagesCoverEachRecord) {
  LeaseRecord block = Permit(2, 1001);
  block.kind = LeaseKind::kBlock;
  block.pool = "";
  LeaseRecord inside = Permit(3);
  inside.tenant.container = "/docker/x";
  LeaseRecord wide = Permit(4);
  wide.pool = "wide";
  // Permit 1 is out from second 1 to 11, block 2 from 2, permit 3 from 3 to 13, permit 4 from 4.
  Write({Permit(1), block, inside, wide, End(Permit(1)), End(inside)});
  EXPECT_EQ(Ids(), (std::vector<uint64_t>{4, 3, 2, 1}));
  EXPECT_EQ(Ids({.tenant = core::Tenant{.uid = 1000}}), (std::vector<uint64_t>{4, 1}));
  EXPECT_EQ(Ids({.tenant = inside.tenant}), (std::vector<uint64_t>{3}));
  EXPECT_EQ(Ids({.tenant = core::Tenant{.uid = 7}}), (std::vector<uint64_t>{}));
  EXPECT_EQ(Ids({.kind = LeaseKind::kBlock}), (std::vector<uint64_t>{2}));
  EXPECT_EQ(Ids({.pool = "gpu-tests"}), (std::vector<uint64_t>{3, 1}));
  EXPECT_EQ(Ids({.since = kStart + absl::Seconds(12)}), (std::vector<uint64_t>{4, 3, 2}));
  EXPECT_EQ(Ids({.until = kStart + absl::Seconds(2)}), (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(Ids({.since = kStart + absl::Seconds(12), .until = kStart + absl::Seconds(2)}),
            (std::vector<uint64_t>{2}));
  HistoryQuery page = {.rows = 3};
  auto first = List(page);
  EXPECT_EQ(first.size(), 3u);
  EXPECT_TRUE(first.more);
  Write({Permit(5)});
  page.before = first.last;
  auto second = List(page);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].lease.id, 1u);
  EXPECT_FALSE(second.more);
}

TEST_F(HistoryStoreTest, OldestEndedRecordsAreEvictedAtLimit) {
  options_.rows = HistoryStore::kLeastRows;
  Reopen();
  Write({Permit(1)});
  for (uint64_t id = 2; id <= 4'000; ++id) {
    Write({Permit(id), End(Permit(id))});
    ASSERT_LE(store_->rows(), options_.rows);
  }
  const std::vector<uint64_t> ids = Ids();
  EXPECT_EQ(ids.size(), store_->rows());
  EXPECT_GT(ids.size(), options_.rows / 2);
  EXPECT_EQ(ids.front(), 4'000u);
  EXPECT_EQ(ids.back(), 1u) << "what is out stays";
  Reopen();
  EXPECT_EQ(store_->rows(), ids.size());
}

TEST_F(HistoryStoreTest, LiveLeasesAboveLimitAreEvictedAndEndsRecorded) {
  options_.rows = HistoryStore::kLeastRows;
  Reopen();
  std::vector<LeaseRecord> granted, ended;
  for (uint64_t id = 1; id <= 3'000; ++id) {
    granted.push_back(Permit(id));
    ended.push_back(End(Permit(id)));
  }
  Write(granted);
  EXPECT_LE(store_->rows(), options_.rows);
  Write(ended);
  EXPECT_LE(store_->rows(), options_.rows);
  for (const HistoryLease& row : List()) EXPECT_TRUE(row.end_seen);
}

TEST_F(HistoryStoreTest, HistoryFilesStayWithinByteLimit) {
  options_.size = HistoryStore::kLeastSize;
  options_.rows = 1'000'000;
  Reopen();
  LeaseRecord large = Permit(0);
  large.label = std::string(128, 'x');
  for (int i = 0; i < 16; ++i) large.devices += "GPU-12345678-9abc-def0-1234-56789abcdef0,";
  for (uint64_t id = 1; id <= 20'000; id += 50) {
    std::vector<LeaseRecord> records;
    for (uint64_t i = id; i < id + 50; ++i) {
      large.id = i;
      records.push_back(large);
      if (i % 7 != 0) records.push_back(End(large));
    }
    Write(records);
    ASSERT_LE(BytesOnDisk(), options_.size.count()) << id;
  }
  EXPECT_LT(store_->rows(), 10'000u);
  EXPECT_GT(store_->rows(), 1'000u);
  EXPECT_EQ(Ids().front(), 20'000u);
}

struct Flood {
  std::string name;
  // Limits that exhaust rows, or bytes, first.
  Bytes size;
  uint64_t rows = 0;
  // Bytes of text in a lease of a flooding user, and of the other users.
  size_t flood_text = 0;
  size_t text = 0;
  // Number of flooding accounts.
  uint32_t floods = 1;
};

class HistoryFloodTest : public HistoryStoreTest, public testing::WithParamInterface<Flood> {};

TEST_P(HistoryFloodTest, EvictsFromAccountWithMostRecords) {
  constexpr uint32_t kUser = 1000, kOperator = 0;
  constexpr uint64_t kLeases = 20;
  options_.size = GetParam().size;
  options_.rows = GetParam().rows;
  Reopen();
  uint64_t id = 0;
  const auto write = [&](uint32_t uid, size_t text) {
    LeaseRecord lease = Permit(++id, uid);
    lease.devices = std::string(text, 'x');
    Write({lease, End(lease)});
  };
  for (const uint32_t uid : {kUser, kOperator}) {
    for (uint64_t i = 0; i < kLeases; ++i) write(uid, GetParam().text);
  }
  const uint64_t before = id;
  while (store_->rows() >= id || id < before + 2 * store_->rows()) {
    for (uint32_t uid = 1; uid <= GetParam().floods; ++uid) write(uid, GetParam().flood_text);
    ASSERT_LT(id, 200'000u);
  }
  for (const bool reopened : {false, true}) {
    SCOPED_TRACE(reopened);
    if (reopened) Reopen();
    EXPECT_EQ(Ids({.tenant = core::Tenant{.uid = kUser}}).size(), kLeases);
    EXPECT_EQ(Ids({.tenant = core::Tenant{.uid = kOperator}}).size(), kLeases);
    const auto reach = store_->Reach();
    ASSERT_TRUE(reach.ok());
    EXPECT_EQ(reach->oldest, Permit(1).granted_at);
    EXPECT_GT(reach->complete_since, Permit(before).granted_at);
    EXPECT_LT(reach->complete_since, Permit(id).granted_at);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Floods, HistoryFloodTest,
    testing::Values(Flood{.name = "OfRows", .size = MiB(8), .rows = 1'000},
                    Flood{.name = "OfSmallRowsAmongLarge", .size = MiB(8), .rows = 1'000, .text = 4'000},
                    Flood{.name = "OfBytes", .size = HistoryStore::kLeastSize, .rows = 1'000'000, .flood_text = 2'000},
                    Flood{.name = "OfLargeRowsAmongSmall",
                          .size = HistoryStore::kLeastSize,
                          .rows = 1'000'000,
                          .flood_text = 60'000},
                    Flood{.name = "OfManyAccounts", .size = MiB(8), .rows = 1'000, .floods = 30}),
    [](const auto& info) { return info.param.name; });

TEST_F(HistoryStoreTest, FirstVersionIsUpgradedWithItsRecords) {
  options_.rows = HistoryStore::kLeastRows;
  Reopen();
  Write({Permit(1, 1001), End(Permit(1, 1001)), Permit(2)});
  Execute(
      "DROP INDEX leases_of_tenants; DROP INDEX leases_of_holders; ALTER TABLE leases DROP COLUMN size; "
      "ALTER TABLE leases DROP COLUMN holder; "
      "ALTER TABLE leases DROP COLUMN account; PRAGMA user_version = 1");
  Reopen();
  EXPECT_EQ(Ids(), (std::vector<uint64_t>{2, 1}));
  Write({End(Permit(2))});
  for (uint64_t id = 3; id <= 3'000; ++id) Write({Permit(id), End(Permit(id))});
  EXPECT_LE(store_->rows(), options_.rows);
  EXPECT_EQ(Ids({.tenant = core::Tenant{.uid = 1001}}), (std::vector<uint64_t>{1})) << "it counts to its uid";
  Reopen();
  EXPECT_EQ(Ids().front(), 3'000u);
}

TEST_F(HistoryStoreTest, TenantListReadsOnlyItsRecords) {
  for (uint64_t id = 1; id <= 3; ++id) Write({Permit(id, 1001)});
  LeaseRecord contained = Permit(4, 1001);
  contained.tenant.container = "/a";
  Write({contained, Permit(5), Permit(6, 1001)});
  EXPECT_EQ(Ids({.tenant = core::Tenant{.uid = 1001}}), (std::vector<uint64_t>{6, 3, 2, 1}));
  EXPECT_EQ(Ids({.tenant = core::Tenant{.uid = 1001, .container = "/a"}}), (std::vector<uint64_t>{4}));
  // The order by number comes from the index alone.
  store_.reset();
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path().c_str(), &database), SQLITE_OK);
  std::string plan;
  const auto add = [](void* plan, int columns, char** values, char**) {
    *static_cast<std::string*>(plan) += values[columns - 1];
    return 0;
  };
  EXPECT_EQ(sqlite3_exec(database,
                         "EXPLAIN QUERY PLAN SELECT label FROM leases WHERE number < 9 AND uid = 1001 AND "
                         "container = '' ORDER BY number DESC",
                         add, &plan, nullptr),
            SQLITE_OK);
  sqlite3_close(database);
  EXPECT_EQ(plan, "SEARCH leases USING INDEX leases_of_tenants (uid=? AND container=? AND rowid<?)");
}

TEST_F(HistoryStoreTest, HistoryIsReadableByDaemonUserOnly) {
  Write({Permit(1)});
  for (const auto& file : std::filesystem::directory_iterator(options_.folder)) {
    struct stat info;
    ASSERT_EQ(::stat(file.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 077, 0u) << file.path();
  }
}

TEST_F(HistoryStoreTest, ForeignOrLaterFileIsRejectedUnchanged) {
  const auto refuse = [&](const char* expected) {
    store_.reset();
    const auto before = std::filesystem::file_size(path());
    const absl::Status status = HistoryStore::Open(options_).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status) || absl::IsDataLoss(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), path())) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), expected)) << status;
    EXPECT_EQ(std::filesystem::file_size(path()), before);
  };
  Write({Permit(1)});
  Execute("PRAGMA user_version = 3");
  refuse("version 3, and this daemon reads 2");
  Execute("PRAGMA user_version = 2; PRAGMA application_id = 7");
  refuse("belongs to another program");
  Execute("PRAGMA application_id = 1114797160; DROP TABLE leases");
  refuse("no such table");
  std::filesystem::remove(path());
  std::ofstream(path()) << std::string(10'000, '?');
  refuse("not a database");
  // The database is renamed and a new one created; the second time, it replaces the database that was renamed first.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(HistoryStore::RenameUnreadable(options_.folder).ok());
    EXPECT_TRUE(std::filesystem::exists(options_.folder + "/" + HistoryStore::kUnreadableName));
    Reopen();
    Write({Permit(2)});
    EXPECT_EQ(Ids(), (std::vector<uint64_t>{2}));
    store_.reset();
  }
}

TEST_F(HistoryStoreTest, FileDamagedInMiddleIsDataLoss) {
  std::vector<LeaseRecord> records;
  for (uint64_t id = 1; id <= 2'000; ++id) records.push_back(End(Permit(id)));
  Write(records);
  store_.reset();
  const auto size = std::filesystem::file_size(path());
  {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t at = 4096; at + 64 < size; at += 4096) {
      file.seekp(static_cast<std::streamoff>(at));
      file << std::string(64, '\xff');
    }
  }
  EXPECT_TRUE(absl::IsDataLoss(HistoryStore::Open(options_).status())) << HistoryStore::Open(options_).status();
}

TEST_F(HistoryStoreTest, CommitsOfKilledWriterPersist) {
  Write({Permit(1), End(Permit(1)), Permit(2)});
  // Copies the state on disk while the store is still open.
  const std::string copy = options_.folder + "-copy";
  std::filesystem::copy(options_.folder, copy);
  HistoryStore::Options options = options_;
  options.folder = copy;
  const auto other = HistoryStore::Open(options);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ((*other)->rows(), 2u);
  std::filesystem::remove_all(copy);
}

}  // namespace
}  // namespace berth
