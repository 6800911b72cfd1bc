// A daemon does not start in, or with, a folder that another user could write to or replace. It names the folder, the
// reason and the way out, and changes nothing.

#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr uid_t kOther = 4242;

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The folders that a daemon trusts; "@" stands for the test's own folder.
struct Trusted {
  const char* name;
  const char* path;
  Words options;
};

std::vector<Trusted> TrustedFolders() {
  return {{"--folder", "@/above/run", {"--folder=@/above/run"}},
          {"--state", "@/above/state", {"--folder=@/run", "--state=@/above/state"}},
          {"log.audit_folder", "@/above/audit", {"--folder=@/run", "--config=@/audit.toml"}}};
}

class PrivateFoldersTest : public ::testing::Test {
 protected:
  PrivateFoldersTest() {
    EXPECT_NE(::mkdtemp(parent_.data()), nullptr);
    Make("@/above", 0755);
    std::ofstream(Path("@/audit.toml")) << Path("[log]\naudit_folder = \"@/above/audit\"\n");
  }
  ~PrivateFoldersTest() override { fs::remove_all(parent_); }

  std::string Path(const std::string& path) const { return absl::StrReplaceAll(path, {{"@", parent_}}); }
  void Make(const std::string& path, mode_t mode) const {
    fs::create_directory(Path(path));
    EXPECT_EQ(::chmod(Path(path).c_str(), mode), 0);
  }
  void GiveTo(const std::string& path, uid_t user, gid_t group) const {
    EXPECT_EQ(::lchown(Path(path).c_str(), user, group), 0) << path;
  }

  // Starts a daemon with these options, which prints stderr to stdout.
  Subprocess Start(const Words& options) const {
    Words argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", ProgramPath("daemon/berthd"), "--backend=host",
                  "--ready-fd=1"};
    for (const std::string& option : options) argv.push_back(Path(option));
    return Subprocess::Start({.argv = argv,
                              .environment = {"BERTH_SESSION", "BERTH_FOLDER", "BERTH_STATE", "STATE_DIRECTORY"},
                              .of_operator = true});
  }
  void ExpectServes(const Words& options) const {
    Subprocess daemon = Start(options);
    std::string said;
    while (!absl::StrContains(said, "ready\n")) {
      const absl::StatusOr<std::string> line = daemon.ReadLine();
      ASSERT_TRUE(line.ok()) << said;
      absl::StrAppend(&said, *line, "\n");
    }
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(), 0) << said;
    fs::remove_all(Path("@/run"));
  }
  void ExpectRefused(const Words& options, const Words& reasons) const {
    Subprocess daemon = Start(options);
    const std::string said = daemon.ReadAll();
    EXPECT_NE(daemon.Wait(), 0) << said;
    EXPECT_FALSE(absl::StrContains(said, "ready\n")) << said;
    for (const std::string& reason : reasons) EXPECT_TRUE(absl::StrContains(said, Path(reason))) << reason << said;
    fs::remove_all(Path("@/run"));
  }

 private:
  std::string parent_ = "/tmp/berth-private-XXXXXX";
};

TEST_F(PrivateFoldersTest, FolderWritableForOthersIsRefused) {
  for (const Trusted& trusted : TrustedFolders()) {
    for (const mode_t mode : {0770, 0777, 01777, 02775}) {
      SCOPED_TRACE(absl::StrCat(trusted.name, " ", mode));
      Make(trusted.path, mode);
      const std::string octal = mode == 01777 ? "1777" : mode == 02775 ? "2775" : mode == 0770 ? "0770" : "0777";
      ExpectRefused(trusted.options, {absl::StrCat("folder ", trusted.path, " has mode ", octal),
                                      "so other users can write to it", "chmod go-w"});
      EXPECT_EQ(ModeOf(Path(trusted.path)), mode);
      EXPECT_TRUE(fs::is_empty(Path(trusted.path)));
    }
    Make(trusted.path, 0755);
    ExpectServes(trusted.options);
    EXPECT_FALSE(fs::is_empty(Path(trusted.path)));
    fs::remove_all(Path(trusted.path));
  }
}

