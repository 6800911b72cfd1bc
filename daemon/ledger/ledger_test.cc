#include "daemon/ledger/ledger.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

const LedgerIdentity kIdentity = {.schema = 1, .node = 11, .incarnation = 13, .boot = "a-boot"};

RecordKey KeyOf(uint64_t id) { return {.kind = 1, .id = id}; }

class LedgerTest : public testing::Test {
 protected:
  LedgerTest() {
    std::string folder = testing::TempDir() + "/ledger_XXXXXX";
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  ~LedgerTest() override {
    for (const char* name : {"/ledger", "/ledger.new"}) ::unlink((folder_ + name).c_str());
    EXPECT_EQ(::rmdir(folder_.c_str()), 0);
  }

  std::unique_ptr<Ledger> Create() {
    absl::StatusOr<std::unique_ptr<Ledger>> ledger = Ledger::Create(folder_, kIdentity);
    EXPECT_TRUE(ledger.ok()) << ledger.status();
    return *std::move(ledger);
  }
  absl::StatusOr<std::unique_ptr<Ledger>> Open() { return Ledger::Open(folder_, kIdentity); }
  LedgerRecords ReadBack() {
    const absl::StatusOr<std::unique_ptr<Ledger>> ledger = Open();
    EXPECT_TRUE(ledger.ok()) << ledger.status();
    return (*ledger)->AllRecords();
  }
  static absl::Status Put(Ledger& ledger, uint64_t id, absl::string_view content) {
    RecordBatch batch;
    batch.Put(KeyOf(id), content);
    return ledger.Commit(batch);
  }
  static absl::Status Erase(Ledger& ledger, uint64_t id) {
    RecordBatch batch;
    batch.Erase(KeyOf(id));
    return ledger.Commit(batch);
  }

  std::string folder_;
};

TEST_F(LedgerTest, LedgerEqualsSumOfBatches) {
  const std::unique_ptr<Ledger> ledger = Create();
  LedgerRecords expected;
  std::mt19937 random(1);
  for (int step = 0; step < 2000; ++step) {
    RecordBatch batch;
    // Each record appears at most once.
    for (uint64_t id = random() % 5; id < 40; id += 1 + random() % 20) {
      if (random() % 3 == 0) {
        batch.Erase(KeyOf(id));
      } else {
        batch.Put(KeyOf(id), std::string(random() % 100, static_cast<char>('a' + random() % 26)));
      }
    }
    batch.ApplyTo(&expected);
    ASSERT_TRUE(ledger->Commit(batch).ok());
    if (step % 100 != 0) continue;
    ASSERT_EQ(ReadBack(), expected) << step;
  }
  EXPECT_EQ(ledger->AllRecords(), expected);
  EXPECT_EQ(ReadBack(), expected);
}

TEST_F(LedgerTest, UnchangedRecordIsNotWrittenAgain) {
  const std::unique_ptr<Ledger> ledger = Create();
  ASSERT_TRUE(Put(*ledger, 1, "content").ok());
  const uint64_t before = ledger->file_bytes();
  ASSERT_TRUE(Put(*ledger, 1, "content").ok());
  ASSERT_TRUE(Erase(*ledger, 2).ok());
  ASSERT_TRUE(ledger->Commit(RecordBatch()).ok());
  EXPECT_EQ(ledger->file_bytes(), before);
  ASSERT_TRUE(Put(*ledger, 1, "another").ok());
  EXPECT_GT(ledger->file_bytes(), before);
}

TEST_F(LedgerTest, MostlyStaleLogIsRewritten) {
  const std::unique_ptr<Ledger> ledger = Create();
  for (uint64_t id = 0; id < 1000; ++id) ASSERT_TRUE(Put(*ledger, id, std::string(1000, 'x')).ok());
  uint64_t largest = 0;
  for (int step = 0; step < 50'000; ++step) {
    ASSERT_TRUE(Put(*ledger, static_cast<uint64_t>(step % 1000), absl::StrCat(step, std::string(990, 'y'))).ok());
    largest = std::max(largest, ledger->file_bytes());
  }
  // The records take about 1 MiB.
  EXPECT_LT(largest, 8 << 20);
  const LedgerRecords records = ReadBack();
  ASSERT_EQ(records.size(), 1000u);
  EXPECT_EQ(records.at(KeyOf(7)), absl::StrCat(49'007, std::string(990, 'y')));
  // No file of the rewrite remains.
  EXPECT_NE(::access((folder_ + "/ledger.new").c_str(), F_OK), 0);
}

TEST_F(LedgerTest, RecordLargerThanLogFits) {
  const std::unique_ptr<Ledger> ledger = Create();
  const std::string large(20 << 20, 'z');
  ASSERT_TRUE(Put(*ledger, 1, large).ok());
  EXPECT_EQ(ReadBack().at(KeyOf(1)), large);
}

TEST_F(LedgerTest, NewIncarnationBeginsEmpty) {
  {
    const std::unique_ptr<Ledger> before = Create();
    ASSERT_TRUE(Put(*before, 1, "before").ok());
  }
  EXPECT_TRUE(Create()->AllRecords().empty());
  EXPECT_TRUE(ReadBack().empty());
}

TEST_F(LedgerTest, UnreadableLedgerIsRejectedWithRemedy) {
  absl::Status status = Open().status();
  EXPECT_TRUE(IsRefusal(status, Reason::kLedgerUnreadable)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), folder_ + "/ledger")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "berth reset")) << status;
  {
    const std::unique_ptr<Ledger> ledger = Create();
    ASSERT_TRUE(Put(*ledger, 1, "content").ok());
    ASSERT_EQ(::truncate((folder_ + "/ledger").c_str(), static_cast<off_t>(ledger->file_bytes()) - 1), 0);
  }
  status = Open().status();
  EXPECT_TRUE(IsRefusal(status, Reason::kLedgerUnreadable)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "truncated")) << status;
}

