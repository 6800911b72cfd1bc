// The exit codes of `berth run` and `berth ctest-run`, the status that they write, and how test harnesses read both.

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;
using Lines = std::map<std::string, std::string>;

constexpr int kChosen = 42;

enum class Node { kFree, kBusy, kNoDaemon, kDenied };

// The outcome of a command line.
struct Row {
  const char* name;
  // The words between the verb and the end of the command line.
  Words words;
  int code;
  // The lines of the status, except "exit".
  Lines status;
  Node node = Node::kFree;
};

Lines NotRun(const std::string& reason) { return {{"ran", "no"}, {"reason", reason}}; }
Lines Ran(int code) { return {{"ran", "yes"}, {"code", absl::StrCat(code)}, {"permit", "held"}}; }

std::vector<Row> RanRows() {
  std::vector<Row> rows;
  // Berth's own codes and those of harnesses pass through like all others.
  for (const int code : {0, 1, 64, 69, 75, 77, 79, 99, 124, 125, 126, 127, 255}) {
    rows.push_back({"exits", {"--", "/bin/sh", "-c", absl::StrCat("exit ", code)}, code, Ran(code)});
  }
  rows.push_back({"dies",
                  {"--", "/bin/sh", "-c", "kill -TERM $$"},
                  128 + SIGTERM,
                  {{"ran", "yes"}, {"signal", "15"}, {"permit", "held"}}});
  rows.push_back({"tree", {"--until=tree", "--", "/bin/sh", "-c", "exit 3"}, 3, Ran(3)});
  rows.push_back({"becomes", {"--exec", "--", "/bin/sh", "-c", "exit 3"}, 3, {{"ran", "exec"}}});
  return rows;
}

std::vector<Row> NotRunRows() {
  return {{"timed out", {"--timeout", "0.1", "--", "/bin/true"}, 124, NotRun("timed-out"), Node::kBusy},
          {"not free", {"--no-wait", "--", "/bin/true"}, 75, NotRun("not-free"), Node::kBusy},
          {"no daemon", {"--", "/bin/true"}, 69, NotRun("unreachable"), Node::kNoDaemon},
          {"denied", {"--", "/bin/true"}, 69, NotRun("denied"), Node::kDenied},
          {"wrong amount", {"--mem", "plenty", "--", "/bin/true"}, 64, NotRun("usage")},
          {"wrong option", {"--no-such-option", "--", "/bin/true"}, 64, NotRun("usage")},
          {"no command", {}, 64, NotRun("usage")},
          {"no such command", {"--", "no-such-command-anywhere"}, 127, NotRun("not-found")},
          {"no command by exec", {"--exec", "--", "no-such-command-anywhere"}, 127, NotRun("not-found")},
          {"not executable", {"--", "/etc/passwd"}, 126, NotRun("not-executable")},
          {"not executable by exec", {"--exec", "--", "/etc/passwd"}, 126, NotRun("not-executable")},
          {"no such pool", {"--pool", "nowhere", "--", "/bin/true"}, 125, NotRun("failed")},
          {"more than the cap", {"--permits", "2", "--", "/bin/true"}, 125, NotRun("failed")}};
}

class ExitCodesTest : public ::testing::Test {
 protected:
  ExitCodesTest()
      : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}), folder_(daemon_.folder() + "/../codes") {
    fs::create_directory(folder_);
    GiveToClients(folder_);
  }

  void TearDown() override { daemon_.ExpectAccountsBack(); }

  Subprocess Start(Words argv, const std::string& folder) {
    return Subprocess::Start({.argv = std::move(argv),
                              .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                                              absl::StrCat("BERTH_FOLDER=", folder), "BERTH_SESSION",
                                              "CTEST_RESOURCE_GROUP_COUNT", "GIT_DIR"}});
  }
  Subprocess Start(Words argv) { return Start(std::move(argv), daemon_.folder()); }

  // Runs a script with stderr redirected to stdout; its output is in said_.
  int Script(const std::string& script) {
    Subprocess shell = Start({"/bin/sh", "-c", absl::StrCat("exec 2>&1; cd ", folder_, "; ", script)});
    said_ = shell.ReadAll();
    return shell.Wait();
  }

  // Returns the words of a row after its verb, preceded by `more`.
  Words CommandOf(const Row& row, const std::string& verb, const Words& more) {
    std::string script = "exec \"$@\" 2>&1";
    if (row.node == Node::kDenied) {
      // Without its capabilities, root is subject to a file's mode like any other user.
      const bool of_root = IsRoot() && !OtherUser().has_value();
      script = absl::StrCat("berth=$1; shift; exec ",
                            of_root ? "/usr/bin/setpriv --bounding-set=-all --inh-caps=-all -- " : "",
                            "\"$berth\" --admin \"$@\" 2>&1");
    }
    Words argv = {"/bin/sh", "-c", script, "sh", ProgramPath("client/cli/berth")};
    argv.push_back(verb);
    argv.insert(argv.end(), more.begin(), more.end());
    argv.insert(argv.end(), row.words.begin(), row.words.end());
    return argv;
  }

  int Run(const Row& row, const std::string& verb, const Words& more) {
    std::optional<Actor> holder;
    if (row.node == Node::kBusy) holder.emplace(daemon_).Do("acquire p");
    const std::string admin = daemon_.folder() + "/admin.sock";
    if (row.node == Node::kDenied) fs::permissions(admin, fs::perms::none);
    Subprocess command = Start(CommandOf(row, verb, more), row.node == Node::kNoDaemon ? "/nowhere" : daemon_.folder());
    said_ = command.ReadAll();
    const int code = command.Wait();
    if (row.node == Node::kDenied) fs::permissions(admin, fs::perms::owner_all);
    if (holder.has_value()) holder->Quit();
    return code;
  }

  std::string StatusPath() const { return folder_ + "/status"; }
  void WriteOldStatus() const {
    fs::remove(StatusPath());
    std::ofstream(StatusPath()) << "ran=yes\ncode=0\npermit=held\nexit=0\n";
    GiveToClients(StatusPath());
  }
  // Returns the status, in which the last line of a name counts.
  Lines Status() const {
    Lines lines;
    std::ifstream file(StatusPath());
    for (std::string line; std::getline(file, line);) {
      const size_t end = line.find('=');
      lines[line.substr(0, end)] = line.substr(end + 1);
    }
    return lines;
  }

  TestDaemon daemon_;
  const std::string folder_;
  std::string said_;
};

