// `berth run` beyond the cases of command_test.cc: its requests, its command's environment, and how long it holds.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "berth/v1/permit.pb.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Releases the inherited session, as a runner does that closes unknown fds.
constexpr char kLetGo[] =
    "IFS=, read lifeline credentials rest <<<$BERTH_SESSION; exec {lifeline}>&- {credentials}>&-; ";

class RunTest : public ::testing::Test {
 protected:
  explicit RunTest(int cap = 1, const std::vector<std::string>& flags = {})
      : daemon_({.flags = flags, .environment = {absl::StrCat("BERTH_GPU_TEST_CONCURRENCY=", cap)}}) {}

  void TearDown() override { daemon_.ExpectAccountsBack(); }

  Subprocess StartAs(std::vector<std::string> argv, std::vector<std::string> environment = {}) {
    environment.push_back(absl::StrCat("BERTH_FOLDER=", daemon_.folder()));
    environment.push_back("BERTH_SESSION");
    return Subprocess::Start({.argv = std::move(argv), .environment = std::move(environment)});
  }

  // Starts `berth run`, with stderr redirected to stdout.
  Subprocess Start(const std::vector<std::string>& words, const std::vector<std::string>& environment = {}) {
    std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$0\" run \"$@\" 2>&1",
                                     ProgramPath("client/cli/berth")};
    argv.insert(argv.end(), words.begin(), words.end());
    return StartAs(argv, environment);
  }

  int Run(const std::vector<std::string>& words, const std::vector<std::string>& environment = {}) {
    Subprocess command = Start(words, environment);
    said_ = command.ReadAll();
    return command.Wait();
  }

  bool PermitsBecome(uint64_t count) {
    return daemon_.AccountsBecome([count](const Accounts& accounts) { return accounts.permits == count; });
  }

  TestDaemon daemon_;
  // Output of the last Run().
  std::string said_;
};

class RunWithCapFourTest : public RunTest {
 protected:
  RunWithCapFourTest() : RunTest(4) {}
};

TEST_F(RunWithCapFourTest, ExclusiveRunIsAlone) {
  Actor other(daemon_);
  other.Do("acquire p");
  EXPECT_EQ(Run({"--exclusive", "--no-wait", "--", "/bin/true"}), 75);
  other.Do("release p");
  Subprocess alone = Start({"--exclusive", "--", "/bin/sh", "-c", "echo in; read line"});
  EXPECT_EQ(Must(alone.ReadLine()), "in");
  EXPECT_TRUE(Refused(other.Ask("acquire p try"), Reason::kNoPermit));
  alone.CloseInput();
  alone.Wait();
  other.Do("acquire p");
  other.Quit();
}

TEST_F(RunTest, RunOfHigherPriorityIsServedFirst) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  Subprocess low = Start({"--quiet", "--priority", "-3", "--label", "low", "--", "/bin/cat"});
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  Subprocess high = Start({"--quiet", "--priority=3", "--label", "high", "--", "/bin/cat"});
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 2; }));
  holder.Do("release p");
  high.WriteLine("high runs");
  EXPECT_EQ(Must(high.ReadLine()), "high runs");
  EXPECT_EQ(daemon_.TakeAccounts().waiters, 1u);
  high.CloseInput();
  low.CloseInput();
  EXPECT_EQ(high.Wait(), 0);
  EXPECT_EQ(low.Wait(), 0);
  EXPECT_EQ(Run({"--priority", "11", "--", "/bin/true"}), 64) << said_;
  EXPECT_EQ(Run({"--priority", "high", "--", "/bin/true"}), 64) << said_;
  holder.Quit();
}

