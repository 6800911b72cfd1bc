// Berth's programs as the first process of a container's PID namespace: without its own handler a signal has no effect
// there, and the namespace ends with this process.

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Words = std::vector<std::string>;

class FirstProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!MayUnshare(CLONE_NEWPID) || OtherUser().has_value()) GTEST_SKIP() << "needs the right to make PID namespaces";
  }

  static Subprocess Start(const TestDaemon& daemon, const Words& argv) {
    return Subprocess::Start({.argv = argv,
                              .environment = {absl::StrCat("BERTH=", Berth()),
                                              absl::StrCat("BERTHD=", ProgramPath("daemon/berthd")),
                                              absl::StrCat("BERTH_FOLDER=", daemon.folder()), "BERTH_SESSION",
                                              "BERTH_PERMIT_KEEPER"},
                              .pid_namespace = true});
  }
  static Subprocess StartBerth(const TestDaemon& daemon, Words words) {
    words.insert(words.begin(), Berth());
    return Start(daemon, words);
  }
  static std::string Berth() { return ProgramPath("client/cli/berth"); }
};

TEST_F(FirstProcessTest, WrapperEndsAsItsCommand) {
  TestDaemon daemon;
  struct Row {
    Words words;
    const char* command;
    int code;
  };
  for (const auto& [words, command, code] : std::vector<Row>{{{"run"}, "exit 5", 5},
                                                             {{"run", "--exec"}, "exit 5", 5},
                                                             {{"run"}, "kill -KILL $$", 128 + SIGKILL},
                                                             // The end of the namespace ends what the command left.
                                                             {{"run"}, "sleep 600 & exit 5", 5},
                                                             {{"run", "--until=tree"}, "sleep 600 & exit 5", 5}}) {
    Words argv = words;
    argv.insert(argv.end(), {"--", "/bin/sh", "-c", command});
    EXPECT_EQ(StartBerth(daemon, argv).Wait(), code) << words.back() << ": " << command;
  }
  daemon.ExpectAccountsBack();
}

// The kernel gives the namespace's first process what the command leaves behind, and shows it until it is reaped.
TEST_F(FirstProcessTest, WrapperReapsWhatCommandLeavesBehind) {
  TestDaemon daemon;
  const char* const script =
      "left=$(for i in 1 2 3; do (/bin/sh -c 'until read pid name state parent rest </proc/$$/stat && [ $parent = 1 ];"
      " do :; done' >/dev/null & echo $!); done);"
      "for pid in $left; do while [ -e /proc/$pid ]; do :; done; done; echo reaped";
  std::vector<Words> modes = {{"run"}, {"run", "--until=tree"}, {"ctest-run"}};
  if (StartBerth(daemon, {"run", "--cgroup", "--", "/bin/true"}).Wait() == 0) modes.push_back({"run", "--cgroup"});
  for (const Words& mode : modes) {
    Words words = mode;
    words.insert(words.end(), {"--", "/bin/sh", "-c", script});
    Subprocess runs = StartBerth(daemon, words);
    EXPECT_EQ(Must(runs.ReadLine()), "reaped") << mode.back();
    EXPECT_EQ(runs.Wait(), 0) << mode.back();
  }
  daemon.ExpectAccountsBack();
}

TEST_F(FirstProcessTest, SignalEndsWaitCommandAndView) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  const auto waiters_become = [&](uint64_t count) {
    return daemon.AccountsBecome([count](const Accounts& accounts) { return accounts.waiters == count; });
  };
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    SCOPED_TRACE(signal);
    {
      Actor holder(daemon);
      holder.Do("acquire p");
      for (const Words& words : {Words{"run", "--", "/bin/true"}, Words{"run", "--exec", "--", "/bin/true"}}) {
        Subprocess waits = StartBerth(daemon, words);
        ASSERT_TRUE(waiters_become(1));
        waits.Signal(signal);
        EXPECT_EQ(waits.Wait(), 128 + signal) << words[1];
        ASSERT_TRUE(waiters_become(0));
      }
      holder.Quit();
    }
    Subprocess runs = StartBerth(daemon, {"run", "--", "/bin/sh", "-c",
                                          absl::StrCat("trap 'kill $!; exit 5' ", signal,
                                                       "; sleep 600 & echo up; wait")});
    EXPECT_EQ(Must(runs.ReadLine()), "up");
    runs.Signal(signal);
    EXPECT_EQ(runs.Wait(), 5);
    for (const Words& words : {Words{"devices", "--watch"}, Words{"devices", "--watch", "--json"}}) {
      Subprocess view = StartBerth(daemon, words);
      Must(view.ReadLine());
      view.Signal(signal);
      EXPECT_EQ(view.Wait(), 128 + signal) << words.back();
    }
  }
  daemon.ExpectAccountsBack();
}

TEST_F(FirstProcessTest, ProgramsNameWhatTheyLack) {
  TestDaemon daemon;
  struct Row {
    const char* script;
    const char* error;
  };
  std::vector<Row> rows = {
      {"exec $BERTH acquire --json 2>&1",
       "is outside this PID namespace and cannot be watched: name the owner by --owner"}};
#ifndef BERTH_SANITIZED
  // A sanitizer needs /proc.
  rows.push_back({"mount -t tmpfs none /proc; $BERTH acquire --json 2>&1; exit 1", "needs a mounted /proc: "});
  rows.push_back({"mount -t tmpfs none /proc; $BERTHD --folder=$BERTH_FOLDER/../no-proc --backend=host 2>&1; exit 1",
                  "the daemon needs a mounted /proc: "});
#endif
  for (const auto& [script, error] : rows) {
    Subprocess shell = Start(daemon, {"/bin/sh", "-c", script});
    const std::string said = shell.ReadAll();
    EXPECT_TRUE(absl::StrContains(said, error)) << said;
    EXPECT_NE(shell.Wait(), 0) << script;
  }
  daemon.ExpectAccountsBack();
}

TEST_F(FirstProcessTest, DaemonReloadsReplacesItsProcessesAndStops) {
  std::string parent = "/tmp/berth-first-XXXXXX";
  ASSERT_NE(::mkdtemp(parent.data()), nullptr);
  const std::string folder = parent + "/run";
  {
    Subprocess daemon = Subprocess::Start(
        {.argv = {ProgramPath("daemon/berthd"), absl::StrCat("--folder=", folder), "--backend=host"},
         .environment = {"BERTH_SESSION", "BERTH_STATE"},
         .pid_namespace = true,
         .of_operator = true});
    const auto broker = [&] {
      for (const ChildInfo& child : ChildrenOf(daemon.pid())) {
        if (child.name == "berth-broker") return child.pid;
      }
      return pid_t{0};
    };
    const auto reloads = [&] {
      std::ifstream file(folder + "/state/audit.jsonl");
      const std::string text(std::istreambuf_iterator<char>(file), {});
      return absl::StrContains(text, "\"what\":\"reload\"");
    };
    ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(folder + "/observer.sock"); }));
    daemon.Signal(SIGHUP);
    EXPECT_TRUE(Eventually(reloads));
    const pid_t first = broker();
    ASSERT_GT(first, 0);
    ::kill(first, SIGKILL);
    EXPECT_TRUE(Eventually([&] { return broker() != 0 && broker() != first; }));
    EXPECT_TRUE(Eventually([&] { return StateOf(first) == 0; })) << "a zombie is left";
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(), 0);
  }
  std::filesystem::remove_all(parent);
}

}  // namespace
}  // namespace berth::testing