TEST_F(ExitCodesTest, RanCommandIsReportedByCodeAndStatus) {
  for (const Row& row : RanRows()) {
    for (const char* const verb : {"run", "ctest-run"}) {
      const std::string where = absl::StrCat(verb, " ", absl::StrJoin(row.words, " "));
      EXPECT_EQ(Run(row, verb, {"--exit-code-not-run=42", "--status-file", StatusPath()}), row.code) << where << said_;
      Lines expected = row.status;
      if (expected["ran"] == "yes") expected["exit"] = absl::StrCat(row.code);
      EXPECT_EQ(Status(), expected) << where;
    }
  }
}

TEST_F(ExitCodesTest, CommandNotRunIsReportedByCodeAndStatus) {
  for (const Row& row : NotRunRows()) {
    EXPECT_TRUE(row.code != 0 && row.code != 77 && row.code != 99) << row.name;
    for (const char* const verb : {"run", "ctest-run"}) {
      for (const int chosen : {0, kChosen}) {
        Words more = {"--status-file", StatusPath()};
        if (chosen != 0) more.push_back(absl::StrCat("--exit-code-not-run=", chosen));
        WriteOldStatus();
        const int code = chosen != 0 ? chosen : row.code;
        EXPECT_EQ(Run(row, verb, more), code) << verb << " " << row.name << ": " << said_;
        EXPECT_NE(said_, "") << row.name;
        Lines expected = row.status;
        if (!expected.empty()) expected["exit"] = absl::StrCat(code);
        // `--exec` first writes that it becomes the command.
        EXPECT_EQ(Status(), expected) << verb << " " << row.name;
      }
    }
  }
}

TEST_F(ExitCodesTest, SignalEndingWaitIsReported) {
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
    Actor holder(daemon_);
    holder.Do("acquire p");
    Subprocess run = Start({ProgramPath("client/cli/berth"), "run", "--quiet", "--exit-code-not-run=42",
                            "--status-file", StatusPath(), "--", "/bin/true"});
    ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
    run.Signal(signal);
    EXPECT_EQ(run.Wait(), 128 + signal);
    EXPECT_EQ(Status(), (Lines{{"ran", "no"},
                               {"reason", "interrupted"},
                               {"signal", absl::StrCat(signal)},
                               {"exit", absl::StrCat(128 + signal)}}));
    holder.Quit();
  }
}

TEST_F(ExitCodesTest, EarlierPermitEndIsReported) {
  for (const char* const verb : {"run", "ctest-run"}) {
    SCOPED_TRACE(verb);
    Subprocess run = Start({ProgramPath("client/cli/berth"), verb, "--exit-code-not-run=42", "--status-file",
                            StatusPath(), "--", "/bin/sh", "-c", "echo in; read line; exit 3"});
    EXPECT_EQ(Must(run.ReadLine()), "in");
    const uint64_t permit = Must(daemon_.inspector().ListPermits()).permits(0).id();
    Must(daemon_.inspector().RevokePermit(PermitId(permit)));
    run.CloseInput();
    EXPECT_EQ(run.Wait(), 79);
    EXPECT_EQ(Status(), (Lines{{"ran", "yes"}, {"code", "3"}, {"permit", "ended"}, {"exit", "79"}}));
  }
}