TEST_F(RunTest, CommandReceivesItsDevice) {
  EXPECT_EQ(Run({"--gpus", "1", "--", "/bin/sh", "-c", "echo on $BERTH_DEVICE"}), 0);
  EXPECT_EQ(said_, "on HOST-0\n");
  EXPECT_EQ(Run({"--device", "best", "--", "/bin/sh", "-c", "echo on $BERTH_DEVICE"}), 0);
  EXPECT_EQ(said_, "on HOST-0\n");
  EXPECT_EQ(Run({"--device", "HOST-0", "--", "/bin/sh", "-c", "echo on $BERTH_DEVICE"}), 0);
  EXPECT_EQ(said_, "on HOST-0\n");
  EXPECT_EQ(Run({"--device", "0", "--", "/bin/sh", "-c", "echo on $BERTH_DEVICE"}), 0);
  EXPECT_EQ(said_, "on HOST-0\n");
  EXPECT_EQ(Run({"--device", "HOST", "--", "/bin/sh", "-c", "echo on $BERTH_DEVICE"}), 0);
  EXPECT_EQ(said_, "on HOST-0\n");
  EXPECT_EQ(Run({"--device", "GPU-of-nobody", "--", "/bin/true"}), 125) << said_;
  EXPECT_TRUE(absl::StrContains(said_, "no device GPU-of-nobody: this node has 0 (HOST-0)")) << said_;
  EXPECT_EQ(Run({"--", "/bin/sh", "-c", "echo on ${BERTH_DEVICE-none}"}), 0);
  EXPECT_EQ(said_, "on none\n") << "none was asked for";
  EXPECT_EQ(Run({"--gpus", "0", "--", "/bin/true"}), 64);
}

class RunOnThreeDevicesTest : public RunTest {
 protected:
  RunOnThreeDevicesTest() : RunTest(4, {"--host-devices=3", "--host-bytes=256MiB"}) {}
};

TEST_F(RunOnThreeDevicesTest, DevicesAreGrantedTogetherOrNotAtAll) {
  Subprocess command =
      Start({"--gpus", "2", "--mem", "8MiB", "--", "/bin/sh", "-c", "echo on $BERTH_DEVICE; read line"});
  const std::vector<std::string> devices = absl::StrSplit(Must(command.ReadLine()).substr(3), ',');
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_NE(devices[0], devices[1]);
  const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits());
  ASSERT_EQ(permits.permits_size(), 2);
  EXPECT_LT(devices[0], devices[1]) << "by their ordinals";
  for (const v1::Permit& permit : permits.permits()) {
    EXPECT_TRUE(absl::c_linear_search(devices, permit.device().uuid())) << permit.device().uuid();
  }
  EXPECT_EQ(permits.permits(1).declared_bytes(), 8u << 20);
  // Two units are free, three are not; a waiter for three holds none.
  EXPECT_EQ(Run({"--gpus", "3", "--no-wait", "--", "/bin/true"}), 75) << said_;
  Subprocess waiting = Start({"--gpus", "3", "--quiet", "--", "/bin/sh", "-c", "echo on $BERTH_DEVICE"});
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters > 0; }));
  EXPECT_EQ(daemon_.TakeAccounts().units, 2u);
  command.CloseInput();
  command.Wait();
  const std::vector<std::string> all = absl::StrSplit(Must(waiting.ReadLine()), ',');
  EXPECT_EQ(all.size(), 3u);
  EXPECT_EQ(waiting.Wait(), 0);
  EXPECT_EQ(Run({"--gpus", "4", "--", "/bin/true"}), 125) << "more than there are: " << said_;
  EXPECT_EQ(Run({"--gpus", "2", "--permits", "3", "--", "/bin/true"}), 125) << "more than the cap: " << said_;
  EXPECT_EQ(Run({"--gpus", "65", "--", "/bin/true"}), 64) << said_;
  EXPECT_EQ(Run({"--gpus", "2", "--device", "HOST-0", "--", "/bin/true"}), 64) << said_;
  // A gang cannot be acquired inside a permit: it would wait for a permit of its own job.
  EXPECT_EQ(Run({"--", ProgramPath("client/cli/berth"), "run", "--gpus", "2", "--", "/bin/true"}), 125)
      << said_;
}