TEST_F(LedgerTest, FileOfInterruptedRewriteIsRemoved) {
  {
    const std::unique_ptr<Ledger> ledger = Create();
    ASSERT_TRUE(Put(*ledger, 1, "content").ok());
  }
  ASSERT_GE(UniqueFd(::open((folder_ + "/ledger.new").c_str(), O_RDWR | O_CREAT, 0600)).get(), 0);
  EXPECT_EQ(ReadBack().size(), 1u);
  EXPECT_NE(::access((folder_ + "/ledger.new").c_str(), F_OK), 0);
}

// Lowers the file size limit until it goes out of scope, to simulate a full folder.
class Full {
 public:
  explicit Full(uint64_t bytes) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    ::signal(SIGXFSZ, SIG_IGN);
  }
  ~Full() { EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0); }

 private:
  rlimit before_;
};

TEST_F(LedgerTest, FullFolderIsForeseenAndEndsAreRecorded) {
  const std::unique_ptr<Ledger> ledger = Create();
  uint64_t records = 0;
  {
    const Full full(12 << 20);
    while (ledger->CheckCapacity().ok()) {
      ASSERT_TRUE(Put(*ledger, records, std::string(500, 'r')).ok()) << records;
      ++records;
    }
    const absl::Status refused = ledger->CheckCapacity();
    EXPECT_TRUE(IsRefusal(refused, Reason::kLedgerFull)) << refused;
    EXPECT_TRUE(GetErrorDetails(refused)->retry_after.has_value());
    EXPECT_GT(records, 1000u);
    // Readers may connect for a while.
    const uint64_t before_looks = records;
    for (; ledger->CheckCapacityToLook().ok(); ++records) {
      ASSERT_TRUE(Put(*ledger, records, std::string(500, 'l')).ok()) << records;
    }
    EXPECT_GT(records - before_looks, 500u);
    EXPECT_TRUE(IsRefusal(ledger->CheckCapacityToLook(), Reason::kLedgerFull));
    // Mandatory changes are still persisted.
    for (uint64_t id = 0; id < records; ++id) {
      ASSERT_TRUE(Put(*ledger, id, std::string(100, 'e')).ok()) << id;
      ASSERT_TRUE(Erase(*ledger, id).ok()) << id;
    }
    EXPECT_TRUE(ReadBack().empty());
    // A commit without any capacity changes nothing.
    ASSERT_TRUE(Put(*ledger, 1, "kept").ok());
    EXPECT_TRUE(absl::IsResourceExhausted(Put(*ledger, 1, std::string(20 << 20, 'x'))));
    EXPECT_EQ(ReadBack().at(KeyOf(1)), "kept");
    EXPECT_EQ(ledger->AllRecords().at(KeyOf(1)), "kept");
  }
  EXPECT_TRUE(ledger->CheckCapacity().ok());
  EXPECT_TRUE(Put(*ledger, 1, std::string(20 << 20, 'x')).ok());
}

TEST_F(LedgerTest, LedgerFillsDiskToLastRecord) {
  const std::unique_ptr<Ledger> ledger = Create();
  constexpr uint64_t kLimit = (7 << 20) + 12345;
  const Full full(kLimit);
  uint64_t records = 0;
  while (Put(*ledger, records, std::string(1000, 'r')).ok()) ++records;
  EXPECT_LE(ledger->file_bytes(), kLimit);
  EXPECT_GT(ledger->file_bytes(), kLimit - 2000);
  EXPECT_EQ(ReadBack().size(), records);
}