TEST_F(PrivateFoldersTest, FolderThatOthersCouldReplaceIsRefused) {
  for (const Trusted& trusted : TrustedFolders()) {
    SCOPED_TRACE(trusted.name);
    Make("@/above", 0777);
    ExpectRefused(trusted.options, {absl::StrCat("folder ", trusted.path, " is below @/above, which has mode 0777"),
                                    "chmod go-w or chmod +t on @/above"});
    EXPECT_TRUE(fs::is_empty(Path("@/above")));
    // Nobody can rename another user's folder in it.
    Make("@/above", 01777);
    ExpectServes(trusted.options);
    fs::remove_all(Path(trusted.path));
  }
  const Words folder = {"--folder=@/above/run"};
  // A link on the way to the folder.
  Make("@/above", 0777);
  fs::create_directory(Path("@/above/below"));
  fs::create_directory_symlink(Path("@/above/below"), Path("@/link"));
  ExpectRefused({"--folder=@/link/run"}, {"folder @/link/run is below @/above, which has mode 0777"});
  fs::remove(Path("@/above/below"));
  // The group of the daemon's user may be that user's alone.
  Make("@/above", 0775);
  ExpectServes(folder);
  fs::remove_all(Path("@/above/run"));
  if (!IsRoot()) return;
  GiveTo("@/above", 0, kOther);
  ExpectRefused(folder, {"@/above, which has mode 0775"});
  Make("@/above", 0755);
  GiveTo("@/above", kOther, kOther);
  ExpectRefused(folder, {"@/above, which belongs to uid 4242"});
  EXPECT_TRUE(fs::is_empty(Path("@/above")));
}

// Another user has made a file before the folder got the right mode.
TEST_F(PrivateFoldersTest, FileOfOtherUserInRunFolderIsRefused) {
  if (!IsRoot()) GTEST_SKIP() << "only root gives files away";
  for (const std::string name : {"berthd.lock", "node", "ledger", "record"}) {
    SCOPED_TRACE(name);
    Make("@/above/run", 0755);
    const std::string file = absl::StrCat("@/above/run/", name);
    std::ofstream(Path(file)) << "content";
    GiveTo(file, kOther, kOther);
    ExpectRefused({"--folder=@/above/run"}, {absl::StrCat(file, " belongs to uid 4242"), "remove it"});
    EXPECT_EQ(Read(Path(file)), "content");
    fs::remove(Path(file));
    EXPECT_TRUE(fs::is_empty(Path("@/above/run")));
  }
}

TEST_F(PrivateFoldersTest, EvidenceGoesToNoFileOfOtherUser) {
  if (!IsRoot()) GTEST_SKIP() << "only root gives files away";
  Make("@/above/audit", 01777);
  const std::string file = "@/above/audit/audit.jsonl";
  std::ofstream(Path(file)).close();
  GiveTo(file, kOther, kOther);
  EXPECT_EQ(::chmod(Path(file).c_str(), 0666), 0);
  ExpectRefused({"--folder=@/run", "--config=@/audit.toml"},
                {"@/audit.toml:2: log.audit_folder: folder @/above/audit has mode 1777"});
  Make("@/above/audit", 0755);
  ExpectServes({"--folder=@/run", "--config=@/audit.toml"});
  EXPECT_EQ(Read(Path(file)), "");
}

// A mode that changes under leases costs none of them: the log has the reason.
TEST_F(PrivateFoldersTest, LeasesOutliveOpenedAuditFolder) {
  Make("@/above/audit", 0700);
  const std::string errors = Path("@/errors");
  TestDaemon daemon({.config = Path("[log]\naudit_folder = \"@/above/audit\"\n"), .errors = errors});
  Actor holder(daemon);
  holder.Do("acquire p");
  Make("@/above/audit", 0777);
  daemon.KillBroker();
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(absl::StrContains(Read(errors), Path("folder @/above/audit has mode 0777"))) << Read(errors);
  holder.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