TEST_F(RunWithCapFourTest, BytesAreReservedForCommand) {
  Subprocess command =
      Start({"--mem", "64MiB", "--", "/bin/sh", "-c", "echo on $BERTH_DEVICE; read line; exit 0"});
  EXPECT_EQ(Must(command.ReadLine()), "on HOST-0");
  const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits());
  ASSERT_EQ(permits.permits_size(), 1);
  EXPECT_EQ(permits.permits(0).declared_bytes(), 64u << 20);
  command.CloseInput();
  EXPECT_EQ(command.Wait(), 0);
  EXPECT_EQ(Run({"--mem", "100TiB", "--", "/bin/true"}), 125) << "never: " << said_;
  EXPECT_EQ(Run({"--mem", "plenty", "--", "/bin/true"}), 64) << said_;
  EXPECT_TRUE(absl::StrContains(said_, "\"plenty\" is not an amount of bytes")) << said_;
}

TEST_F(RunTest, WaitReasonIsShownAfterTwoSecondsUnlessQuiet) {
  Actor holder(daemon_);
  holder.Do("acquire p label=busy");
  Subprocess quiet = Start({"--quiet", "--", "/bin/true"});
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  const absl::Time begin = absl::Now();
  Subprocess aloud = Start({"--", "/bin/true"});
  const std::string line = Must(aloud.ReadLine());
  EXPECT_GE(absl::Now() - begin, absl::Seconds(2));
  EXPECT_TRUE(
      absl::StartsWith(line, "berth: waiting for pool gpu-tests: 0 of 1 free, place 2 of 2; held by actor("))
      << line;
  holder.Do("release p");
  EXPECT_EQ(quiet.ReadAll(), "");
  EXPECT_EQ(aloud.ReadAll(), "") << "once only";
  EXPECT_EQ(quiet.Wait(), 0);
  EXPECT_EQ(aloud.Wait(), 0);
  holder.Quit();
}

TEST_F(RunWithCapFourTest, EnvironmentOnlyLowersCap) {
  struct Row {
    std::vector<std::string> environment;
    int limit;
  };
  const std::string alias = "REALIZAR_GPU_TEST_CONCURRENCY=";
  const std::string own = "BERTH_GPU_TEST_CONCURRENCY=";
  const std::vector<Row> rows = {
      {{}, 4},
      {{alias + "1"}, 1},
      {{alias + "3"}, 3},
      {{alias + " 3\t"}, 3},
      {{alias + "+3"}, 3},
      {{alias + "0"}, 1},
      {{alias}, 2},
      {{alias + "-3"}, 2},
      {{alias + "three"}, 2},
      {{alias + "3.5"}, 2},
      {{alias + "18446744073709551616"}, 2},
      // The variable cannot raise the limit.
      {{alias + "99"}, 4},
      // The first variable that is set counts, whether it parses or not.
      {{own + "3", alias + "1"}, 3},
      {{own + "many", alias + "1"}, 2},
  };
  Actor holder(daemon_);
  for (int out = 0; out <= 4; ++out) {
    for (const Row& row : rows) {
      std::vector<std::string> environment = {"BERTH_GPU_TEST_CONCURRENCY", "REALIZAR_GPU_TEST_CONCURRENCY"};
      for (const std::string& entry : row.environment) {
        std::erase(environment, std::string(entry, 0, entry.find('=')));
        environment.push_back(entry);
      }
      EXPECT_EQ(Run({"--no-wait", "--", "/bin/true"}, environment), out < row.limit ? 0 : 75)
          << out << " out, " << (row.environment.empty() ? "nothing set" : row.environment.back()) << ": "
          << said_;
    }
    if (out < 4) holder.Do(absl::StrCat("acquire p", out, " key=k", out));
  }
  // The variable concerns only gpu-tests, and only the process's own requests.
  holder.Quit();
}