TEST_F(LedgerTest, FdShortageIsNotReportedAsUnreadableLedger) {
  Create().reset();
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = Open().status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_FALSE(IsRefusal(status, Reason::kLedgerUnreadable)) << status;
  EXPECT_TRUE(Open().ok());
}

// The records of a writer that was killed after `steps` steps.
LedgerRecords RecordsAfter(uint64_t steps) {
  LedgerRecords records;
  for (uint64_t step = steps < 64 ? 0 : steps - 64; step < steps; ++step) {
    records[KeyOf(step % 64)] = absl::StrCat(step, std::string(step % 3000, 's'));
  }
  records[KeyOf(1000)] = absl::StrCat(steps);
  return records;
}

void WriteForEver(Ledger& ledger, std::atomic<uint64_t>* committed) {
  for (uint64_t step = *committed;; ++step) {
    RecordBatch batch;
    batch.Put(KeyOf(step % 64), absl::StrCat(step, std::string(step % 3000, 's')));
    batch.Put(KeyOf(1000), absl::StrCat(step + 1));
    if (!ledger.Commit(batch).ok()) ::_exit(1);
    committed->store(step + 1);
  }
}

TEST_F(LedgerTest, KilledWriterLeavesOnlyCompleteCommits) {
  void* const shared =
      ::mmap(nullptr, sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const committed = new (shared) std::atomic<uint64_t>(0);
  const absl::Cleanup unmap = [shared] { ::munmap(shared, sizeof(std::atomic<uint64_t>)); };
  Create();
  std::mt19937 random(7);
  for (int life = 0; life < 40; ++life) {
    const uint64_t target = *committed + random() % 2000;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const absl::StatusOr<std::unique_ptr<Ledger>> ledger = Open();
      if (!ledger.ok()) ::_exit(2);
      WriteForEver(**ledger, committed);
    }
    while (*committed < target && ::waitpid(child, nullptr, WNOHANG) == 0) {
    }
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    const LedgerRecords records = ReadBack();
    if (*committed == 0 && records.empty()) continue;
    const uint64_t steps = std::stoull(records.at(KeyOf(1000)));
    // The writer may have died between a commit and its store to `committed`.
    EXPECT_TRUE(steps == *committed || steps == *committed + 1) << steps << " " << *committed;
    EXPECT_EQ(records, RecordsAfter(steps));
    *committed = steps;
  }
  EXPECT_GT(*committed, 10'000u);
}

// Holds files as the fd store does.
class FakeHolder : public LedgerHolder {
 public:
  absl::Status Hold(int fd) override {
    if (refuses) return absl::ResourceExhaustedError("no place");
    files.push_back(*DuplicateFd(fd));
    return absl::OkStatus();
  }
  void DropEarlier() override { files.erase(files.begin(), files.end() - 1); }
  void DropLast() override { files.pop_back(); }

  std::vector<UniqueFd> files;
  bool refuses = false;
};

class HeldLedgerTest : public LedgerTest {
 protected:
  HeldLedgerTest() : ledger_(Create()) {
    EXPECT_TRUE(holder_.Hold(ledger_->fd()).ok());
    ledger_->SetHolder(&holder_);
    for (uint64_t id = 1; id <= 100; ++id) EXPECT_TRUE(Put(*ledger_, id, "record").ok());
  }
  // Makes records stale until the ledger rewrites its file, or well beyond that if it cannot.
  void MakeStale() {
    const std::string record(4096, 'x');
    for (int i = 0; i < 600; ++i) ASSERT_TRUE(Put(*ledger_, 1, absl::StrCat(i, record)).ok());
  }
  // The records with which a later broker continues.
  LedgerRecords RecordsHeld() {
    size_t last = holder_.files.size();
    while (last > 0 && *LedgerFile::IsSuperseded(holder_.files[last - 1].get())) --last;
    if (last == 0) return {};
    auto ledger = Ledger::Open(*DuplicateFd(holder_.files[last - 1].get()), folder_, kIdentity);
    EXPECT_TRUE(ledger.ok()) << ledger.status();
    return ledger.ok() ? (*ledger)->AllRecords() : LedgerRecords();
  }

  FakeHolder holder_;
  std::unique_ptr<Ledger> ledger_;
};

TEST_F(HeldLedgerTest, HeldFileHasAllRecordsAfterEachRewrite) {
  for (int round = 0; round < 3; ++round) {
    const uint64_t before = ledger_->file_bytes();
    MakeStale();
    EXPECT_LT(ledger_->file_bytes(), before + 600 * 4096) << "it was written anew";
    EXPECT_EQ(holder_.files.size(), 1u);
    EXPECT_EQ(RecordsHeld(), ledger_->AllRecords());
    EXPECT_EQ(ReadBack(), ledger_->AllRecords());
  }
}

TEST_F(HeldLedgerTest, DeletedFileIsRewritten) {
  ASSERT_EQ(::unlink((folder_ + "/ledger").c_str()), 0);
  EXPECT_TRUE(Put(*ledger_, 7, "after").ok());
  EXPECT_EQ(RecordsHeld(), ledger_->AllRecords());
  EXPECT_FALSE(Open().ok());
  EXPECT_TRUE(ledger_->RestoreFile().ok());
  EXPECT_EQ(ReadBack(), ledger_->AllRecords());
  EXPECT_TRUE(Put(*ledger_, 8, "later").ok());
  EXPECT_EQ(ReadBack(), ledger_->AllRecords());
  EXPECT_EQ(RecordsHeld(), ledger_->AllRecords());
  const int fd = ledger_->fd();
  EXPECT_TRUE(ledger_->RestoreFile().ok());
  EXPECT_EQ(ledger_->fd(), fd) << "one that is there is left alone";
}

TEST_F(HeldLedgerTest, FileChangedInPlaceIsReplaced) {
  const LedgerRecords records = ledger_->AllRecords();
  const std::function<void(int)> damages[] = {
      [](int file) { EXPECT_EQ(::pwrite(file, "x", 1, sizeof(LedgerHeader) + sizeof(LedgerFrame) + 30), 1); },
      [](int file) { EXPECT_EQ(::pwrite(file, "something", 9, 0), 9); },
      [](int file) { EXPECT_EQ(::pwrite(file, "x", 1, offsetof(LedgerHeader, committed)), 1); },
      [](int file) { EXPECT_EQ(::ftruncate(file, 100), 0); },
      [](int file) { EXPECT_EQ(::ftruncate(file, 0), 0); },
  };
  for (const std::function<void(int)>& damage : damages) {
    EXPECT_TRUE(ledger_->CheckFile().ok());
    damage(ledger_->fd());
    EXPECT_TRUE(absl::IsDataLoss(ledger_->CheckFile())) << ledger_->CheckFile();
    EXPECT_TRUE(ledger_->Migrate(records).ok());
    EXPECT_EQ(ReadBack(), records);
    EXPECT_EQ(RecordsHeld(), records);
  }
}

TEST_F(HeldLedgerTest, DamagedRecordGetsNoNewChecksum) {
  const uint64_t place = sizeof(LedgerHeader) + sizeof(LedgerFrame) + 30;
  ASSERT_EQ(::pwrite(ledger_->fd(), "x", 1, static_cast<off_t>(place)), 1);
  MakeStale();
  EXPECT_TRUE(absl::StrContains(Open().status().message(), "is damaged")) << Open().status();
}

TEST_F(HeldLedgerTest, LedgerWorksInMemoryWithoutFile) {
  ASSERT_EQ(::unlink((folder_ + "/ledger").c_str()), 0);
  ASSERT_EQ(::rmdir(folder_.c_str()), 0);
  MakeStale();
  EXPECT_FALSE(ledger_->RestoreFile().ok());
  EXPECT_EQ(RecordsHeld(), ledger_->AllRecords());
  ASSERT_EQ(::mkdir(folder_.c_str(), 0700), 0);
  EXPECT_TRUE(ledger_->RestoreFile().ok());
  EXPECT_EQ(ReadBack(), ledger_->AllRecords());
  EXPECT_EQ(RecordsHeld(), ledger_->AllRecords());
}

TEST_F(HeldLedgerTest, LedgerStaysIfHolderRefusesNewFile) {
  holder_.refuses = true;
  MakeStale();
  EXPECT_EQ(RecordsHeld(), ledger_->AllRecords());
  EXPECT_EQ(ReadBack(), ledger_->AllRecords());
}

TEST_F(HeldLedgerTest, FileWithoutItsNameIsAbandoned) {
  ASSERT_EQ(::unlink((folder_ + "/ledger").c_str()), 0);
  // A rename cannot replace a folder with a file.
  ASSERT_EQ(::mkdir((folder_ + "/ledger").c_str(), 0700), 0);
  EXPECT_FALSE(ledger_->RestoreFile().ok());
  EXPECT_TRUE(Put(*ledger_, 9, "after").ok());
  EXPECT_EQ(RecordsHeld(), ledger_->AllRecords());
  ASSERT_EQ(::rmdir((folder_ + "/ledger").c_str()), 0);
}

}  // namespace
}  // namespace berth
