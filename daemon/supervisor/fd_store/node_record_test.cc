#include "daemon/supervisor/fd_store/node_record.h"

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

constexpr uint64_t kNode = 7;

class NodeRecordTest : public testing::Test {
 protected:
  NodeRecordTest() {
    std::string name = testing::TempDir() + "/record-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ + "/" + NodeRecord::kName;
  }
  ~NodeRecordTest() override { std::filesystem::remove_all(folder_); }

  NodeRecord Open() {
    absl::StatusOr<NodeRecord> record = NodeRecord::Open(folder_);
    EXPECT_TRUE(record.ok()) << record.status();
    return *std::move(record);
  }

  std::string Read() const {
    std::ostringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }
  // Overwrites the file in place, as a shell's redirection does.
  void Write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes; }

  std::string folder_;
  std::string path_;
};

TEST_F(NodeRecordTest, RecordIsResumedWithItsNumbers) {
  const UniqueFd fd = CreateStatePage().value();
  StatePage page = StatePage::MapWritable(fd.get()).value();
  page.writable().epoch = 5;
  page.writable().devices[3].generation = 2;
  page.writable().devices[3].context_generation = 4;
  {
    NodeRecord record = Open();
    EXPECT_EQ(record.Check(kNode).message(), "no daemon has served in this folder");
    ASSERT_TRUE(record.Begin(kNode, 99, /*begun=*/true).ok());
    record.Update(*page);
  }
  const NodeRecord record = Open();
  ASSERT_TRUE(record.Check(kNode).ok()) << record.Check(kNode);
  EXPECT_TRUE(*record.PidsAreOurs());
  EXPECT_EQ(record.incarnation(), 99u);
  EXPECT_EQ(record.epoch(), 5u);
  const UniqueFd next_fd = CreateStatePage().value();
  StatePage next = StatePage::MapWritable(next_fd.get()).value();
  record.ContinueDevices(&next.writable());
  EXPECT_GT(next->devices[3].generation, 2u);
  EXPECT_GT(next->devices[3].context_generation, 4u);
  EXPECT_EQ(next->devices[4].generation, 0u) << "a device that never started has none";
}

TEST_F(NodeRecordTest, UnusableRecordsNameReason) {
  struct Case {
    const char* name;
    bool begun;
    uint64_t node;
    const char* why;
  };
  for (const Case& test : {Case{"never served", false, kNode, "no daemon has served in this folder"},
                           Case{"another node", true, kNode + 1, "of another node"}}) {
    SCOPED_TRACE(test.name);
    NodeRecord record = Open();
    ASSERT_TRUE(record.Begin(kNode, 1, test.begun).ok());
    EXPECT_TRUE(absl::StrContains(record.Check(test.node).message(), test.why)) << record.Check(test.node);
  }
}

TEST_F(NodeRecordTest, RecordOfOtherBootIsIgnored) {
  { ASSERT_TRUE(Open().Begin(kNode, 1, /*begun=*/true).ok()); }
  std::string bytes = Read();
  std::ifstream boot_file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  boot_file >> boot;
  const size_t at = bytes.find(boot);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = boot[0] == '0' ? '1' : '0';
  Write(NodeRecord::Seal(bytes));
  const absl::Status other = Open().Check(kNode);
  EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
  EXPECT_TRUE(absl::StrContains(other.message(), "another boot")) << other;
  // Without a right checksum, the same change is damage.
  Write(bytes);
  EXPECT_TRUE(absl::IsDataLoss(Open().Check(kNode))) << Open().Check(kNode);
}

TEST_F(NodeRecordTest, DamagedFileIsReportedAndLeftAlone) {
  { ASSERT_TRUE(Open().Begin(kNode, 1, /*begun=*/true).ok()); }
  const std::string good = Read();
  std::string flipped = good;
  flipped[good.size() / 2] ^= 1;
  for (const std::string& content : {std::string("short"), std::string(1 << 16, 'x'), good.substr(0, 100),
                                     good + "x", flipped}) {
    Write(content);
    NodeRecord record = Open();
    const absl::Status status = record.Check(kNode);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), path_)) << status;
    EXPECT_FALSE(record.never_served());
    EXPECT_EQ(NodeRecord::ReadNode(folder_), 0u);
    EXPECT_FALSE(*record.Repair());
    EXPECT_EQ(Read(), content);
  }
  for (const std::string& content : {std::string(), std::string(good.size(), '\0')}) {
    Write(content);
    EXPECT_TRUE(absl::IsNotFound(Open().Check(kNode))) << Open().Check(kNode);
    EXPECT_FALSE(Open().never_served());
  }
}

TEST_F(NodeRecordTest, RecordOfEarlierProgramIsResumed) {
  { ASSERT_TRUE(Open().Begin(kNode, 42, /*begun=*/true).ok()); }
  std::string bytes = Read();
  ASSERT_EQ(bytes.substr(0, 8), "ntate002");
  bytes[7] = '1';
  Write(bytes.substr(0, bytes.size() - sizeof(uint64_t)));
  EXPECT_TRUE(Open().Check(kNode).ok()) << Open().Check(kNode);
  EXPECT_EQ(Open().incarnation(), 42u);
}

TEST_F(NodeRecordTest, RepairRestoresContent) {
  NodeRecord record = Open();
  ASSERT_TRUE(record.Begin(kNode, 42, /*begun=*/true).ok());
  const std::string good = Read();
  EXPECT_FALSE(*record.Repair());
  const std::function<void()> damages[] = {
      [&] { std::filesystem::remove(path_); },
      [&] { Write(""); },
      [&] { std::filesystem::resize_file(path_, 100); },
      [&] { Write(std::string(good.size(), '\0')); },
      [&] { Write(good + "x"); },
      [&] {
        std::filesystem::remove(path_);
        Write("something else");
      },
      [&] {
        std::filesystem::remove(path_);
        Write(good);
      }};
  for (const std::function<void()>& damage : damages) {
    damage();
    const absl::StatusOr<bool> repaired = record.Repair();
    ASSERT_TRUE(repaired.ok()) << repaired.status();
    EXPECT_TRUE(*repaired);
    EXPECT_EQ(Read(), good);
    EXPECT_FALSE(*record.Repair());
  }
}

}  // namespace
}  // namespace berth
