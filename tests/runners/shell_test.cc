// `berth acquire` and `berth release` in real shells: the leases they hold, and their release however the shell ends.

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Json = nlohmann::json;

constexpr char kAcquire[] = "eval \"$($BERTH acquire --shell)\"; ";
constexpr char kRelease[] = "eval \"$($BERTH release --shell)\"; ";

// A shell that runs the test's commands, line by line.
class ShellTest : public ::testing::TestWithParam<const char*> {
 protected:
  ShellTest() : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}) {}

  void TearDown() override { daemon_.ExpectAccountsBack(); }

  Subprocess Start(std::vector<std::string> argv) {
    return Subprocess::Start({.argv = std::move(argv),
                              .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                                              absl::StrCat("BERTH_FOLDER=", daemon_.folder()),
                                              "BERTH_SESSION", "BERTH_PERMIT_KEEPER", "BERTH_DEVICE"}});
  }
  Subprocess StartShell() { return Start({GetParam(), "-s"}); }
  // Returns a script's output, with stderr; its exit code is in code_.
  std::string Script(const std::string& script) {
    Subprocess shell = Start({GetParam(), "-c", absl::StrCat("exec 2>&1; ", script)});
    std::string said = shell.ReadAll();
    code_ = shell.Wait();
    return said;
  }
  // Sends a line to a shell, and returns the line that the shell prints.
  static std::string RunLine(Subprocess& shell, const std::string& line) {
    shell.WriteLine(line);
    return Must(shell.ReadLine(), line);
  }

  int RunBeside() {
    return Start({ProgramPath("client/cli/berth"), "run", "--no-wait", "--", "/bin/true"}).Wait();
  }

  // Sets a hold limit, so that permits held for a second show as overdue.
  void Warn() {
    Subprocess set = Start({ProgramPath("client/cli/berth"), "--admin", "permits", "set", "gpu-tests", "--hold-warning",
                            "1s"});
    EXPECT_EQ(set.Wait(), 0);
  }
  // Revokes the one granted permit.
  void Revoke() {
    const uint64_t permit = Must(daemon_.inspector().ListPermits()).permits(0).id();
    Subprocess revoke =
        Start({ProgramPath("client/cli/berth"), "--admin", "permits", "revoke", absl::StrCat(permit)});
    EXPECT_EQ(revoke.Wait(), 0);
  }

  bool AccountsBecome(uint64_t permits, uint64_t waiters = 0) {
    return daemon_.AccountsBecome(
        [=](const Accounts& accounts) { return accounts.permits == permits && accounts.waiters == waiters; });
  }

  TestDaemon daemon_;
  int code_ = -1;
};

TEST_P(ShellTest, PermitIsHeldUntilShellEnds) {
  Subprocess shell = StartShell();
  EXPECT_EQ(RunLine(shell, absl::StrCat(kAcquire, "echo $?")), "0");
  EXPECT_EQ(RunBeside(), 75);
  // Any process that the shell starts nests in it.
  EXPECT_EQ(RunLine(shell, "$BERTH run --no-wait -- $BERTH run --no-wait -- echo nested"), "nested");
  EXPECT_EQ(daemon_.TakeAccounts().permits, 1u);
  const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits());
  EXPECT_EQ(permits.permits(0).label(), std::filesystem::path(GetParam()).filename().string());
  EXPECT_EQ(permits.permits(0).process().name(), "berth-holder");
  shell.WriteLine("exit 5");
  EXPECT_EQ(shell.Wait(), 5);
  EXPECT_TRUE(AccountsBecome(0));
}

TEST_P(ShellTest, KilledShellHoldsNothing) {
  for (const int signal : {SIGKILL, SIGTERM, SIGHUP}) {
    Subprocess shell = StartShell();
    EXPECT_EQ(RunLine(shell, absl::StrCat(kAcquire, "echo $?")), "0");
    EXPECT_EQ(RunBeside(), 75);
    shell.Signal(signal);
    EXPECT_EQ(shell.Wait(), 128 + signal);
    EXPECT_TRUE(AccountsBecome(0));
  }
}