// The sockets are on this machine: no proxy of the environment is used for them.
TEST_F(RunTest, ProxiesOfEnvironmentChangeNothing) {
  const std::string berth = ProgramPath("client/cli/berth");
  for (const std::string name : {"http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY",
                                 "GRPC_PROXY", "ALL_PROXY"}) {
    SCOPED_TRACE(name);
    // No process listens on port 9, and a proxy that is used is named in an error.
    const std::vector<std::string> environment = {name + "=http://127.0.0.1:9", "no_proxy", "NO_PROXY"};
    EXPECT_EQ(Run({"--", "/bin/sh", "-c", absl::StrCat("echo $", name)}, environment), 0);
    EXPECT_EQ(said_, "http://127.0.0.1:9\n");
    EXPECT_EQ(Run({"--exec", "--", berth, "run", "--", berth, "status"}, environment), 0) << said_;
    Actor actor(daemon_, {.environment = environment});
    EXPECT_TRUE(Ok(actor.Ask("allocate b 4096")));
    actor.Quit();
  }
}

// Two targets of an inner make meet, which needs the outer make's second slot.
TEST_F(RunTest, JobserverOfMakeWorksInside) {
  if (::access("/usr/bin/make", X_OK) != 0) GTEST_SKIP() << "needs /usr/bin/make";
  const std::filesystem::path folder = daemon_.folder() + "/../make";
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "inner") << "all: one two\n\t@echo flags $(MAKEFLAGS)\n"
                                  << "one:\n\t@timeout 20 sh -c 'echo met >fifo'\n"
                                  << "two:\n\t@timeout 20 sh -c 'read word <fifo; echo $$word'\n";
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  GiveToClients(folder);
  for (const char* const mode : {"", "--until=tree", "--exec"}) {
    SCOPED_TRACE(mode);
    std::ofstream(folder / "outer") << "all:\n\t+@" << ProgramPath("client/cli/berth") << " run " << mode
                                    << " -- $(MAKE) -f inner\n";
    GiveToClients(folder);
    Subprocess make = StartAs({"/bin/sh", "-c", absl::StrCat("cd ", folder.string(), "; exec make -j2 -f outer 2>&1")},
                              {"MAKEFLAGS", "MAKELEVEL"});
    const std::string said = make.ReadAll();
    EXPECT_EQ(make.Wait(), 0) << said;
    EXPECT_TRUE(absl::StrContains(said, "met\n")) << said;
    EXPECT_TRUE(absl::StrContains(said, "--jobserver-")) << said;
    EXPECT_FALSE(absl::StrContains(said, "jobserver unavailable")) << said;
  }
}

// Signals 1 to 28, as a command finds them. (posix_spawn() leaves two of glibc's own signals ignored.)
constexpr char kAskSignals[] = "sed -nE 's/^(Sig(Blk|Ign|Cgt)).*(.{7})$/\\1 \\3/p' /proc/self/status";

TEST_F(RunTest, CommandInheritsOnlySession) {
  const std::vector<std::string> ask_fds = {"/bin/ls", "/proc/self/fd"};
  Subprocess direct = StartAs({"/bin/sh", "-c", kAskSignals});
  const std::string signals = direct.ReadAll();
  EXPECT_EQ(direct.Wait(), 0);
  Subprocess direct_fds = StartAs(ask_fds);
  const std::vector<std::string> fds_before = absl::StrSplit(direct_fds.ReadAll(), '\n', absl::SkipEmpty());
  EXPECT_EQ(direct_fds.Wait(), 0);
  for (const std::vector<std::string>& way :
       std::vector<std::vector<std::string>>{{}, {"--exec"}, {"--cgroup"}}) {
    std::vector<std::string> ask = way;
    ask.insert(ask.end(), {"--", "/bin/sh", "-c", kAskSignals});
    if (Run(ask) == 125 && absl::StrContains(said_, "cgroup")) continue;
    EXPECT_EQ(said_, signals) << way.size();
    ask = way;
    ask.push_back("--");
    ask.insert(ask.end(), ask_fds.begin(), ask_fds.end());
    EXPECT_EQ(Run(ask), 0);
    const std::vector<std::string> fds = absl::StrSplit(said_, '\n', absl::SkipEmpty());
    EXPECT_EQ(fds.size(), fds_before.size() + 2) << said_;
  }
}

