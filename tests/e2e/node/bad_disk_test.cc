// A full or read-only disk below the run folder or the state folder, at the daemon's start and while it serves. Nothing
// is granted twice, and nothing is forgotten once the disk works again. A daemon that cannot continue reports why. A
// run folder that runs full under load is in surroundings_test.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/client_folder.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

// The mounts of these tests end with them, also where a test aborts.
const bool kOwnMounts = EnterOwnMounts();

// Part of the report of a command whose setting is not saved.
constexpr char kUnsaved[] = "not saved: the next boot loses it";

enum class Fault { kFull, kReadOnly };

struct Case {
  const char* name;
  // "run" or "state".
  const char* folder;
  Fault fault;
  // The fault is there at the daemon's start, not while it serves.
  bool at_start;
  // The daemon does not serve, and reports why.
  bool ends;
};
void PrintTo(const Case& value, std::ostream* out) { *out << value.name; }

class BadDiskTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!kOwnMounts) GTEST_SKIP() << "needs the right to mount small disks";
    std::string parent = "/tmp/berth-disks-XXXXXX";
    if (::mkdtemp(parent.data()) == nullptr) Fatal(absl::InternalError("mkdtemp"), parent);
    parent_ = parent;
    ::chmod(parent_.c_str(), 0755);
    for (const char* const name : {"run", "state"}) {
      fs::create_directory(Disk(name));
      ASSERT_EQ(::mount("berth-test", Disk(name).c_str(), "tmpfs", 0, "size=16m,mode=0755"), 0);
    }
    fs::create_directory(Folder("state"));
    fs::permissions(Folder("state"), fs::perms::owner_all);
    ASSERT_TRUE(Start()) << Log();
  }
  void TearDown() override {
    if (daemon_.has_value()) Stop();
    if (parent_.empty()) return;
    for (const char* const name : {"run", "state"}) {
      while (::umount2(Disk(name).c_str(), MNT_DETACH) == 0) {
      }
    }
    fs::remove_all(parent_);
  }

  std::string Disk(const std::string& name) const { return absl::StrCat(parent_, "/", name); }
  std::string Folder(const std::string& name) const { return Disk(name) + "/folder"; }

  // Returns whether the daemon serves; otherwise it has ended.
  bool Start() {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) < 0) Fatal(absl::InternalError("pipe2"), "berthd");
    daemon_.emplace(Subprocess::Start(
        {.argv = {ProgramPath("daemon/berthd"), absl::StrCat("--folder=", Folder("run")),
                  absl::StrCat("--state=", Folder("state")), "--backend=host", "--warm-blocks=0",
                  absl::StrCat("--ready-fd=", ready[1])},
         .environment = {"BERTH_GPU_TEST_CONCURRENCY=1", "BERTH_SESSION"},
         .inherited_fd = ready[1],
         .errors = parent_ + "/log",
         .of_operator = true}));
    ::close(ready[1]);
    char text[6] = {};
    const bool serves = ::read(ready[0], text, sizeof(text)) == sizeof(text);
    ::close(ready[0]);
    if (serves) {
      OpenToClients(Folder("run"));
    } else {
      EXPECT_NE(daemon_->Wait(), 0);
      daemon_.reset();
    }
    return serves;
  }
  void Stop() {
    daemon_->Signal(SIGTERM);
    EXPECT_EQ(daemon_->Wait(), 0);
    daemon_.reset();
  }
  std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(parent_ + "/log").rdbuf();
    return text.str();
  }

  void Break() {
    const std::string disk = Disk(GetParam().folder);
    if (GetParam().fault == Fault::kReadOnly && GetParam().at_start) {
      ASSERT_EQ(::mount("", disk.c_str(), "", MS_REMOUNT | MS_RDONLY, ""), 0);
      return;
    }
    if (GetParam().fault == Fault::kReadOnly) {
      // The kernel refuses a disk on which a daemon that serves has files open for writing. A read-only mount of the
      // same disk in its place, made where nothing opens a file, meets every file that the daemon opens from now on.
      const std::string copy = parent_ + "/read_only";
      fs::create_directory(copy);
      ASSERT_EQ(::mount(disk.c_str(), copy.c_str(), "", MS_BIND, ""), 0);
      ASSERT_EQ(::mount("", copy.c_str(), "", MS_REMOUNT | MS_RDONLY | MS_BIND, ""), 0);
      ASSERT_EQ(::mount(copy.c_str(), disk.c_str(), "", MS_BIND, ""), 0);
      ASSERT_EQ(::umount2(copy.c_str(), MNT_DETACH), 0);
      return;
    }
    std::ofstream file(disk + "/filler");
    while (file << std::string(4096, 'x') << std::flush) {
    }
  }
  void Mend() {
    const std::string disk = Disk(GetParam().folder);
    if (GetParam().fault == Fault::kReadOnly && GetParam().at_start) {
      ASSERT_EQ(::mount("", disk.c_str(), "", MS_REMOUNT, ""), 0);
    } else if (GetParam().fault == Fault::kReadOnly) {
      ASSERT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
    } else {
      fs::remove(disk + "/filler");
    }
  }
  // Returns the exit code of a new client that requests the one unit.
  int TryRun() {
    return Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "run", "--no-wait", "--", "/bin/true"},
                              .environment = {absl::StrCat("BERTH_FOLDER=", Folder("run")), "BERTH_SESSION"}})
        .Wait();
  }

  // Expects the daemon to count the records that do not fit on the state folder's disk, and to show the count to an
  // operator.
  void ExpectLossIsShown() {
    if (GetParam().fault != Fault::kFull || GetParam().folder != absl::string_view("state")) return;
    const BerthCommand berth(Folder("run"));
    EXPECT_TRUE(Eventually([&] {
      TryRun();
      return absl::StrContains(berth.Show({"--admin", "status"}), "decisions are missing from the audit log");
    }));
  }

  // Sets the tenant cap of the pool, which the daemon stores in the state folder.
  int SetTenantCap(const char* cap) {
    return BerthCommand(Folder("run")).Run({"--admin", "permits", "set", "gpu-tests", "--tenant-cap", cap});
  }
  // Returns the output of a command that succeeds, with its errors.
  std::string SaidBy(const std::vector<std::string>& words) {
    Subprocess command = BerthCommand(Folder("run")).Start(words, {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), 0) << said;
    return said;
  }
  // Expects each command that changes a stored setting to report that the setting is not saved.
  void ExpectLossIsReported() {
    const std::vector<std::string> commands[] = {{"--admin", "permits", "set", "gpu-tests", "--tenant-cap", "3"},
                                                 {"device", "drain", "0"},
                                                 {"device", "undrain", "0"},
                                                 {"budget", "set", "1GiB", "--device", "0"},
                                                 {"budget", "set", "default", "--device", "0"}};
    for (const std::vector<std::string>& words : commands) {
      const std::string said = SaidBy(words);
      EXPECT_TRUE(absl::StrContains(said, kUnsaved)) << absl::StrJoin(words, " ") << "\n" << said;
    }
  }
  void KillBroker() {
    for (const ChildInfo& child : ChildrenOf(daemon_->pid())) {
      if (child.name == "berth-broker") ::kill(child.pid, SIGKILL);
    }
  }
  bool IsLogged(const std::string& text) {
    return Eventually([&] { return absl::StrContains(Log(), text); });
  }

  // Expects a daemon whose folder became read-only to serve what needs no new file, across a broker's death, and to
  // report what it cannot store.
  void ExpectReadOnlyFolderIsServed() {
    if (GetParam().fault != Fault::kReadOnly) return;
    KillBroker();
    EXPECT_EQ(TryRun(), 75) << "the unit is out still";
    EXPECT_EQ(SetTenantCap("1"), 0);
    if (GetParam().folder != absl::string_view("state")) return;
    EXPECT_TRUE(IsLogged("cannot save the operators' settings: ")) << Log();
    EXPECT_TRUE(absl::StrContains(Log(), "Read-only file system")) << Log();
    ExpectLossIsReported();
  }
  // Expects it to store that once the folder is writable again.
  void ExpectWritableFolderIsUsed() {
    if (GetParam().fault != Fault::kReadOnly) return;
    EXPECT_EQ(SetTenantCap("2"), 0);
    if (GetParam().folder != absl::string_view("state")) return;
    EXPECT_TRUE(IsLogged("saved the operators' settings to ")) << Log();
    EXPECT_TRUE(Eventually([&] { return !absl::StrContains(SaidBy({"device", "undrain", "0"}), kUnsaved); }));
  }

  std::string parent_;
  std::optional<Subprocess> daemon_;
};