TEST_P(ShellTest, ReleaseRestoresShellVariables) {
  Subprocess shell = StartShell();
  const std::string before =
      RunLine(shell, "export BERTH_DEVICE=\"mine'\"; env | grep ^BERTH | sort | tr '\\n' ' '; echo");
  EXPECT_EQ(RunLine(shell, "eval \"$($BERTH acquire --shell --gpus 1)\"; echo $?:$BERTH_DEVICE"), "0:HOST-0");
  EXPECT_EQ(daemon_.TakeAccounts().permits, 1u);
  EXPECT_EQ(RunLine(shell, absl::StrCat(kRelease, "echo $?")), "0");
  // The permit is back once `berth release` has ended.
  EXPECT_EQ(daemon_.TakeAccounts().permits, 0u);
  EXPECT_EQ(RunLine(shell, "env | grep ^BERTH | sort | tr '\\n' ' '; echo"), before);
  EXPECT_EQ(RunLine(shell, "$BERTH run --no-wait -- echo free"), "free");
  shell.CloseInput();
  shell.Wait();
}

TEST_P(ShellTest, NestedAcquiresAreReleasedInTurn) {
  Subprocess shell = StartShell();
  EXPECT_EQ(RunLine(shell, absl::StrCat(kAcquire, kAcquire, "echo $?")), "0");
  EXPECT_EQ(RunLine(shell, absl::StrCat(kRelease, "echo $?")), "0");
  EXPECT_EQ(RunBeside(), 75);
  EXPECT_EQ(RunLine(shell, absl::StrCat(kRelease, "echo $?")), "0");
  EXPECT_EQ(RunBeside(), 0);
  EXPECT_EQ(RunLine(shell, absl::StrCat("exec 2>&1; ", kRelease, "echo $?")),
            "berth: no permit of `berth acquire` in this environment: BERTH_PERMIT_KEEPER is not set");
  EXPECT_EQ(Must(shell.ReadLine()), "1");
  shell.CloseInput();
  shell.Wait();
}

TEST_P(ShellTest, AcquireInsideRunNests) {
  Subprocess run = Start({ProgramPath("client/cli/berth"), "run", "--", GetParam(), "-s"});
  const std::string session = RunLine(run, "echo $BERTH_SESSION");
  EXPECT_EQ(RunLine(run, absl::StrCat(kAcquire, "echo $?:$BERTH_SESSION")), "0:" + session);
  EXPECT_EQ(RunLine(run, absl::StrCat(kRelease, "echo $?:$BERTH_SESSION")), "0:" + session);
  EXPECT_EQ(RunLine(run, "$BERTH run --no-wait -- echo still in"), "still in");
  EXPECT_EQ(RunBeside(), 75);
  run.CloseInput();
  run.Wait();
}

TEST_P(ShellTest, EvalReturnsStatusOfAcquire) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  EXPECT_EQ(
      Script("eval \"$($BERTH acquire --shell --no-wait --quiet 2>/dev/null)\"; echo $?:$BERTH_SESSION"),
      "75:\n");
  EXPECT_EQ(Script("eval \"$($BERTH acquire --shell --timeout 0.1 2>/dev/null)\"; echo $?"), "124\n");
  EXPECT_EQ(Script("eval \"$($BERTH --folder /nowhere acquire --shell 2>/dev/null)\"; echo $?"), "69\n");
  EXPECT_EQ(Script("eval \"$($BERTH acquire --shell --mem plenty 2>/dev/null)\"; echo $?"), "64\n");
  EXPECT_EQ(Script("eval \"$($BERTH acquire --shell --permits 2 2>/dev/null)\"; echo $?"), "125\n");
  // Before the command line is understood, or before it is read at all.
  for (const std::string wrong : {"acquire --shell --priority 50", "acquire --shell --no-such-option",
                                  "acquire --shell word", "acquire --no-wait --shell --", "no-such-verb --shell",
                                  "release --shell word"}) {
    const std::string expected = wrong == "acquire --no-wait --shell --" ? "75\n" : "64\n";
    EXPECT_EQ(Script(absl::StrCat("eval \"$($BERTH ", wrong, " 2>/dev/null)\"; echo $?")), expected) << wrong;
  }
  EXPECT_EQ(Script("eval \"$(ulimit -s 64; $BERTH acquire --shell 2>/dev/null)\"; echo $?"), "125\n");
  // The loader of programs fails under the lowest limits, without Berth's text.
  EXPECT_EQ(Script("exec 2>/dev/null; errors=$(mktemp); for kib in 8 16 24 32 48 64 96 128 192 256 384 512; do "
                   "eval \"$(ulimit -v ${kib}000; $BERTH acquire --shell --no-wait 2>$errors)\"; code=$?; "
                   "grep -q '^berth: ' $errors && echo $code; done | sort -u; rm $errors"),
            "125\n75\n");
  const std::string why = Script("set -e; eval \"$($BERTH acquire --shell --no-wait)\"; echo went on");
  EXPECT_TRUE(absl::StartsWith(why, "berth: permit pool gpu-tests: asked 1, 1 of 1 out; held by actor["))
      << why;
  EXPECT_EQ(why.find('\n'), why.size() - 1) << "once: " << why;
  EXPECT_EQ(code_, 75);
  const std::string said = Script("$BERTH acquire");
  EXPECT_TRUE(absl::StrContains(said, "expected one of --shell")) << said;
  EXPECT_EQ(code_, 64);
  holder.Quit();
}