TEST_F(ExitCodesTest, StatusFdIsNotInheritedByCommand) {
  for (const char* const way : {"", "--exec", "--until=tree"}) {
    EXPECT_EQ(Script(absl::StrCat("$BERTH run ", way,
                                  " --status-fd 5 -- sh -c '(: >&5) 2>/dev/null && exit 9; exit 3' 5>status")),
              3)
        << said_;
    EXPECT_EQ(Status()["ran"], *way == '\0' || way[2] == 'u' ? "yes" : "exec");
  }
  EXPECT_EQ(Script("$BERTH run --status-fd 1 -- sh -c 'echo said; exit 3' >status; e=$?; cat status; exit $e"), 3);
  EXPECT_EQ(said_, "said\nran=yes\ncode=3\npermit=held\nexit=3\n");
  // A reader that closes its end does not change the command's exit code.
  EXPECT_EQ(Script("mkfifo pipe; sleep 0 <pipe & exec 5>pipe; wait $!; $BERTH run --status-fd 5 -- sh -c 'exit 3'"), 3)
      << said_;
}

// "code=1" of "code=12" would name another outcome.
TEST_F(ExitCodesTest, PartOfStatusLeavesNoFile) {
  const struct {
    // RLIMIT_FSIZE; the status has 36 bytes.
    int limit;
    bool whole;
  } rows[] = {{0, false}, {14, false}, {35, false}, {36, true}};
  for (const auto& row : rows) {
    for (const char* const verb : {"run", "run --until=tree", "ctest-run"}) {
      SCOPED_TRACE(absl::StrCat(verb, ", ", row.limit));
      WriteOldStatus();
      EXPECT_EQ(Script(absl::StrCat("prlimit --fsize=", row.limit, ":", row.limit, " $BERTH ", verb,
                                    " --status-file status -- sh -c 'exit 12'; e=$?; ls -A; exit $e")),
                12)
          << said_;
      EXPECT_EQ(absl::StrContains(said_, "berth: cannot write the status: write: "), !row.whole) << said_;
      Lines expected;
      if (row.whole) {
        expected = Ran(12);
        expected["exit"] = "12";
      }
      EXPECT_EQ(Status(), expected);
      EXPECT_TRUE(absl::EndsWith(said_, row.whole ? "status\n" : ")\n")) << "a file is left: " << said_;
    }
  }
}

TEST_F(ExitCodesTest, InvalidChoiceIsReportedAndNothingRuns) {
  const std::vector<std::pair<std::string, int>> rows = {
      {"--exit-code-not-run 0", 64},          {"--exit-code-not-run 126", 64}, {"--exit-code-not-run 256", 64},
      {"--exit-code-not-run -1", 64},         {"--exit-code-not-run skip", 64}, {"--status-fd -1", 64},
      {"--status-fd x", 64},                  {"--status-fd 1.5", 64},
      {"--status-fd 1 --status-file f", 64},  {"--status-fd 7", 125},          {"--status-fd 8 8</dev/null", 125},
      {"--status-file /nowhere/status", 125}, {"--status-file .", 125}};
  for (const auto& [words, code] : rows) {
    EXPECT_EQ(Script(absl::StrCat("$BERTH run ", words, " -- echo it ran")), code) << words << said_;
    EXPECT_NE(said_, "") << words;
    EXPECT_FALSE(absl::StrContains(said_, "it ran")) << words;
    EXPECT_LT(said_.size(), 300u) << words;
  }
  Script("$BERTH run --exit-code-not-run 0 -- true");
  EXPECT_TRUE(absl::StrContains(said_, "\"0\" is not an exit code from 1 to 125")) << said_;
  EXPECT_EQ(Script("$BERTH run --exit-code-not-run 42 --status-fd 7 -- true"), 42) << said_;
}

TEST_F(ExitCodesTest, AcquireReportsReasonWithoutPermit) {
  const auto reason = [this](const std::string& words) {
    return nlohmann::json::parse((Script(absl::StrCat("exec $BERTH --json ", words, " 2>/dev/null")), said_))["reason"];
  };
  EXPECT_EQ(reason("--folder /nowhere acquire"), "unreachable");
  EXPECT_EQ(reason("acquire --permits 2"), "failed");
  EXPECT_EQ(reason("acquire --mem plenty"), "usage");
  Actor holder(daemon_);
  holder.Do("acquire p");
  EXPECT_EQ(reason("acquire --no-wait"), "not-free");
  EXPECT_EQ(reason("acquire --timeout 0.1"), "timed-out");
  holder.Quit();
}

