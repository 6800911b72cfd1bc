// Closed standard fds: `berth` and its command, for each combination of closed stdin, stdout and stderr.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

// The first fd number of the session.
constexpr int kSessionFds = 960;

// The parameter has a bit for each closed fd.
class StandardFdsTest : public ::testing::TestWithParam<int> {
 protected:
  StandardFdsTest() : folder_(daemon_.folder() + "/../fds") {
    fs::create_directory(folder_);
    std::ofstream(folder_ / "in") << "input\n";
    GiveToClients(folder_);
  }
  void TearDown() override { daemon_.ExpectAccountsBack(); }

  static bool IsClosed(int fd) { return (GetParam() >> fd & 1) != 0; }
  std::string FileOf(int fd) const {
    constexpr const char* kNames[] = {"in", "out", "err"};
    return (fs::canonical(folder_) / kNames[fd]).string();
  }
  std::string Read(int fd) const {
    std::ifstream file(FileOf(fd));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  // Runs a command of a shell with a file as each standard fd that is not closed. Fd 7 is a pipe to the test. Returns
  // the output there, and the exit code.
  std::pair<std::string, int> Run(const Words& words) {
    for (const int fd : {1, 2}) fs::remove(FileOf(fd));
    std::string redirections = absl::StrCat("exec 7>&1 0<", FileOf(0), " 1>", FileOf(1), " 2>", FileOf(2), "; exec");
    for (int fd = 0; fd <= 2; ++fd) {
      if (IsClosed(fd)) absl::StrAppend(&redirections, " ", fd, ">&-");
    }
    Subprocess shell = Subprocess::Start(
        {.argv = {"/bin/sh", "-c",
                  absl::StrCat(redirections, "; exec ", absl::StrJoin(words, " "))},
         .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION",
                         "CTEST_RESOURCE_GROUP_COUNT"}});
    std::string said = shell.ReadAll();
    const int code = shell.Wait();
    return {std::move(said), code};
  }
  Words Berth(Words words) const {
    words.insert(words.begin(), ProgramPath("client/cli/berth"));
    return words;
  }
  std::vector<Words> Modes() {
    std::vector<Words> modes = {{"run"}, {"run", "--until=tree"}, {"run", "--exec"}, {"ctest-run"}};
    if (Run(Berth({"run", "--cgroup", "--", "/bin/true"})).second == 0) modes.push_back({"run", "--cgroup"});
    return modes;
  }

  TestDaemon daemon_;
  const fs::path folder_;
};

INSTANTIATE_TEST_SUITE_P(Closed, StandardFdsTest, ::testing::Range(0, 8), [](const auto& info) {
  std::string name;
  for (int fd = 0; fd <= 2; ++fd) {
    if ((info.param >> fd & 1) != 0) absl::StrAppend(&name, fd == 0 ? "Input" : fd == 1 ? "Output" : "Errors");
  }
  return name.empty() ? "None" : name;
});

TEST_P(StandardFdsTest, CommandSeesFdsAsWithoutWrapper) {
  const std::string probe = ProgramPath("tests/runners/signal_probe");
  const auto [bare, bare_code] = Run({probe, "fds", "7"});
  EXPECT_EQ(bare_code, 7);
  for (const Words& mode : Modes()) {
    SCOPED_TRACE(absl::StrJoin(mode, " "));
    Words words = Berth(mode);
    words.insert(words.end(), {"--", probe, "fds", "7"});
    const auto [said, code] = Run(words);
    EXPECT_EQ(code, 7);
    std::string of_command, of_berth;
    int of_session = 0;
    for (const absl::string_view line : absl::StrSplit(said, '\n', absl::SkipEmpty())) {
      int fd = 0;
      const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
      if (fields[0] == "fd" && absl::SimpleAtoi(fields[1], &fd) && fd >= kSessionFds) {
        ++of_session;
      } else {
        absl::StrAppend(fields[0] == "berth" ? &of_berth : &of_command, line, "\n");
      }
    }
    EXPECT_EQ(of_command, bare);
    EXPECT_EQ(of_session, 2);
    // No socket of Berth's has one of their numbers, either. --exec leaves no process of Berth's.
    std::string harmless;
    for (int fd = 0; fd <= 2; ++fd) {
      absl::StrAppend(&harmless, "berth ", fd, " ", IsClosed(fd) ? "/dev/null" : FileOf(fd), "\n");
    }
    EXPECT_EQ(of_berth, mode.back() == "--exec" ? "" : harmless);
    for (const int fd : {1, 2}) {
      if (!IsClosed(fd)) EXPECT_EQ(Read(fd), "") << fd;
    }
  }
}

TEST_P(StandardFdsTest, ExitCodesAreThoseWithOpenFds) {
  const struct {
    Words words;
    int code;
  } rows[] = {
      {{"--", "/nowhere/command"}, 127},
      {{"--", "/etc/passwd"}, 126},
      {{"--permits", "99", "--", "/bin/true"}, 125},
      {{"--priority", "high", "--", "/bin/true"}, 64},
      {{"--", "/bin/sh", "-c", "'kill -TERM $$'"}, 128 + 15},
  };
  for (const auto& row : rows) {
    for (const Words& mode : Modes()) {
      Words words = Berth(mode);
      words.insert(words.end(), row.words.begin(), row.words.end());
      SCOPED_TRACE(absl::StrJoin(words, " "));
      EXPECT_EQ(Run(words).second, row.code);
      if (!IsClosed(1)) EXPECT_EQ(Read(1), "");
      if (!IsClosed(2)) EXPECT_EQ(absl::StartsWith(Read(2), "berth: "), row.code < 128) << Read(2);
    }
  }
}

TEST_P(StandardFdsTest, VerbFailsOnlyWithoutItsOutput) {
  // Returns the text of a verb that did not fail; empty for one that lacks its output.
  const auto show = [&](const Words& words, int code_without_output) {
    SCOPED_TRACE(absl::StrJoin(words, " "));
    EXPECT_EQ(Run(Berth(words)).second, IsClosed(1) ? code_without_output : 0);
    if (!IsClosed(2)) {
      EXPECT_EQ(Read(2), IsClosed(1) ? "berth: cannot write standard output: Bad file descriptor\n" : "");
    }
    return IsClosed(1) ? "" : Read(1);
  };
  EXPECT_EQ(show({"permits"}, 1).empty(), IsClosed(1));
  const Subprocess owner = Subprocess::Start({.argv = {"/bin/cat"}});
  const std::string acquired = show({"acquire", "--json", "--owner", absl::StrCat(owner.pid())}, 125);
  if (!acquired.empty()) {
    EXPECT_EQ(daemon_.TakeAccounts().permits, 1u);
    const nlohmann::json json = nlohmann::json::parse(acquired);
    for (int fd = 0; fd <= 2; ++fd) {
      std::error_code error;
      const std::string link = absl::StrCat("/proc/", json["keeper"].get<int>(), "/fd/", fd);
      EXPECT_EQ(fs::read_symlink(link, error), "/dev/null") << fd << ": " << error.message();
    }
    owner.Kill();
  }
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
}

}  // namespace
}  // namespace berth::testing
