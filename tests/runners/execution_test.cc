// Execution and inheritance of commands: the same under Berth as without it, except as docs/guides/ci.md lists.

#include <fcntl.h>
#include <stdio.h>
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

  Words ChangeAttributes();
  // The death signal is for the end of the parent, which is another one except with --exec.
  static std::string WithoutDeathSignal(const std::string& attributes) {
    Words lines = absl::StrSplit(attributes, '\n');
    for (std::string& line : lines) {
      if (absl::StartsWith(line, "death signal ")) line = "death signal 0";
    }
    return absl::StrJoin(lines, "\n");
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

// Returns programs that change attributes and then execute the words that follow, without those that cannot here.
Words ExecutionTest::ChangeAttributes() {
  Words changes;
  for (const char* const program :
       {"/usr/bin/setpriv --no-new-privs", "/usr/bin/setpriv --inh-caps=+net_raw --ambient-caps=+net_raw",
        "/usr/bin/setpriv --bounding-set=-sys_time", "/usr/bin/setpriv --pdeathsig=USR1", "/usr/bin/chrt --batch 0",
        "/usr/bin/ionice -c 2 -n 7", "/usr/bin/nice -n 3", "/usr/bin/setarch --addr-no-randomize"}) {
    if (Script(absl::StrCat("exec ", program, " /bin/true")).second == 0) {
      changes.push_back(program);
    } else {
      printf("not possible here: %s\n", program);
    }
  }
  return changes;
}

TEST_F(ExecutionTest, EachModePassesInheritedAttributes) {
  const std::string command = absl::StrCat(ProgramPath("tests/runners/signal_probe"), " attributes 'a b'");
  for (const std::string& before :
       {std::string("umask 027; ulimit -c 0; ulimit -s 4096; cd bin; exec 5<in_path 9>&1; exec"),
        std::string("exec 0<&-; exec"), std::string("exec 0<&- 2>&-; exec"),
        std::string("trap \"\" HUP INT QUIT TERM USR1 CHLD PIPE TSTP; exec"),
        std::string("exec /usr/bin/python3 -c 'import ctypes,os,signal,sys; "
                    // PR_SET_CHILD_SUBREAPER
                    "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); "
                    "signal.pthread_sigmask(signal.SIG_BLOCK, [1, 2, 15, 17, 40, 64]); signal.signal(17, "
                    "signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])'"),
        absl::StrCat("for file in oom_score_adj=321 coredump_filter=0x21 timerslack_ns=77777; do"
                     "  echo ${file#*=} >/proc/$$/${file%=*}; done; exec ",
                     absl::StrJoin(ChangeAttributes(), " "))}) {
    const auto [bare, code] = Script(absl::StrCat(before, " ", command));
    EXPECT_EQ(code, 7) << bare;
    for (const Words& mode : modes_) {
      const auto [said, its_code] = Script(absl::StrCat(before, " ", ProgramPath("client/cli/berth"), " ",
                                                        absl::StrJoin(mode, " "), " -- ", command));
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
      EXPECT_EQ(absl::StrJoin(lines, "\n"), mode.back() == "--exec" ? bare : WithoutDeathSignal(bare))
          << absl::StrJoin(mode, " ") << " after " << before;
      EXPECT_EQ(fds, 2);
      EXPECT_TRUE(named);
    }
  }
}

// The command's terminal, session and foreground are those that it has without a wrapper. A shell starts it without job
// control, as a foreground job, or as a background job.
TEST_F(ExecutionTest, EachModePassesControllingTerminal) {
  const std::string probe = absl::StrCat(ProgramPath("tests/runners/signal_probe"), " terminal");
  const struct {
    const char* name;
    const char* before;
    const char* after;
    bool own_group;
    bool foreground;
  } rows[] = {
      {"no job control", "", "", false, true},
      {"foreground job", "set -m; ", "", true, true},
      {"background job", "set -m; ", " & wait $!", true, false},
  };
  std::vector<std::pair<std::string, std::string>> commands = {{"bare", probe}};
  for (const Words& mode : modes_) {
    const std::string words = absl::StrJoin(mode, " ");
    commands.emplace_back(words, absl::StrCat(ProgramPath("client/cli/berth"), " ", words, " -- ", probe));
  }
  for (const auto& row : rows) {
    for (const auto& [name, command] : commands) {
      SCOPED_TRACE(absl::StrCat(row.name, ", ", name));
      // The session's leader prints its own terminal, session, group and foreground group first.
      const std::string shell = absl::StrCat(probe, "; ", row.before, command, row.after, "; exit $?");
      const auto [said, code] =
          Script(absl::StrCat("SHELL=/bin/sh exec /usr/bin/script --quiet --return --command '", shell,
                              "' /dev/null </dev/null"));
      EXPECT_EQ(code, 7) << said;
      // The shell may report the end of a job, too.
      std::vector<Words> reports;
      for (const absl::string_view line : absl::StrSplit(said, absl::ByAnyChar("\r\n"), absl::SkipEmpty())) {
        Words words = absl::StrSplit(line, ' ');
        int number = 0;
        if (words.size() == 4 && absl::SimpleAtoi(words[0], &number)) reports.push_back(std::move(words));
      }
      ASSERT_EQ(reports.size(), 2u) << said;
      const Words &leader = reports[0], &own = reports[1];
      EXPECT_NE(own[0], "0") << "a terminal";
      EXPECT_EQ(own[0], leader[0]);
      EXPECT_EQ(own[1], leader[1]) << "session";
      EXPECT_EQ(own[2] != leader[2], row.own_group) << said;
      EXPECT_EQ(own[2] == own[3], row.foreground) << said;
    }
  }
}

}  // namespace
}  // namespace berth::testing
