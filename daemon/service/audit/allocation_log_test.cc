#include "daemon/service/audit/allocation_log.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

constexpr uint64_t kIncarnation = 9;

const core::Caller kAdmin = {.admin = true};

core::LogRecord Record(uint64_t number, uint32_t uid = 1000) {
  return {.number = number,
          .time = absl::FromUnixSeconds(1'800'000'000),
          .action = core::LogAction::kAllocate,
          .tenant = {.uid = uid},
          .bytes = MiB(2),
          .label = "weights \"a\"\n"};
}

std::vector<uint64_t> Numbers(const core::Page<core::LogRecord>& page) {
  std::vector<uint64_t> numbers;
  for (const core::LogRecord& record : page) numbers.push_back(record.number);
  return numbers;
}

TEST(AllocationLogTest, PagesContinueAfterLastAndShowOwnTenant) {
  const auto log = AllocationLog::Open(std::nullopt, kIncarnation);
  ASSERT_TRUE(log.ok());
  EXPECT_TRUE((*log)->List(kAdmin, {.after = 7}).empty());
  EXPECT_EQ((*log)->List(kAdmin, {.after = 7}).last, 7u);
  for (uint64_t i = 1; i <= 6; ++i) (*log)->Append(Record(i, i % 2 == 0 ? 1000 : 1001));
  EXPECT_EQ(Numbers((*log)->List({.tenant = {.uid = 1000}}, {})), (std::vector<uint64_t>{2, 4, 6}));
  const core::Page<core::LogRecord> first = (*log)->List(kAdmin, {.rows = 4});
  EXPECT_TRUE(first.more);
  EXPECT_EQ(first.last, 4u);
  EXPECT_EQ(Numbers((*log)->List(kAdmin, {.after = first.last})), (std::vector<uint64_t>{5, 6}));
}

TEST(AllocationLogTest, OnlyLatestRecordsAreCached) {
  const auto log = AllocationLog::Open(std::nullopt, kIncarnation);
  ASSERT_TRUE(log.ok());
  EXPECT_EQ((*log)->reach().oldest, absl::InfiniteFuture());
  for (uint64_t i = 1; i <= AllocationLog::kMaxRecords; ++i) (*log)->Append(Record(i));
  EXPECT_EQ((*log)->List(kAdmin, {}).size(), AllocationLog::kMaxRecords);
  EXPECT_EQ((*log)->reach().complete_since, absl::InfinitePast());
  (*log)->Append(Record(AllocationLog::kMaxRecords + 1));
  const core::Page<core::LogRecord> all = (*log)->List(kAdmin, {});
  constexpr uint64_t kFirst = AllocationLog::kMaxRecords / 8 + 1;
  EXPECT_EQ(all.front().number, kFirst);
  EXPECT_EQ(all.back().number, AllocationLog::kMaxRecords + 1);
  // The requested record was evicted: the list continues with the oldest one held.
  EXPECT_EQ((*log)->List(kAdmin, {.after = 3, .rows = 1}).last, kFirst);
  EXPECT_NE((*log)->reach().complete_since, absl::InfinitePast());
}

TEST(AllocationLogTest, FloodingUserDisplacesNoOtherRecords) {
  const struct {
    const char* name;
    uint32_t floods;
  } cases[] = {{"one user floods", 1}, {"fifty users flood", 50}};
  for (const auto& [name, floods] : cases) {
    SCOPED_TRACE(name);
    const auto log = AllocationLog::Open(std::nullopt, kIncarnation);
    ASSERT_TRUE(log.ok());
    constexpr uint32_t kUser = 1000, kFirstFlood = 2000;
    uint64_t number = 0;
    for (const uint32_t uid : {kUser, static_cast<uint32_t>(::geteuid())}) {
      for (int i = 0; i < 20; ++i) (*log)->Append(Record(++number, uid));
    }
    while (number < 4 * AllocationLog::kMaxRecords) {
      ++number;
      (*log)->Append(Record(number, kFirstFlood + number % floods));
    }
    EXPECT_EQ((*log)->List({.tenant = {.uid = kUser}}, {}).size(), 20u);
    EXPECT_EQ((*log)->List({.tenant = {.uid = static_cast<uint32_t>(::geteuid())}}, {}).size(), 20u);
    const core::Page<core::LogRecord> all = (*log)->List(kAdmin, {});
    EXPECT_LE(all.size(), AllocationLog::kMaxRecords);
    EXPECT_EQ(all.back().number, number);
    // Pages skip the gap.
    EXPECT_GT((*log)->List(kAdmin, {.after = 40, .rows = 1}).last, AllocationLog::kMaxRecords);
  }
}

TEST(AllocationLogTest, FileHasObjectPerLine) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/log.jsonl");
  {
    const auto log = AllocationLog::Open(path, kIncarnation);
    ASSERT_TRUE(log.ok()) << log.status();
    for (uint64_t i = 1; i <= 100; ++i) (*log)->Append(Record(i));
  }
  std::ifstream file(path);
  std::string line;
  uint64_t count = 0;
  while (std::getline(file, line)) {
    v1::LogRecord record;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(line, &record).ok()) << line;
    EXPECT_EQ(record.number(), ++count);
    EXPECT_EQ(record.action(), v1::LogRecord::ALLOCATE);
    EXPECT_EQ(record.label(), "weights \"a\"\n");
  }
  EXPECT_EQ(count, 100u);
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0007, 0u);
}