TEST_F(RunTest, RevocationIsReportedAndSignalSent) {
  Subprocess run = Start({"--on-revoke=TERM", "--", "/bin/sh", "-c",
                          "trap 'echo told; exit 7' TERM; echo in; while :; do read line; done"});
  EXPECT_EQ(Must(run.ReadLine()), "in");
  const uint64_t permit = Must(daemon_.inspector().ListPermits()).permits(0).id();
  Subprocess revoke =
      StartAs({ProgramPath("client/cli/berth"), "--admin", "permits", "revoke", absl::StrCat(permit)});
  EXPECT_EQ(revoke.Wait(), 0);
  const std::vector<std::string> said = {Must(run.ReadLine()), Must(run.ReadLine())};
  const size_t first = said[0] == "told" ? 0 : 1;
  EXPECT_EQ(said[first], "told");
  EXPECT_TRUE(absl::StartsWith(said[1 - first], "berth: the permit has ended: an operator (uid ")) << said[1 - first];
  EXPECT_EQ(run.Wait(), 79);
}

TEST_F(RunTest, CommandExecutedInPlaceHoldsPermit) {
  Subprocess command = Start({"--exec", "--", "/bin/sh", "-c", "echo $$; read line; exit 7"});
  EXPECT_EQ(Must(command.ReadLine()), absl::StrCat(command.pid()));
  const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits());
  ASSERT_EQ(permits.permits_size(), 1);
  EXPECT_EQ(permits.permits(0).process().pid(), command.pid());
  EXPECT_EQ(Run({"--no-wait", "--", "/bin/true"}), 75);
  command.CloseInput();
  EXPECT_EQ(command.Wait(), 7);
  EXPECT_TRUE(PermitsBecome(0));
  // An acquire inside nests there, too.
  const std::string berth = ProgramPath("client/cli/berth");
  EXPECT_EQ(Run({"--exec", "--", berth, "run", "--no-wait", "--", berth, "run", "--exec", "--no-wait",
                 "/bin/true"}),
            0)
      << said_;
  EXPECT_EQ(Run({"--exec", "--", "no-such-command-anywhere"}), 127);
  EXPECT_EQ(Run({"--exec", "--", ""}), 127);
  EXPECT_TRUE(absl::StrContains(said_, "the empty command name: No such file")) << said_;
  EXPECT_EQ(Run({"--exec", "--", daemon_.folder()}), 126);
  EXPECT_EQ(Run({"--exec", "--until=command", "--", "/bin/true"}), 64);
  EXPECT_TRUE(PermitsBecome(0));
}

TEST_F(RunTest, ExecutedCommandHoldsPermitUntilItsEnd) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    Subprocess command =
        Start({"--exec", "--", "/bin/bash", "-c", absl::StrCat(kLetGo, "echo closed; read line")});
    EXPECT_EQ(Must(command.ReadLine()), "closed");
    // The closed connection has ended the session; the permit stays until the process ends.
    ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.sessions == 2; }));
    EXPECT_EQ(Run({"--no-wait", "--", "/bin/true"}), 75);
    command.Signal(signal);
    EXPECT_EQ(command.Wait(), 128 + signal);
    EXPECT_TRUE(PermitsBecome(0));
  }
}