// The command's output has no reader, and a write to it raises no signal.
TEST_P(ShellTest, AcquireWithoutReaderFailsAndHoldsNothing) {
  EXPECT_EQ(Script("fifo=$(mktemp -u); mkfifo $fifo; exec 4<>$fifo 5>$fifo 4<&-; rm $fifo; trap '' PIPE; "
                   "$BERTH acquire --shell >&5; echo $?"),
            "berth: cannot write standard output: Broken pipe\n125\n");
  EXPECT_TRUE(AccountsBecome(0));
}

TEST_P(ShellTest, AcquireWithoutNullDeviceNamesIt) {
  if (OtherUser().has_value() || !MayUnshare(CLONE_NEWNS)) GTEST_SKIP() << "needs a mount namespace";
  const std::string without = "unshare --mount /bin/sh -c 'mount -t tmpfs none /dev && exec $BERTH ";
  EXPECT_EQ(Script(absl::StrCat(without, "acquire --shell --owner $0' $$; echo $?")),
            "berth: /dev/null: No such file or directory\n(exit 125)\n125\n");
  EXPECT_TRUE(AccountsBecome(0));
  // A closed standard fd is not needed, and its number goes to no socket.
  EXPECT_EQ(Script(absl::StrCat(without, "run -- readlink /proc/$$/fd/0 <&-'")), "/\n");
}

// Without quotes, the shell evaluates the lines as one.
TEST_P(ShellTest, EvalWithoutQuotesAcquiresAndReleases) {
  EXPECT_EQ(Script("eval $($BERTH acquire --shell); echo $?; $BERTH run --no-wait -- echo nested; "
                   "eval $($BERTH release --shell); echo $?:$BERTH_SESSION"),
            "0\nnested\n0:\n");
  EXPECT_EQ(Script("eval $($BERTH release --shell 2>/dev/null); echo $?"), "1\n");
}

// Only the holder process knows the whole environment before the permit.
TEST_P(ShellTest, ReleaseWithoutHolderKeepsFolder) {
  Subprocess shell = StartShell();
  const std::string show = "echo $?:$BERTH_FOLDER:$BERTH_SESSION";
  EXPECT_EQ(RunLine(shell, absl::StrCat(kAcquire, "echo $?")), "0");
  EXPECT_EQ(RunLine(shell, "kill -9 ${BERTH_PERMIT_KEEPER%% *}; echo $?"), "0");
  EXPECT_TRUE(AccountsBecome(0));
  EXPECT_EQ(RunLine(shell, absl::StrCat("eval \"$($BERTH release --shell 2>/dev/null)\"; ", show)),
            absl::StrCat("1:", daemon_.folder(), ":"));
  EXPECT_EQ(RunLine(shell, "$BERTH run --no-wait -- echo served"), "served");
  shell.CloseInput();
  shell.Wait();
}

