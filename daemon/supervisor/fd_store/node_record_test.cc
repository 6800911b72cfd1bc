#include "daemon/supervisor/fd_store/node_record.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

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
                           Case{"another node", true, kNode + 1, "belonged to another node"}}) {
    SCOPED_TRACE(test.name);
    NodeRecord record = Open();
    ASSERT_TRUE(record.Begin(kNode, 1, test.begun).ok());
    EXPECT_TRUE(absl::StrContains(record.Check(test.node).message(), test.why)) << record.Check(test.node);
  }
}

TEST_F(NodeRecordTest, RecordOfOtherBootIsIgnored) {
  { ASSERT_TRUE(Open().Begin(kNode, 1, /*begun=*/true).ok()); }
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::ifstream boot_file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  boot_file >> boot;
  const size_t at = bytes.find(boot);
  ASSERT_NE(at, std::string::npos);
  file.clear();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(boot[0] == '0' ? '1' : '0');
  file.close();
  EXPECT_TRUE(absl::StrContains(Open().Check(kNode).message(), "another boot"));
}

TEST_F(NodeRecordTest, DamagedFileIsRejectedWithRemedy) {
  for (const std::string& content : {std::string("short"), std::string(1 << 16, 'x')}) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << content;
    const absl::Status status = NodeRecord::Open(folder_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), path_)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "remove the file")) << status;
  }
}

TEST_F(NodeRecordTest, RelinkRestoresDeletedFile) {
  NodeRecord record = Open();
  ASSERT_TRUE(record.Begin(kNode, 42, /*begun=*/true).ok());
  for (const bool replaced : {false, true}) {
    ASSERT_EQ(::unlink(path_.c_str()), 0);
    if (replaced) std::ofstream(path_) << "something else";
    const absl::Status linked = record.Relink();
    ASSERT_TRUE(linked.ok()) << linked;
    EXPECT_EQ(Open().incarnation(), 42u);
    EXPECT_TRUE(Open().Check(kNode).ok());
  }
}

}  // namespace
}  // namespace berth
