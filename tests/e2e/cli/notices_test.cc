// Notices of the commands that wrap another command, on every kind of standard error. No notice ends, delays or stops
// the wrapper, changes how its command is started, or decides about a signal to the command.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <berth/ids.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/outputs.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Words = std::vector<std::string>;

constexpr int kPermitEnded = 79;
// Prints the signals that a process blocks and ignores, and those that are pending for it.
constexpr char kPrintSignals[] = "grep -E '^(SigPnd|ShdPnd|SigBlk|SigIgn)' /proc/self/status; exit 7";
// Ends with 5 at SIGUSR1.
constexpr char kAwaitSignal[] = "trap 'kill $!; exit 5' USR1; sleep 600 & echo up; wait";

Words operator+(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// A command with a standard error of its own: the end of a session hangs up its terminal for everybody.
struct Case {
  Output output;
  int flags;
  Subprocess process;
  // The program's text so far.
  std::string read = {};
};

class NoticesTest : public ::testing::Test {
 protected:
  NoticesTest()
      : daemon_({.config = "[pools.one]\ncap = 1\n[pools.wide]\ncap = 200\nhold_warning = \"1s\"\n"}) {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override {
    daemon_.ExpectAccountsBack();
    std::filesystem::remove_all(folder_);
  }

  Subprocess Start(const Words& argv, const Output* output = nullptr) {
    return Subprocess::Start({.argv = output == nullptr ? argv : output->launcher + argv,
                              .environment = {absl::StrCat("BERTH=", Berth()),
                                              absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION",
                                              "BERTH_PERMIT_KEEPER", "CTEST_RESOURCE_GROUP_COUNT"},
                              .error_fd = output == nullptr ? -1 : output->error_fd()});
  }
  std::vector<Output> NewOutputs() { return MakeOutputs(absl::StrCat(folder_, "/", ++folders_)); }
  // Starts the command on each output.
  std::vector<Case> StartOnEach(const Words& argv) {
    std::vector<Case> cases;
    for (Output& output : NewOutputs()) {
      const int flags = ::fcntl(output.fd.get(), F_GETFL);
      Subprocess process = Start(argv, &output);
      cases.push_back({.output = std::move(output), .flags = flags, .process = std::move(process)});
    }
    return cases;
  }
  static void ExpectEnd(Case& one, int code, absl::string_view line) {
    SCOPED_TRACE(one.output.name);
    EXPECT_EQ(one.process.Wait(), code);
    EXPECT_EQ(::fcntl(one.output.fd.get(), F_GETFL), one.flags);
    // Nothing becomes input of a program.
    if (!one.output.takes && !one.output.full) EXPECT_EQ(Drain(one.output), "");
    if (!one.output.takes || line.empty()) return;
    AwaitLine(one, line);
  }
  static void AwaitLine(Case& one, absl::string_view line) {
    EXPECT_TRUE(Eventually([&] {
      one.read += Drain(one.output);
      return absl::StrContains(one.read, line);
    })) << one.read;
  }
  // Waits for the line on every output that takes lines as it is.
  static void AwaitLines(std::vector<std::vector<Case>>& modes, absl::string_view line) {
    for (std::vector<Case>& cases : modes) {
      for (Case& one : cases) {
        if (one.output.takes) AwaitLine(one, line);
      }
    }
  }
  static std::string Berth() { return ProgramPath("client/cli/berth"); }
  // The modes of the wrappers that this machine can test.
  std::vector<Words> Modes() {
    std::vector<Words> modes = {{Berth(), "run"}};
    if (!Soaks()) return modes;
    modes.insert(modes.end(), {{Berth(), "run", "--until=tree"}, {Berth(), "ctest-run"}});
    const Words in_cgroup = {Berth(), "run", "--cgroup"};
    if (Start(in_cgroup + Words{"--", "/bin/true"}).Wait() == 0) modes.push_back(in_cgroup);
    return modes;
  }

  void AwaitOverdue(uint64_t permits) {
    EXPECT_TRUE(Eventually([&] {
      const v1::ListPoolsResponse pools = Must(daemon_.inspector().ListPools());
      for (const v1::Pool& pool : pools.pools()) {
        if (pool.name() == "wide" && pool.overdue() == permits) return true;
      }
      return false;
    }));
  }
  void RevokeAll() {
    const v1::ListPermitsResponse out = Must(daemon_.inspector().ListPermits("wide"));
    for (const v1::Permit& permit : out.permits()) {
      EXPECT_TRUE(Ok(daemon_.inspector().RevokePermit(PermitId(permit.id()))));
    }
  }
  TestDaemon daemon_;
  std::string folder_ = "/tmp/berth-notices-XXXXXX";
  int folders_ = 0;
};

TEST_F(NoticesTest, OverdueAndRevokedNoticesDecideNothing) {
  for (const Words& mode : Modes()) {
    SCOPED_TRACE(mode.back());
    std::vector<Case> cases =
        StartOnEach(mode + Words{"--pool", "wide", "--on-revoke", "USR1", "--", "/bin/sh", "-c", kAwaitSignal});
    for (Case& one : cases) EXPECT_EQ(Must(one.process.ReadLine(), one.output.name), "up");
    AwaitOverdue(cases.size());
    RevokeAll();
    for (Case& one : cases) ExpectEnd(one, kPermitEnded, "the permit is overdue");
  }
}

TEST_F(NoticesTest, CommandAfterWaitNoticeStartsAsWithoutWrapper) {
  const Words signals = {"/bin/sh", "-c", kPrintSignals};
  std::vector<Case> bare = StartOnEach(signals);
  std::vector<std::string> expected;
  for (Case& one : bare) expected.push_back(one.process.ReadAll());
  std::vector<Words> modes = Modes();
  modes.push_back({Berth(), "run", "--exec"});
  Subprocess holder =
      Start({Berth(), "run", "--pool", "wide", "--exclusive", "--", "/bin/sh", "-c", "echo up; read line"});
  ASSERT_EQ(Must(holder.ReadLine()), "up");
  std::vector<std::vector<Case>> waiting;
  for (const Words& mode : modes) waiting.push_back(StartOnEach(mode + Words{"--pool", "wide", "--"} + signals));
  // A last waiter, for the outputs on which no notice can be seen.
  const Output last = std::move(MakeOutputs(folder_ + "/last", {"pipe"})[0]);
  Subprocess control = Start({Berth(), "run", "--pool", "wide", "--", "/bin/true"}, &last);
  pollfd notice = {.fd = last.reader.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&notice, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1);
  EXPECT_TRUE(absl::StrContains(Drain(last), "waiting for pool wide"));
  AwaitLines(waiting, "waiting for pool wide");
  holder.CloseInput();
  EXPECT_EQ(control.Wait(), 0);
  for (size_t mode = 0; mode < modes.size(); ++mode) {
    SCOPED_TRACE(modes[mode].back());
    for (size_t i = 0; i < waiting[mode].size(); ++i) {
      Case& one = waiting[mode][i];
      EXPECT_EQ(one.process.ReadAll(), expected[i]) << one.output.name;
      ExpectEnd(one, 7, "waiting for pool wide");
    }
  }
}

TEST_F(NoticesTest, NoticeOfSilentDaemonDecidesNothing) {
  const Words signals = {"/bin/sh", "-c", kPrintSignals};
  std::vector<Case> bare = StartOnEach(signals);
  std::vector<std::string> expected;
  for (Case& one : bare) expected.push_back(one.process.ReadAll());
  std::vector<Words> modes = Modes();
  modes.push_back({Berth(), "run", "--exec"});
  const pid_t broker = daemon_.StopBroker();
  // Waits as the product does.
  const Words impatient = {"/usr/bin/env", "BERTH_TEST_PATIENCE=1"};
  std::vector<std::vector<Case>> waiting;
  for (const Words& mode : modes) {
    waiting.push_back(StartOnEach(impatient + mode + Words{"--pool", "wide", "--"} + signals));
  }
  // A last client, for the outputs on which no notice can be seen.
  const Output last = std::move(MakeOutputs(folder_ + "/last", {"pipe"})[0]);
  Subprocess control = Start(impatient + Words{Berth(), "run", "--pool", "wide", "--", "/bin/true"}, &last);
  pollfd notice = {.fd = last.reader.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&notice, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1);
  EXPECT_TRUE(absl::StrContains(Drain(last), "waiting for the daemon, which has not answered on "));
  AwaitLines(waiting, "waiting for the daemon, which has not answered on ");
  ASSERT_EQ(::kill(broker, SIGCONT), 0);
  EXPECT_EQ(control.Wait(), 0);
  for (size_t mode = 0; mode < modes.size(); ++mode) {
    SCOPED_TRACE(modes[mode].back());
    for (size_t i = 0; i < waiting[mode].size(); ++i) {
      Case& one = waiting[mode][i];
      EXPECT_EQ(one.process.ReadAll(), expected[i]) << one.output.name;
      ExpectEnd(one, 7, "the daemon answers again");
    }
  }
}

// The wrapper holds its permit while it writes the status.
TEST_F(NoticesTest, StatusOnEveryOutputHoldsNothing) {
  std::vector<Case> cases;
  for (const Words& mode : {Words{Berth(), "run"}, Words{Berth(), "run", "--exec"}}) {
    for (Case& one : StartOnEach(mode + Words{"--status-fd", "2", "--pool", "wide", "--", "/bin/sh", "-c", "exit 7"})) {
      cases.push_back(std::move(one));
    }
  }
  for (Case& one : cases) {
    const int mode = one.flags & O_ACCMODE;
    // The end of its session can take a terminal's last line with it.
    ExpectEnd(one, one.output.closed || mode == O_RDONLY ? 125 : 7, one.output.launcher.empty() ? "ran=" : "");
  }
}

TEST_F(NoticesTest, RefusalsKeepTheirExitCodes) {
  Subprocess holder = Start({Berth(), "run", "--pool", "one", "--", "/bin/sh", "-c", "echo up; cat"});
  ASSERT_EQ(Must(holder.ReadLine()), "up");
  std::vector<std::pair<Words, int>> refusals = {{{"run", "--pool", "one", "--no-wait", "--", "/bin/true"}, 75}};
  if (Soaks()) {
    refusals.insert(refusals.end(), {{{"run", "--pool", "one", "--timeout", "0.1", "--", "/bin/true"}, 124},
                                     {{"run", "--pool", "wide", "--", "no-such-command-anywhere"}, 127},
                                     {{"run", "--mem", "plenty", "--", "/bin/true"}, 64},
                                     {{"--folder=/nowhere", "run", "--", "/bin/true"}, 69}});
  }
  for (const auto& [words, code] : refusals) {
    std::vector<Case> cases = StartOnEach(Words{Berth()} + words);
    // The end of its session can take a terminal's last line with it.
    for (Case& one : cases) ExpectEnd(one, code, one.output.launcher.empty() ? "berth: " : "");
  }
  holder.CloseInput();
  EXPECT_EQ(holder.Wait(), 0);
}

// The owner, a shell, has the same standard error.
TEST_F(NoticesTest, HolderProcessSignalsOwnerOnEveryOutput) {
  std::vector<Case> cases = StartOnEach(
      {"/bin/sh", "-c",
       absl::StrCat("eval \"$(\"$BERTH\" acquire --shell --pool wide --on-revoke USR1)\" || exit 9; ", kAwaitSignal)});
  for (Case& one : cases) EXPECT_EQ(Must(one.process.ReadLine(), one.output.name), "up");
  AwaitOverdue(cases.size());
  RevokeAll();
  for (Case& one : cases) ExpectEnd(one, 5, "");
}

}  // namespace
}  // namespace berth::testing