TEST(AllocationLogTest, FlushWritesAppendedRecordsToFile) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/flushed.jsonl");
  const auto log = AllocationLog::Open(path, kIncarnation);
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Flush(absl::InfiniteDuration());
  for (uint64_t i = 1; i <= 1000; ++i) (*log)->Append(Record(i));
  (*log)->Flush(absl::InfiniteDuration());
  std::ifstream file(path);
  std::string line;
  uint64_t count = 0;
  while (std::getline(file, line)) ++count;
  EXPECT_EQ(count, 1000u);
}

TEST(AllocationLogTest, BlockedFileCountsRecordsWithoutDelay) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(AllocationLog::Open(path, kIncarnation).ok());
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  const auto log = AllocationLog::Open(path, kIncarnation);
  ASSERT_TRUE(log.ok()) << log.status();
  // No reader: a pipe holds 64 KiB.
  uint64_t number = 0;
  while ((*log)->unwritten() == 0) {
    (*log)->Append(Record(++number));
    ASSERT_LT(number, 10'000'000u);
  }
  EXPECT_EQ((*log)->List(kAdmin, {}).last, number);
  ::close(reader);
}

TEST(AllocationLogTest, UnopenableFileIsNamed) {
  const auto log = AllocationLog::Open("/nowhere/at/all", kIncarnation);
  EXPECT_NE(log.status().message().find("/nowhere/at/all"), std::string::npos);
  // A log without its file counts the missing records.
  const std::unique_ptr<AllocationLog> without = AllocationLog::WithoutItsFile("/nowhere/at/all", kIncarnation);
  without->Append(Record(1));
  without->Append(Record(2));
  without->Flush(absl::Seconds(10));
  EXPECT_EQ(without->unwritten(), 2u);
  EXPECT_EQ(without->List(kAdmin, {}).size(), 2u);
  EXPECT_NE(without->Reopen().message().find("/nowhere/at/all"), std::string::npos);
}

TEST(AllocationLogTest, MissingFileIsWrittenOnceItReopens) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/late-", ::getpid());
  const std::string path = folder + "/memory.jsonl";
  const std::unique_ptr<AllocationLog> log = AllocationLog::WithoutItsFile(path, kIncarnation);
  log->Append(Record(1));
  log->Flush(absl::Seconds(10));
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  ASSERT_TRUE(log->Reopen().ok());
  log->Append(Record(2));
  log->Flush(absl::Seconds(10));
  EXPECT_EQ(log->unwritten(), 1u);
  std::ifstream file(path);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_NE(line.find("\"number\":\"2\""), std::string::npos) << line;
}

// The stream is a socket, which cannot be opened by a path.
TEST(AllocationLogTest, EverySpellingOfStandardStreamIsTheOpenFd) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const std::string link = absl::StrCat(::testing::TempDir(), "/link-to-stderr");
  ::unlink(link.c_str());
  ASSERT_EQ(::symlink("/dev/stderr", link.c_str()), 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(ends[0], STDERR_FILENO);
  std::vector<std::string> refused;
  for (const std::string& path :
       {std::string("/dev/stderr"), std::string("//dev//stderr"), std::string("/dev/../dev/stderr"),
        std::string("/dev/fd/2"), std::string("/dev/./fd/2"), std::string("/proc/self/fd/2"),
        std::string("/proc/thread-self/fd/2"), std::string("/proc/self/../self/fd/2"),
        absl::StrCat("/proc/", ::getpid(), "/fd/2"), link}) {
    const absl::Status status = AllocationLog::Open(path, kIncarnation).status();
    if (!status.ok()) refused.push_back(status.ToString());
  }
  const absl::Status other = AllocationLog::Open("/dev/./fd/0", kIncarnation).status();
  const absl::Status inherited = AllocationLog::Open("/dev/fd/9", kIncarnation, ends[1]).status();
  ::dup2(before, STDERR_FILENO);
  EXPECT_TRUE(refused.empty()) << refused[0];
  EXPECT_TRUE(absl::IsInvalidArgument(other)) << other;
  EXPECT_TRUE(inherited.ok()) << inherited;
  for (const int fd : {before, ends[0], ends[1]}) ::close(fd);
  ::unlink(link.c_str());
}

}  // namespace
}  // namespace berth::service
