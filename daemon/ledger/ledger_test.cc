#include "daemon/ledger/ledger.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

const LedgerIdentity kIdentity = {.schema = 1, .node = 11, .incarnation = 13, .boot = "a-boot"};

RowKey KeyOf(uint64_t id) { return {.kind = 1, .id = id}; }

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
  Rows ReadBack() {
    const absl::StatusOr<std::unique_ptr<Ledger>> ledger = Open();
    EXPECT_TRUE(ledger.ok()) << ledger.status();
    return (*ledger)->AllRows();
  }
  static absl::Status Put(Ledger& ledger, uint64_t id, absl::string_view content) {
    RowBatch batch;
    batch.Put(KeyOf(id), content);
    return ledger.Commit(batch);
  }
  static absl::Status Erase(Ledger& ledger, uint64_t id) {
    RowBatch batch;
    batch.Erase(KeyOf(id));
    return ledger.Commit(batch);
  }

  std::string folder_;
};

TEST_F(LedgerTest, ItKeepsWhatTheBatchesComeTo) {
  const std::unique_ptr<Ledger> ledger = Create();
  Rows expected;
  std::mt19937 random(1);
  for (int step = 0; step < 2000; ++step) {
    RowBatch batch;
    // Each row at most once.
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
  EXPECT_EQ(ledger->AllRows(), expected);
  EXPECT_EQ(ReadBack(), expected);
}

TEST_F(LedgerTest, ARowThatIsWhatItWasIsNotWrittenAgain) {
  const std::unique_ptr<Ledger> ledger = Create();
  ASSERT_TRUE(Put(*ledger, 1, "content").ok());
  const uint64_t before = ledger->file_bytes();
  ASSERT_TRUE(Put(*ledger, 1, "content").ok());
  ASSERT_TRUE(Erase(*ledger, 2).ok());
  ASSERT_TRUE(ledger->Commit(RowBatch()).ok());
  EXPECT_EQ(ledger->file_bytes(), before);
  ASSERT_TRUE(Put(*ledger, 1, "another").ok());
  EXPECT_GT(ledger->file_bytes(), before);
}

TEST_F(LedgerTest, ALogThatIsMostlyStaleIsWrittenAnew) {
  const std::unique_ptr<Ledger> ledger = Create();
  for (uint64_t id = 0; id < 1000; ++id) ASSERT_TRUE(Put(*ledger, id, std::string(1000, 'x')).ok());
  uint64_t largest = 0;
  for (int step = 0; step < 50'000; ++step) {
    ASSERT_TRUE(Put(*ledger, static_cast<uint64_t>(step % 1000), absl::StrCat(step, std::string(990, 'y'))).ok());
    largest = std::max(largest, ledger->file_bytes());
  }
  // Some 1 MiB of rows.
  EXPECT_LT(largest, 8 << 20);
  const Rows rows = ReadBack();
  ASSERT_EQ(rows.size(), 1000u);
  EXPECT_EQ(rows.at(KeyOf(7)), absl::StrCat(49'007, std::string(990, 'y')));
  // Nothing of the old one is left.
  EXPECT_NE(::access((folder_ + "/ledger.new").c_str(), F_OK), 0);
}

TEST_F(LedgerTest, ARowLargerThanAllThatIsThereFits) {
  const std::unique_ptr<Ledger> ledger = Create();
  const std::string large(20 << 20, 'z');
  ASSERT_TRUE(Put(*ledger, 1, large).ok());
  EXPECT_EQ(ReadBack().at(KeyOf(1)), large);
}

TEST_F(LedgerTest, AnIncarnationBeginsWithAnEmptyOneOverWhateverIsThere) {
  {
    const std::unique_ptr<Ledger> before = Create();
    ASSERT_TRUE(Put(*before, 1, "before").ok());
  }
  EXPECT_TRUE(Create()->AllRows().empty());
  EXPECT_TRUE(ReadBack().empty());
}

TEST_F(LedgerTest, OneThatCannotBeReadIsRefusedWithTheWayOut) {
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
  EXPECT_TRUE(absl::StrContains(status.message(), "cut short")) << status;
}

TEST_F(LedgerTest, WhoDiedWhileWritingItAnewLeavesNothingInTheWay) {
  {
    const std::unique_ptr<Ledger> ledger = Create();
    ASSERT_TRUE(Put(*ledger, 1, "content").ok());
  }
  ASSERT_GE(UniqueFd(::open((folder_ + "/ledger.new").c_str(), O_RDWR | O_CREAT, 0600)).get(), 0);
  EXPECT_EQ(ReadBack().size(), 1u);
  EXPECT_NE(::access((folder_ + "/ledger.new").c_str(), F_OK), 0);
}

// Lowers the largest size of a file until it goes out of scope: the folder is full.
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

TEST_F(LedgerTest, AFullFolderIsSeenComingAndEveryoneCanLeave) {
  const std::unique_ptr<Ledger> ledger = Create();
  uint64_t rows = 0;
  {
    const Full full(12 << 20);
    while (ledger->CheckRoom().ok()) {
      ASSERT_TRUE(Put(*ledger, rows, std::string(500, 'r')).ok()) << rows;
      ++rows;
    }
    const absl::Status refused = ledger->CheckRoom();
    EXPECT_TRUE(IsRefusal(refused, Reason::kLedgerFull)) << refused;
    EXPECT_TRUE(GetErrorDetails(refused)->retry_after.has_value());
    EXPECT_GT(rows, 1000u);
    // Who looks may come for a while.
    const uint64_t before_looks = rows;
    for (; ledger->CheckRoomToLook().ok(); ++rows) {
      ASSERT_TRUE(Put(*ledger, rows, std::string(500, 'l')).ok()) << rows;
    }
    EXPECT_GT(rows - before_looks, 500u);
    EXPECT_TRUE(IsRefusal(ledger->CheckRoomToLook(), Reason::kLedgerFull));
    // What must be kept is kept.
    for (uint64_t id = 0; id < rows; ++id) {
      ASSERT_TRUE(Put(*ledger, id, std::string(100, 'e')).ok()) << id;
      ASSERT_TRUE(Erase(*ledger, id).ok()) << id;
    }
    EXPECT_TRUE(ReadBack().empty());
    // A commit for which there is no room at all changes nothing.
    ASSERT_TRUE(Put(*ledger, 1, "kept").ok());
    EXPECT_TRUE(absl::IsResourceExhausted(Put(*ledger, 1, std::string(20 << 20, 'x'))));
    EXPECT_EQ(ReadBack().at(KeyOf(1)), "kept");
    EXPECT_EQ(ledger->AllRows().at(KeyOf(1)), "kept");
  }
  EXPECT_TRUE(ledger->CheckRoom().ok());
  EXPECT_TRUE(Put(*ledger, 1, std::string(20 << 20, 'x')).ok());
}

TEST_F(LedgerTest, WhatFitsIsTakenToTheLastByte) {
  const std::unique_ptr<Ledger> ledger = Create();
  constexpr uint64_t kLimit = (7 << 20) + 12345;
  const Full full(kLimit);
  uint64_t rows = 0;
  while (Put(*ledger, rows, std::string(1000, 'r')).ok()) ++rows;
  EXPECT_LE(ledger->file_bytes(), kLimit);
  EXPECT_GT(ledger->file_bytes(), kLimit - 2000);
  EXPECT_EQ(ReadBack().size(), rows);
}

TEST_F(LedgerTest, WhoHasNoFdForItSaysSoAndNothingOfTheLedger) {
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

// What a writer that is killed has come to: the rows after so many steps.
Rows RowsAfter(uint64_t steps) {
  Rows rows;
  for (uint64_t step = steps < 64 ? 0 : steps - 64; step < steps; ++step) {
    rows[KeyOf(step % 64)] = absl::StrCat(step, std::string(step % 3000, 's'));
  }
  rows[KeyOf(1000)] = absl::StrCat(steps);
  return rows;
}

void WriteForEver(Ledger& ledger, std::atomic<uint64_t>* committed) {
  for (uint64_t step = *committed;; ++step) {
    RowBatch batch;
    batch.Put(KeyOf(step % 64), absl::StrCat(step, std::string(step % 3000, 's')));
    batch.Put(KeyOf(1000), absl::StrCat(step + 1));
    if (!ledger.Commit(batch).ok()) ::_exit(1);
    committed->store(step + 1);
  }
}

TEST_F(LedgerTest, AKilledWriterLeavesAllThatItCommittedAndNothingInHalf) {
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
    const Rows rows = ReadBack();
    if (*committed == 0 && rows.empty()) continue;
    const uint64_t steps = std::stoull(rows.at(KeyOf(1000)));
    // It may have died between a commit and its word of it.
    EXPECT_TRUE(steps == *committed || steps == *committed + 1) << steps << " " << *committed;
    EXPECT_EQ(rows, RowsAfter(steps));
    *committed = steps;
  }
  EXPECT_GT(*committed, 10'000u);
}

}  // namespace
}  // namespace berth
