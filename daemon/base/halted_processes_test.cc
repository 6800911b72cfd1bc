#include "daemon/base/halted_processes.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace berth {
namespace {

using Files = std::vector<std::string>;

constexpr char kUnified[] = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr char kBoth[] =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
    "37 31 0:34 / /sys/fs/cgroup/cpu,freezer rw master:3 shared:5 - cgroup cgroup rw,cpu,freezer\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
// As in a cgroup namespace of its own, beside the mounts of the host.
constexpr char kOfNamespace[] = "29 23 0:26 /../.. /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
// As in a container that sees the host's cgroups but has only its own one mounted.
constexpr char kOfContainer[] = "29 23 0:26 /docker/a /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";

TEST(HaltedProcessesTest, FilesOfEachHierarchyAreFound) {
  const struct {
    const char* name;
    const char* mounts;
    const char* cgroups;
    Files paths;
    bool incomplete = false;
  } rows[] = {
      {"unified", kUnified, "0::/user.slice/a:b c\n", {"/sys/fs/cgroup/user.slice/a:b c/cgroup.events"}},
      {"unified root", kUnified, "0::/\n", {"/sys/fs/cgroup/cgroup.events"}},
      {"both", kBoth, "7:devices:/d\n6:cpu,freezer:/f\n0::/u\n",
       {"/sys/fs/cgroup/cpu,freezer/f/freezer.state", "/sys/fs/cgroup/unified/u/cgroup.events"}},
      {"no freezer", kBoth, "7:devices:/d\n1:name=systemd:/s\n", {}},
      {"another namespace", kUnified, "0::/../other\n", {}, true},
      {"another namespace's, mounted", kOfNamespace, "0::/../../a\n", {"/sys/fs/cgroup/a/cgroup.events"}},
      {"above what is mounted", kOfNamespace, "0::/../../../a\n", {}, true},
      {"below this namespace", kOfNamespace, "0::/a\n", {}, true},
      {"one of two mounted", kUnified, "6:freezer:/f\n0::/u\n", {"/sys/fs/cgroup/u/cgroup.events"}, true},
      {"of the container", kOfContainer, "0::/docker/a/b\n", {"/sys/fs/cgroup/b/cgroup.events"}},
      {"the container's own", kOfContainer, "0::/docker/a\n", {"/sys/fs/cgroup/cgroup.events"}},
      {"of another container", kOfContainer, "0::/docker/ab\n", {}, true},
      {"nothing mounted", "", "0::/a\n", {}, true},
      {"no cgroups", kUnified, "", {}},
      {"no lines of this kind", "31\n - \n", "0\n:\n", {}},
  };
  for (const auto& row : rows) {
    const FreezerFiles files = FreezerFilesOf(row.cgroups, FindFreezers(row.mounts));
    EXPECT_EQ(files.paths, row.paths) << row.name;
    EXPECT_EQ(files.incomplete, row.incomplete) << row.name;
  }
}

TEST(HaltedProcessesTest, StatesOfBothKindsAreRead) {
  for (const char* const frozen : {"populated 1\nfrozen 1\n", "FROZEN\n", "FREEZING\n"}) {
    EXPECT_TRUE(ReportsFrozen(frozen)) << frozen;
  }
  for (const char* const runs : {"populated 1\nfrozen 0\n", "THAWED\n", "", "frozen 10\n"}) {
    EXPECT_FALSE(ReportsFrozen(runs)) << runs;
  }
}

TEST(HaltedProcessesTest, StoppedProcessIsHalted) {
  const pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  EXPECT_FALSE(HaltedProcesses().Has(child));
  ::kill(child, SIGSTOP);
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED), 0);
  EXPECT_TRUE(HaltedProcesses().Has(child));
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(HaltedProcesses().Has(child));
  for (const int32_t pid : {0, -1, INT32_MAX}) EXPECT_FALSE(HaltedProcesses().Has(pid)) << pid;
}

}  // namespace
}  // namespace berth