TEST_F(RunTest, CgroupRunHoldsForDetachedProcess) {
  const std::string fifo = daemon_.folder() + "/../fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string script = absl::StrCat("setsid bash -c '", kLetGo, "exec cat ", fifo,
                                          "' </dev/null >/dev/null 2>&1 & echo started; exit 3");
  for (const bool terminated : {false, true}) {
    Subprocess command = Start({"--cgroup", "--", "/bin/bash", "-c", script});
    const std::string line = Must(command.ReadLine());
    if (absl::StrContains(line, "cgroup")) GTEST_SKIP() << line;
    EXPECT_EQ(line, "started");
    // Opens only once the fifo has a reader.
    UniqueFd end;
    ASSERT_TRUE(Eventually([&] {
      end.reset(::open(fifo.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
      return static_cast<bool>(end);
    }));
    // `run` has seen its command end once only it remains beside that reader.
    EXPECT_EQ(Run({"--no-wait", "--", "/bin/true"}), 75);
    EXPECT_FALSE(command.IsGone());
    if (terminated) {
      command.Signal(SIGTERM);
    } else {
      end.reset();
    }
    // The exit code is the command's own; a later signal was for the remaining processes.
    EXPECT_EQ(command.Wait(), 3);
    EXPECT_EQ(Run({"--no-wait", "--", "/bin/true"}), 0);
  }
}

// A terminal whose other end is the test: text that the test writes is typed.
class TerminalTest : public RunTest {
 protected:
  Subprocess OnATerminal(const std::string& command) {
    // A shell that runs the tests in the background ignores these signals, and the children would inherit that.
    return StartAs({"/usr/bin/env", "--default-signal=INT,QUIT", "/usr/bin/script", "--quiet", "--flush",
                    "--return", "--command", command, "/dev/null"},
                   {absl::StrCat("BERTH=", ProgramPath("client/cli/berth"))});
  }

  // Returns the next line with `text`, without the terminal's line ends; skips echoed lines.
  static std::string LineWith(Subprocess& terminal, absl::string_view text) {
    while (true) {
      const std::string line = Must(terminal.ReadLine(), text);
      if (absl::StrContains(line, text)) return std::string(absl::StripTrailingAsciiWhitespace(line));
    }
  }
};

TEST_F(TerminalTest, TerminalStaysWithCommandInForeground) {
  for (const char* const way : {"", "--exec", "--cgroup"}) {
    Subprocess terminal =
        OnATerminal(absl::StrCat("exec $BERTH run ", way,
                                 " -- sh -c '[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo group $(ps -o "
                                 "pgid= -o tpgid= -p $$) && stty -a >/dev/null && exit 5'"));
    const std::string line = Must(terminal.ReadLine());
    if (absl::StrContains(line, "cgroup")) continue;
    const std::vector<std::string> words =
        absl::StrSplit(absl::StripTrailingAsciiWhitespace(line), ' ', absl::SkipEmpty());
    ASSERT_EQ(words.size(), 3u) << line;
    EXPECT_EQ(words[1], words[2]) << "group, and the terminal's foreground group";
    EXPECT_EQ(terminal.Wait(), 5);
  }
}

TEST_F(TerminalTest, ControlCReachesOnlyCommandOnce) {
  Subprocess terminal = OnATerminal(
      "exec $BERTH run -- sh -c 'trap \"n=x\\$n\" INT; echo ready; read a; read b; echo count=$n; exit 6'");
  LineWith(terminal, "ready");
  terminal.WriteLine("\x03");
  terminal.WriteLine("more");
  terminal.WriteLine("more");
  EXPECT_EQ(LineWith(terminal, "count="), "count=x");
  EXPECT_EQ(terminal.Wait(), 6);
}

TEST_F(TerminalTest, ControlCDuringWaitLeavesNoWaiter) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  Subprocess terminal = OnATerminal("exec $BERTH run --quiet -- true");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  terminal.WriteLine("\x03");
  EXPECT_EQ(terminal.Wait(), 128 + SIGINT);
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 0; }));
  holder.Quit();
}

TEST_F(TerminalTest, ShellStopsAndResumesRun) {
  Subprocess terminal = OnATerminal("exec bash --norc --noprofile -i");
  // The expected text differs from the typed text, because the terminal may echo that.
  terminal.WriteLine("PS1=; $BERTH run -- sed -u 's/^line /sed read /'");
  for (int round = 0; round < 2; ++round) {
    terminal.WriteLine(absl::StrCat("line ", round));
    LineWith(terminal, absl::StrCat("sed read ", round));
    terminal.WriteLine("\x1a");
    LineWith(terminal, "Stopped");
    EXPECT_EQ(daemon_.TakeAccounts().permits, 1u) << "who is stopped has it still";
    terminal.WriteLine("fg");
  }
  terminal.WriteLine("line 2");
  LineWith(terminal, "sed read 2");
  // Ends the input, and returns to the shell.
  terminal.WriteLine("\x04");
  terminal.WriteLine("echo code=$?; exit 9");
  LineWith(terminal, "code=0");
  EXPECT_EQ(terminal.Wait(), 9);
}

}  // namespace
}  // namespace berth::testing