TEST_P(ShellTest, ReleaseByAnotherUserNamesUserOfHolder) {
  if (!OtherUser().has_value()) GTEST_SKIP() << "needs clients of another user";
  Subprocess shell = StartShell();
  EXPECT_EQ(RunLine(shell, absl::StrCat(kAcquire, "echo $?")), "0");
  const std::string holder = RunLine(shell, "echo $BERTH_PERMIT_KEEPER");
  Subprocess release = Subprocess::Start({.argv = {"/bin/sh", "-c", "\"$0\" release --shell 2>&1; echo $?",
                                                   ProgramPath("client/cli/berth")},
                                          .environment = {"BERTH_PERMIT_KEEPER=" + holder},
                                          .of_operator = true});
  const std::vector<std::string> words = absl::StrSplit(holder, ' ');
  EXPECT_EQ(release.ReadAll(),
            absl::StrCat("berth: the permit's holder process ", words[0], " belongs to uid ", *OtherUser(),
                         ", and this is uid ", ::getuid(), ": run `berth release` as uid ", *OtherUser(),
                         "\n(exit 1)\n1\n"));
  release.Wait();
  EXPECT_EQ(daemon_.TakeAccounts().permits, 1u);
  EXPECT_EQ(RunLine(shell, absl::StrCat(kRelease, "echo $?")), "0");
  shell.CloseInput();
  shell.Wait();
}

// A process without fds cannot look for the holder process, whose permit stays.
TEST_P(ShellTest, ReleaseWithoutFdsChangesNothing) {
  Subprocess shell = StartShell();
  EXPECT_EQ(RunLine(shell, absl::StrCat(kAcquire, "echo $?")), "0");
  const std::string named = RunLine(shell, "echo $BERTH_PERMIT_KEEPER");
  // Enough for some of the files that a release opens.
  for (const int fds : {4, 5}) {
    const std::string release = absl::StrCat("(ulimit -n ", fds, "; exec $BERTH release");
    EXPECT_EQ(RunLine(shell, absl::StrCat("eval \"$( ", release, " --shell) 2>/dev/null)\"; echo $?")), "125") << fds;
    EXPECT_EQ(daemon_.TakeAccounts().permits, 1u) << fds;
    EXPECT_EQ(RunLine(shell, "echo $BERTH_PERMIT_KEEPER"), named) << fds;
    const std::string why = RunLine(shell, absl::StrCat(release, ") 2>&1 | head -n 1"));
    EXPECT_TRUE(absl::StrContains(why, absl::StrCat("RLIMIT_NOFILE is ", fds, ": ulimit -n raises it"))) << why;
  }
  EXPECT_EQ(RunLine(shell, absl::StrCat(kRelease, "echo $?")), "0");
  shell.CloseInput();
  shell.Wait();
}

TEST_P(ShellTest, WaitEndsWithShellAndItsCommand) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  Subprocess shell = StartShell();
  shell.WriteLine(kAcquire);
  ASSERT_TRUE(AccountsBecome(1, 1));
  shell.Kill();
  shell.Wait();
  EXPECT_TRUE(AccountsBecome(1, 0));
  // Without a shell in between: the command itself is interrupted.
  Subprocess command = Start({ProgramPath("client/cli/berth"), "acquire", "--shell"});
  ASSERT_TRUE(AccountsBecome(1, 1));
  command.Signal(SIGINT);
  EXPECT_EQ(command.Wait(), 128 + SIGINT);
  EXPECT_TRUE(AccountsBecome(1, 0));
  holder.Quit();
}

TEST_P(ShellTest, ShellMadeForAcquireIsNoOwner) {
  const std::string said = Script("eval \"$(: first; $BERTH acquire --shell; : last)\"; echo $?");
  EXPECT_TRUE(absl::StrContains(said, "has ended: use --owner $$") && absl::EndsWith(said, "\n125\n"))
      << said;
  EXPECT_TRUE(AccountsBecome(0));
  EXPECT_EQ(Script("eval \"$(: first; $BERTH acquire --shell --owner $$; : last)\"; $BERTH permits | grep -c "
                   "holder; echo $?"),
            "1\n0\n");
  const std::string gone = Script("eval \"$($BERTH acquire --shell --owner 999999999)\"; echo $?");
  EXPECT_TRUE(absl::StrContains(gone, "process 999999999") && absl::EndsWith(gone, "\n125\n")) << gone;
}

