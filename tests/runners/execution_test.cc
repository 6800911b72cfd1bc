// Execution and inheritance of commands: the same under Berth as without it, except as docs/guides/ci.md lists.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

// The first fd number of the session.
constexpr int kSessionFds = 960;

class ExecutionTest : public ::testing::Test {
 protected:
  ExecutionTest() : folder_(daemon_.folder() + "/../execution") {
    fs::create_directories(folder_ / "bin");
    Write("no_shebang", "echo \"$0\" \"$#\" \"$@\"; exit 3\n", 0755);
    Write("shebang", "#!/bin/sh\necho \"$0\" \"$#\" \"$@\"; exit 4\n", 0755);
    Write("empty", "", 0755);
    Write("no_permission", "echo no\n", 0644);
    Write("bin/in_path", "echo \"$0\" \"$#\" \"$@\"; exit 5\n", 0755);
    Write("bin/empty_in_path", "", 0755);
    Write("bin/no_permission_in_path", "echo no\n", 0644);
    GiveToClients(folder_);
    if (RunUnder({"run", "--cgroup"}, "/bin/true").second == 0) modes_.push_back({"run", "--cgroup"});
  }
  void TearDown() override { daemon_.ExpectAccountsBack(); }

  void Write(const std::string& name, const std::string& text, mode_t mode) {
    std::ofstream(folder_ / name) << text;
    ::chmod((folder_ / name).c_str(), mode);
  }

  // Returns a shell script's output, without Berth's messages, and its exit code.
  std::pair<std::string, int> Script(const std::string& script) {
    Subprocess shell = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("cd ", folder_.string(), "; ", script)},
         .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION", "CTEST_RESOURCE_GROUP_COUNT",
                         absl::StrCat("PATH=", (folder_ / "bin").string(), ":/usr/bin:/bin"), "HOME=/"},
         .errors = (folder_ / "errors").string()});
    std::string said = shell.ReadAll();
    const int code = shell.Wait();
    return {std::move(said), code};
  }
  std::pair<std::string, int> RunUnder(const Words& mode, const std::string& command, const std::string& before = "") {
    return Script(absl::StrCat(before, " exec ", ProgramPath("client/cli/berth"), " ", absl::StrJoin(mode, " "), " -- ",
                               command));
  }

  TestDaemon daemon_;
  const fs::path folder_;
  std::vector<Words> modes_ = {{"run"}, {"run", "--until=tree"}, {"run", "--exec"}, {"ctest-run"}};
};

TEST_F(ExecutionTest, EachModeExecutesLikeExecvp) {
  for (const char* const command :
       {"./no_shebang", "./no_shebang 'a b' '' c", "./shebang 'a b' '' c", "./empty", "./empty a", "./no_permission",
        "./nowhere", "./bin", "in_path", "in_path 'a b' ''", "empty_in_path", "no_permission_in_path", "nowhere",
        "./no_shebang/below", "/etc/passwd", "/bin/sh -c 'echo \"$0\" \"$@\"' name a"}) {
    // env(1) calls execvp(), and exits with 126 or 127 where that fails.
    const auto bare = Script(absl::StrCat("exec /usr/bin/env ", command));
    for (const Words& mode : modes_) {
      EXPECT_EQ(RunUnder(mode, command), bare) << absl::StrJoin(mode, " ") << ": " << command;
    }
  }
}

TEST_F(ExecutionTest, EachModePassesInheritedAttributes) {
  const std::string command = absl::StrCat(ProgramPath("tests/runners/signal_probe"), " attributes 'a b'");
  const std::string python = "/usr/bin/python3 -c 'import os,signal,sys; ";
  for (const std::string& before :
       {std::string("umask 027; ulimit -c 0; ulimit -s 4096; cd bin; exec 5<in_path 9>&1;"), std::string("exec 0<&-;"),
        std::string("exec 0<&- 2>&-;"), std::string("trap \"\" HUP INT QUIT TERM USR1 CHLD PIPE TSTP;"),
        absl::StrCat("exec ", python,
                     "signal.pthread_sigmask(signal.SIG_BLOCK, [1, 2, 15, 17, 40, 64]); signal.signal(17, "
                     "signal.SIG_IGN); os.nice(3); os.execvp(sys.argv[1], sys.argv[1:])'")}) {
    // The python prefix executes the words that follow.
    const bool prefix = absl::StrContains(before, python);
    const auto run = [&](const std::string& words) {
      return Script(absl::StrCat(before, prefix ? " " : " exec ", words));
    };
    const auto [bare, code] = run(command);
    EXPECT_EQ(code, 7) << bare;
    for (const Words& mode : modes_) {
      const auto [said, its_code] =
          run(absl::StrCat(ProgramPath("client/cli/berth"), " ", absl::StrJoin(mode, " "), " -- ", command));
      EXPECT_EQ(its_code, 7);
      Words lines;
      int fds = 0;
      bool named = false;
      for (const absl::string_view line : absl::StrSplit(said, '\n')) {
        const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
        int fd = 0;
        if (words[0] == "fd" && absl::SimpleAtoi(words[1], &fd) && fd >= kSessionFds) {
          ++fds;
        } else if (absl::StartsWith(line, "BERTH_SESSION=")) {
          named = true;
        } else {
          lines.emplace_back(line);
        }
      }
      EXPECT_EQ(absl::StrJoin(lines, "\n"), bare) << absl::StrJoin(mode, " ") << " after " << before;
      EXPECT_EQ(fds, 2);
      EXPECT_TRUE(named);
    }
  }
}

}  // namespace
}  // namespace berth::testing