// The status of an earlier run would be read as that of the command line.
TEST_F(ExitCodesTest, WrongCommandLineReplacesOldStatus) {
  const struct {
    const char* words;
    int code = 64;
  } rows[] = {{"run --no-such-option --status-file status -- true"},
              {"run --no-such-option 5 --status-file status -- true"},
              {"run --no-such-option 5 --status-file status true"},
              {"run --no-such-option=5 --status-file=status true"},
              {"run --label --status-fd --priority 11 --status-file status -- true"},
              {"run --priority 11 --status-file status -- true"},
              {"run --status-file status --priority 11 -- true"},
              {"run --status-file status --status-fd 1 -- true"},
              {"run --status-file status --status-file status -- true"},
              {"run --status-file status"},
              {"run --status-file status --exec=maybe -- true"},
              {"run --exit-code-not-run 0 --status-file status -- true"},
              {"run --no-such-option --exit-code-not-run 42 --status-file status -- true", 42},
              {"run --status-file status --exit-code-not-run=42 --no-such-option -- true", 42},
              {"--no-such-option run --status-file status -- true"},
              {"--no-such-option 5 run --status-file status -- true"},
              {"ctest-run --no-such-option --status-file status -- true"},
              {"no-such-verb --status-file status -- true"}};
  for (const auto& row : rows) {
    WriteOldStatus();
    EXPECT_EQ(Script(absl::StrCat("exec $BERTH ", row.words)), row.code) << row.words << said_;
    Lines expected = NotRun("usage");
    expected["exit"] = absl::StrCat(row.code);
    EXPECT_EQ(Status(), expected) << row.words;
    // As an fd, with the mistake before or after it.
    std::string by_fd = row.words;
    const size_t option = by_fd.find("--status-file");
    if (by_fd.find("--status-f", option + 1) != std::string::npos) continue;
    by_fd.replace(option, absl::string_view("--status-file status").size(), "--status-fd 5");
    WriteOldStatus();
    EXPECT_EQ(Script(absl::StrCat("exec $BERTH ", by_fd, " 5>status")), row.code) << by_fd << said_;
    // Words of a program might be meant, whose fd stays.
    const bool certain = by_fd != "run --no-such-option 5 --status-fd 5 true";
    EXPECT_EQ(Status(), certain ? expected : Lines()) << by_fd;
  }
}

TEST_F(ExitCodesTest, WrongCommandLineLeavesFilesOfProgram) {
  for (const char* const words : {"run --no-such-option tool --status-file status", "run tool --status-file status --",
                                  "run --priority 11 tool --status-file status",
                                  "run --no-wait=5 -- --status-file status",
                                  "status --no-such-option -- --status-file status"}) {
    fs::remove(StatusPath());
    std::ofstream(StatusPath()) << "of=another\n";
    EXPECT_NE(Script(absl::StrCat("exec $BERTH ", words)), 0) << words;
    EXPECT_EQ(Status(), (Lines{{"of", "another"}})) << words << said_;
  }
}

// Harnesses read a command that did not run as a failure; with the option, `git bisect` skips it.
TEST_F(ExitCodesTest, HarnessesReadDocumentedExitCodes) {
  Script("mkdir tests; printf '%s\\n' 'cmake_minimum_required(VERSION 3.16)' 'project(t NONE)' 'enable_testing()' "
         "'foreach(code 77 99)' 'add_test(NAME t${code} COMMAND $ENV{BERTH} --folder /nowhere run -- true)' "
         "'set_tests_properties(t${code} PROPERTIES SKIP_RETURN_CODE ${code})' 'endforeach()' >tests/CMakeLists.txt; "
         "cmake -S tests -B build >/dev/null && ctest --test-dir build");
  EXPECT_TRUE(absl::StrContains(said_, "0% tests passed, 2 tests failed")) << said_;
  EXPECT_EQ(Script("printf 'all:\\n\\t$(BERTH) --folder /nowhere run -- true\\n' >Makefile; make >/dev/null 2>&1"), 2);
  EXPECT_EQ(Script("echo word | xargs $BERTH --folder /nowhere run -- true 2>/dev/null"), 123);

  Actor holder(daemon_);
  holder.Do("acquire p");
  const std::string bisect =
      "rm -rf r; git init -q r && cd r && git config user.name t && git config user.email t@t && for i in 1 2 3 4; do "
      "git commit -q --allow-empty -m $i; done; git bisect start HEAD HEAD~3 >/dev/null; "
      "git bisect run $BERTH run --quiet --no-wait $CHOICE -- true";
  Script(absl::StrCat("CHOICE=; ", bisect));
  EXPECT_TRUE(absl::StrContains(said_, "is the first bad commit")) << "without the option: " << said_;
  EXPECT_NE(Script(absl::StrCat("CHOICE='--exit-code-not-run 125'; ", bisect)), 0);
  EXPECT_TRUE(absl::StrContains(said_, "only 'skip'ped commits left")) << said_;
  holder.Quit();
}

}  // namespace
}  // namespace berth::testing