TEST_P(ShellTest, OwnerProcessHoldsNoShellFds) {
  const std::string file = daemon_.folder() + "/../held";
  Subprocess shell = StartShell();
  EXPECT_EQ(RunLine(shell, absl::StrCat("cd ", daemon_.folder(), "; exec 7>", file, "; ", kAcquire, "echo $?")),
            "0");
  const std::vector<std::string> named = absl::StrSplit(RunLine(shell, "echo $BERTH_PERMIT_KEEPER"), ' ');
  const std::string proc = "/proc/" + named[0];
  std::set<std::string> pipes;
  EXPECT_EQ(std::filesystem::read_symlink(proc + "/cwd"), "/");
  for (const auto& entry : std::filesystem::directory_iterator(proc + "/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    EXPECT_FALSE(absl::EndsWith(target, "/held")) << entry.path() << target;
    if (absl::StartsWith(target, "pipe:")) pipes.insert(target);
  }
  // Its own pipe, for the reason of an early end.
  EXPECT_EQ(pipes.size(), 1u);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO}) {
    EXPECT_FALSE(pipes.contains(std::filesystem::read_symlink(absl::StrCat("/proc/", shell.pid(), "/fd/", fd))));
  }
  // A killed owner process ends its permit; the release reports that none was held.
  pid_t holder_pid = 0;
  ASSERT_TRUE(absl::SimpleAtoi(named[0], &holder_pid));
  ::kill(holder_pid, SIGKILL);
  EXPECT_TRUE(AccountsBecome(0));
  EXPECT_EQ(RunLine(shell, absl::StrCat(kRelease, "echo $?:$BERTH_SESSION:")), "1::");
  shell.CloseInput();
  shell.Wait();
}

TEST_P(ShellTest, RevocationSignalsShell) {
  Subprocess shell = StartShell();
  Warn();
  EXPECT_EQ(RunLine(shell, "trap 'echo told' USR1; eval \"$($BERTH acquire --shell --on-revoke USR1)\"; echo $?"), "0");
  EXPECT_TRUE(Eventually([&] { return Must(daemon_.inspector().ListPools()).pools(0).overdue() == 1; }));
  EXPECT_EQ(RunLine(shell, "echo no signal"), "no signal") << "it is only overdue";
  Revoke();
  EXPECT_EQ(RunBeside(), 0);
  // A shell runs its traps between two commands; the signal may still be pending.
  std::string said;
  EXPECT_TRUE(Eventually([&] {
    said = RunLine(shell, "echo still");
    return said == "told";
  }));
  EXPECT_EQ(Must(shell.ReadLine()), "still");
  EXPECT_EQ(RunLine(shell, absl::StrCat(kRelease, "echo $?")), "79") << "which gives nothing back";
  shell.CloseInput();
  shell.Wait();
  EXPECT_EQ(Start({ProgramPath("client/cli/berth"), "acquire", "--shell", "--on-revoke", "KILL"}).Wait(), 64);
}

// The limit also applies to memory files.
TEST_P(ShellTest, RevocationIsReportedUnderFileSizeLimit) {
  Subprocess shell = StartShell();
  EXPECT_EQ(RunLine(shell, "exec 2>&1; ulimit -f 0; trap 'echo told' USR1; "
                           "eval \"$($BERTH acquire --shell --on-revoke USR1)\"; echo $?"),
            "0");
  Revoke();
  std::string said;
  EXPECT_TRUE(Eventually([&] {
    said = RunLine(shell, "echo still");
    return said == "told";
  }));
  EXPECT_EQ(Must(shell.ReadLine()), "still");
  EXPECT_EQ(RunLine(shell, absl::StrCat(kRelease, "echo $?")),
            absl::StrCat("berth: the permit ended before its release: an operator (uid ", ::getuid(), ") revoked it"));
  EXPECT_EQ(Must(shell.ReadLine()), "79");
  shell.CloseInput();
  shell.Wait();
}

TEST_P(ShellTest, RevocationIsShownOnTerminal) {
  Subprocess terminal = Start({"/usr/bin/script", "--quiet", "--flush", "--return", "--command",
                               absl::StrCat("exec ", GetParam(), " -c '", kAcquire, "echo held; read line; exit 5'"),
                               "/dev/null"});
  EXPECT_EQ(absl::StripTrailingAsciiWhitespace(Must(terminal.ReadLine())), "held");
  Warn();
  EXPECT_EQ(absl::StripTrailingAsciiWhitespace(Must(terminal.ReadLine())),
            "berth: the permit is overdue: held longer than its pool's hold_warning");
  Revoke();
  EXPECT_EQ(absl::StripTrailingAsciiWhitespace(Must(terminal.ReadLine())),
            absl::StrCat("berth: the permit has ended: an operator (uid ", ::getuid(),
                         ") revoked it; other jobs may use its units now"));
  terminal.WriteLine("");
  EXPECT_EQ(terminal.Wait(), 5);
}