TEST_P(BadDiskTest, DiskFailureGrantsNothingTwiceAndForgetsNothing) {
  Actor holder(Folder("run"));
  holder.Do("acquire p");
  if (GetParam().at_start) {
    Stop();
    Break();
    if (Start()) {
      EXPECT_FALSE(GetParam().ends) << Log();
      EXPECT_EQ(TryRun(), 75) << "the unit is out still";
      ExpectLossIsShown();
      Stop();
    } else {
      EXPECT_TRUE(GetParam().ends) << Log();
    }
    if (GetParam().fault == Fault::kReadOnly) {
      const std::string log = Log();
      EXPECT_TRUE(absl::StrContains(log, Disk(GetParam().folder))) << log;
      EXPECT_TRUE(absl::StrContains(log, "Read-only file system")) << log;
    }
    Mend();
    ASSERT_TRUE(Start()) << Log();
  } else {
    Break();
    EXPECT_EQ(TryRun(), 75) << "the unit is out still";
    EXPECT_TRUE(Ok(holder.Ask("status")));
    ExpectLossIsShown();
    ExpectReadOnlyFolderIsServed();
    Mend();
    ExpectWritableFolderIsUsed();
  }
  EXPECT_EQ(TryRun(), 75) << "the unit is out still";
  EXPECT_TRUE(Eventually([&] { return Ok(holder.Ask("release p")); }));
  EXPECT_TRUE(Eventually([&] { return TryRun() == 0; }));
  holder.Quit();
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadDiskTest,
    ::testing::Values(Case{"FullRunFolderAtStart", "run", Fault::kFull, true, false},
                      Case{"ReadOnlyRunFolderAtStart", "run", Fault::kReadOnly, true, true},
                      Case{"FullStateAtStart", "state", Fault::kFull, true, false},
                      Case{"ReadOnlyStateAtStart", "state", Fault::kReadOnly, true, false},
                      Case{"FullRunFolder", "run", Fault::kFull, false, false},
                      Case{"FullState", "state", Fault::kFull, false, false},
                      Case{"ReadOnlyRunFolder", "run", Fault::kReadOnly, false, false},
                      Case{"ReadOnlyState", "state", Fault::kReadOnly, false, false}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace berth::testing
