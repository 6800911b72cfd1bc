#include "daemon/service/allocation_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "berth/v1/resources.pb.h"
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

TEST(AllocationLogTest, PagesGoOnWhereTheLastOneEndedAndShowATenantItsOwn) {
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

TEST(AllocationLogTest, OnlyTheLastAreKept) {
  const auto log = AllocationLog::Open(std::nullopt, kIncarnation);
  ASSERT_TRUE(log.ok());
  for (uint64_t i = 1; i <= AllocationLog::kKept + 10; ++i) (*log)->Append(Record(i));
  const core::Page<core::LogRecord> all = (*log)->List(kAdmin, {});
  EXPECT_EQ(all.size(), AllocationLog::kKept);
  EXPECT_EQ(all.front().number, 11u);
  // What was asked for is gone: it goes on with the oldest that is there.
  EXPECT_EQ((*log)->List(kAdmin, {.after = 3, .rows = 1}).last, 11u);
}

TEST(AllocationLogTest, TheFileHasAnObjectALine) {
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

TEST(AllocationLogTest, AfterAFlushTheFileHasWhatWasAppended) {
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

TEST(AllocationLogTest, AFileThatTakesNothingDelaysNobodyAndIsCounted) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(AllocationLog::Open(path, kIncarnation).ok());
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  const auto log = AllocationLog::Open(path, kIncarnation);
  ASSERT_TRUE(log.ok()) << log.status();
  // Nobody reads: a pipe takes 64 KiB.
  uint64_t number = 0;
  while ((*log)->unwritten() == 0) {
    (*log)->Append(Record(++number));
    ASSERT_LT(number, 10'000'000u);
  }
  EXPECT_EQ((*log)->List(kAdmin, {}).last, number);
  ::close(reader);
}

TEST(AllocationLogTest, AFileThatCannotBeOpenedIsNamed) {
  const auto log = AllocationLog::Open("/nowhere/at/all", kIncarnation);
  EXPECT_NE(log.status().message().find("/nowhere/at/all"), std::string::npos);
  // Who goes on without it keeps count of what it lacks.
  const std::unique_ptr<AllocationLog> without = AllocationLog::WithoutItsFile(kIncarnation);
  without->Append(Record(1));
  without->Append(Record(2));
  EXPECT_EQ(without->unwritten(), 2u);
  EXPECT_EQ(without->List(kAdmin, {}).size(), 2u);
  without->Flush(absl::Seconds(10));
}

}  // namespace
}  // namespace berth::service