INSTANTIATE_TEST_SUITE_P(Shells, ShellTest, ::testing::Values("/bin/sh", "/bin/bash"), [](const auto& shell) {
  return std::filesystem::path(shell.param).filename().string();
});

class ProgramTest : public ShellTest {};

TEST_P(ProgramTest, ProgramAcquiresAndChildrenJoinWithoutFds) {
  Subprocess owner = Start({"/bin/cat"});
  Subprocess acquire = Start({ProgramPath("client/cli/berth"), "--json", "acquire", "--owner",
                              absl::StrCat(owner.pid()), "--label", "tool"});
  const Json answer = Json::parse(Must(acquire.ReadLine()));
  EXPECT_EQ(acquire.Wait(), 0);
  EXPECT_EQ(answer["owner"], owner.pid());
  EXPECT_EQ(Must(daemon_.inspector().ListPermits()).permits(0).label(), "tool");
  SubprocessOptions nested = {
      .argv = {ProgramPath("client/cli/berth"), "run", "--no-wait", "--", "/bin/true"}};
  for (const auto& [name, value] : answer["environment"].items()) {
    nested.environment.push_back(absl::StrCat(name, "=", value.get<std::string>()));
  }
  EXPECT_EQ(Subprocess::Start(nested).Wait(), 0);
  EXPECT_EQ(RunBeside(), 75);
  owner.CloseInput();
  owner.Wait();
  EXPECT_TRUE(AccountsBecome(0));
  // The session has ended: its name is no longer that of a session.
  EXPECT_EQ(Subprocess::Start(nested).Wait(), 0);
}

TEST_P(ProgramTest, EveryEndIsPrintedAsJson) {
  Subprocess owner = Start({"/bin/cat"});
  const std::string acquire = absl::StrCat("$BERTH --json acquire --label 'a b' --owner ", owner.pid());
  const auto json = [this](const std::string& script) {
    return Json::parse(Script(absl::StrCat("exec 2>/dev/null; ", script)), nullptr, /*allow_exceptions=*/false);
  };
  const Json held = json(acquire);
  ASSERT_TRUE(held["environment"].is_object()) << held;
  const std::string named = held["environment"]["BERTH_PERMIT_KEEPER"].get<std::string>();
  const std::string release = absl::StrCat("BERTH_PERMIT_KEEPER='", named, "' $BERTH release --json");
  const Json released = json(release);
  EXPECT_EQ(code_, 0);
  EXPECT_EQ(released["code"], 0);
  EXPECT_FALSE(released.contains("reason")) << released;
  // The environment before the permit.
  EXPECT_EQ(released["environment"]["BERTH_FOLDER"], daemon_.folder());
  EXPECT_TRUE(released["environment"]["BERTH_SESSION"].is_null()) << released;
  EXPECT_EQ(daemon_.TakeAccounts().permits, 0u);
  EXPECT_EQ(json(release), (Json{{"code", 1},
                                 {"reason", "failed"},
                                 {"environment", released["environment"]}}))
      << "the holder process has ended";
  EXPECT_EQ(json("$BERTH --json release"), (Json{{"code", 1}, {"reason", "failed"}, {"environment", Json::object()}}));
  for (const char* const wrong : {"--json acquire --no-such-option", "acquire --json word", "--json release word",
                                  "acquire --priority 50 --json", "--json acquire --mem plenty"}) {
    EXPECT_EQ(json(absl::StrCat("$BERTH ", wrong)), (Json{{"code", 64}, {"reason", "usage"}})) << wrong;
    EXPECT_EQ(code_, 64) << wrong;
  }
  const std::string again = json(acquire)["environment"]["BERTH_PERMIT_KEEPER"].get<std::string>();
  Revoke();
  const Json ended = json(absl::StrCat("BERTH_PERMIT_KEEPER='", again, "' $BERTH release --json"));
  EXPECT_EQ(code_, 79);
  EXPECT_EQ(ended["code"], 79);
  EXPECT_EQ(ended["reason"], "ended");
  owner.CloseInput();
  owner.Wait();
}

INSTANTIATE_TEST_SUITE_P(Once, ProgramTest, ::testing::Values("/bin/sh"));

}  // namespace
}  // namespace berth::testing
