// The memory limit and the rules, on a tree of plain files; and on a real cgroup if one may be divided.

#include "daemon/supervisor/processes/cgroups.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

class CgroupsTest : public ::testing::Test {
 protected:
  CgroupsTest() {
    folder_ = "/tmp/berth-cgroup-XXXXXX";
    if (::mkdtemp(folder_.data()) == nullptr) ::abort();
    for (const char* const name : {"vault", "broker"}) ::mkdir(absl::StrCat(folder_, "/", name).c_str(), 0755);
    for (const char* const file : {"cgroup.procs", "cgroup.controllers", "cgroup.subtree_control",
                                   "vault/cgroup.procs", "broker/cgroup.procs", "broker/memory.max"}) {
      Fill(file, "");
    }
    Fill("cgroup.controllers", "cpu memory pids\n");
  }
  ~CgroupsTest() override { std::filesystem::remove_all(folder_); }

  void Fill(const std::string& file, const std::string& text) const {
    std::ofstream(absl::StrCat(folder_, "/", file)) << text;
  }
  std::string TextOf(const std::string& file) const {
    std::stringstream text;
    text << std::ifstream(absl::StrCat(folder_, "/", file)).rdbuf();
    return text.str();
  }

  std::string folder_;
};

TEST_F(CgroupsTest, KernelBoundExceedsBrokersBound) {
  const uint64_t gib = uint64_t{1} << 30;
  EXPECT_EQ(Cgroups::KernelBound(2 * gib), 3 * gib + gib / 4);
  EXPECT_EQ(Cgroups::KernelBound(0), gib / 4);
}

TEST_F(CgroupsTest, SupervisorAndBrokerHaveOwnLeaves) {
  const absl::StatusOr<Cgroups> cgroups = Cgroups::Divide(folder_);
  ASSERT_TRUE(cgroups.ok()) << cgroups.status();
  EXPECT_EQ(TextOf("vault/cgroup.procs"), "0");
  EXPECT_EQ(TextOf("cgroup.subtree_control"), "+memory");
  EXPECT_TRUE(cgroups->PlaceBroker(4711).ok());
  EXPECT_EQ(TextOf("broker/cgroup.procs"), "4711");
  EXPECT_TRUE(cgroups->BoundBroker(uint64_t{1} << 30).ok());
  EXPECT_EQ(TextOf("broker/memory.max"), absl::StrCat(Cgroups::KernelBound(uint64_t{1} << 30)));
}

TEST_F(CgroupsTest, StrayProcessesAreMovedFirst) {
  Fill("cgroup.procs", "123456\n");
  ASSERT_TRUE(Cgroups::Divide(folder_).ok());
  // A plain file only shows the last write at its beginning; a real cgroup accepts each write.
  EXPECT_EQ(TextOf("vault/cgroup.procs"), "123456");
}

TEST_F(CgroupsTest, CgroupsWithoutControllerAreUnbounded) {
  Fill("cgroup.controllers", "cpu pids\n");
  const absl::StatusOr<Cgroups> cgroups = Cgroups::Divide(folder_);
  ASSERT_TRUE(cgroups.ok()) << cgroups.status();
  EXPECT_EQ(TextOf("cgroup.subtree_control"), "");
  EXPECT_TRUE(cgroups->PlaceBroker(4711).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(cgroups->BoundBroker(1)));
  EXPECT_EQ(TextOf("broker/memory.max"), "");
}

TEST_F(CgroupsTest, UnwritableCgroupIsAnError) {
  EXPECT_FALSE(Cgroups::Divide(folder_ + "/nowhere").ok());
  std::filesystem::remove(folder_ + "/cgroup.subtree_control");
  EXPECT_FALSE(Cgroups::Divide(folder_).ok());
}

bool IsService(const std::string& folder) { return folder == "/cg/system.slice/berthd.service"; }

TEST(FindCgroupTest, CgroupOfServiceIsFound) {
  const std::string service = "/cg/system.slice/berthd.service";
  EXPECT_EQ(Cgroups::FindIn("0::/system.slice/berthd.service\n", "/cg", IsService), service);
  EXPECT_EQ(Cgroups::FindIn("4:memory:/else\n0::/system.slice/berthd.service\n", "/cg", IsService), service);
}

TEST(FindCgroupTest, LeafOfEarlierSupervisorBelongsToService) {
  const std::string service = "/cg/system.slice/berthd.service";
  EXPECT_EQ(Cgroups::FindIn("0::/system.slice/berthd.service/vault\n", "/cg", IsService), service);
  EXPECT_EQ(Cgroups::FindIn("0::/system.slice/berthd.service/broker\n", "/cg", IsService), service);
  EXPECT_EQ(Cgroups::FindIn("0::/system.slice/berthd.service/other\n", "/cg", IsService), std::nullopt);
}

TEST(FindCgroupTest, ForeignCgroupIsNotDivided) {
  for (const char* const self : {"", "0::/\n", "0::/user.slice/session-1.scope\n", "0::/../x\n", "4:memory:/a\n",
                                 "0::/vault\n", "0::/broker\n"}) {
    EXPECT_EQ(Cgroups::FindIn(self, "/cg", IsService), std::nullopt) << self;
  }
}

// Lets a process of its own divide a cgroup below this one.
TEST(RealCgroupTest, ProcessesAreInTheirCgroups) {
  std::string line;
  for (std::ifstream file("/proc/self/cgroup"); std::getline(file, line) && line.rfind("0::", 0) != 0;) line.clear();
  std::string folder;
  for (const char* const mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    if (line.empty() || !std::filesystem::exists(absl::StrCat(mount, "/cgroup.procs"))) continue;
    folder = absl::StrCat(mount, line.substr(3), "/berth-test-", ::getpid());
    break;
  }
  if (folder.empty() || ::mkdir(folder.c_str(), 0755) < 0) {
    GTEST_SKIP() << "no cgroup of version 2 can be made here";
  }
  // The child's exit code encodes how far it got.
  const pid_t child = ::fork();
  if (child == 0) {
    std::ofstream(folder + "/cgroup.procs") << "0" << std::flush;
    const absl::StatusOr<Cgroups> cgroups = Cgroups::Divide(folder);
    if (!cgroups.ok()) ::_exit(1);
    const pid_t broker = ::fork();
    if (broker == 0) ::pause();
    if (!cgroups->PlaceBroker(broker).ok()) ::_exit(2);
    std::stringstream at;
    at << std::ifstream(absl::StrCat("/proc/", broker, "/cgroup")).rdbuf();
    std::stringstream own;
    own << std::ifstream("/proc/self/cgroup").rdbuf();
    const absl::Status bounded = cgroups->BoundBroker(uint64_t{1} << 30);
    ::kill(broker, SIGKILL);
    ::waitpid(broker, nullptr, 0);
    if (!bounded.ok() && !absl::IsFailedPrecondition(bounded)) ::_exit(3);
    if (at.str().find("/broker\n") == std::string::npos) ::_exit(4);
    ::_exit(own.str().find("/vault\n") == std::string::npos ? 5 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  for (const char* const name : {"/vault", "/broker", ""}) ::rmdir((folder + name).c_str());
}

}  // namespace
}  // namespace berth
