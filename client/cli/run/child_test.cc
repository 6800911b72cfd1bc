#include "client/cli/run/child.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "client/cli/run/signal_relay.h"
#include "gtest/gtest.h"
#include "tests/support/proc.h"

namespace berth::cli {
namespace {

SpawnOptions Options() { return {.signals = ReadSignalSettings()}; }

ExitStatus RunShell(const std::string& script, const std::vector<std::string>& entries = {}) {
  const absl::StatusOr<pid_t> child = SpawnCommand({"sh", "-c", script}, EnvironmentWith(entries), Options());
  EXPECT_TRUE(child.ok()) << child.status();
  return child.ok() ? Reap(*child) : ExitStatus{.code = -1};
}

TEST(ChildTest, ChildReturnsExitCodeOfCommand) {
  EXPECT_EQ(RunShell("exit 0").code, 0);
  EXPECT_EQ(RunShell("exit 42").code, 42);
  EXPECT_EQ(RunShell("exit 255").code, 255);
}

TEST(ChildTest, ExitCodeIsKnownDespiteIgnoredSigchld) {
  ::signal(SIGCHLD, SIG_IGN);
  {
    const auto relay = SignalRelay::Start();
    ASSERT_TRUE(relay.ok()) << relay.status();
    // The relay reaps every other child.
    const absl::StatusOr<pid_t> child = (*relay)->StartCommand({"sh", "-c", "exit 42"}, EnvironmentWith({}));
    ASSERT_TRUE(child.ok()) << child.status();
    EXPECT_EQ(Reap(*child).code, 42);
  }
  struct sigaction after;
  ::sigaction(SIGCHLD, nullptr, &after);
  EXPECT_EQ(after.sa_handler, SIG_IGN) << "as it was";
  ::signal(SIGCHLD, SIG_DFL);
}

// A process that waits under a SignalRelay. Its AroundStop() functions write a byte each to `out`; the first then waits
// for a byte from `in`. SIGTERM ends it.
[[noreturn]] void WaitUnderRelay(int in, int out) {
  const auto relay = SignalRelay::Start();
  if (!relay.ok()) ::_exit(1);
  char byte = 0;
  const auto report = [out](char what) { return ::write(out, &what, 1) == 1; };
  (*relay)->AroundStop([&] { report('b') && ::read(in, &byte, 1) == 1; }, [&] { report('a'); });
  report('r');
  while ((*relay)->interrupted_by() == 0) ::sched_yield();
  ::_exit((*relay)->interrupted_by());
}

TEST(ChildTest, ContinueAtAnyMomentUndoesStopOfWaiter) {
  for (const int signal : kTerminalStops) {
    SCOPED_TRACE(signal);
    int to[2], from[2];
    ASSERT_EQ(::pipe(to), 0);
    ASSERT_EQ(::pipe(from), 0);
    const pid_t waiter = ::fork();
    if (waiter == 0) WaitUnderRelay(to[0], from[1]);
    const auto next = [&] {
      char byte = 0;
      return ::read(from[0], &byte, 1) == 1 ? byte : '-';
    };
    ASSERT_EQ(next(), 'r');
    ::kill(waiter, signal);
    ASSERT_EQ(next(), 'b');
    // The kernel discards it at a SIGCONT, which it could not if the signal had been read.
    EXPECT_TRUE(testing::IsPending(waiter, signal));
    ::kill(waiter, SIGCONT);
    EXPECT_FALSE(testing::IsPending(waiter, signal));
    ASSERT_EQ(::write(to[1], "x", 1), 1);
    EXPECT_EQ(next(), 'a');
    ::kill(waiter, SIGTERM);
    int status = 0;
    ASSERT_EQ(::waitpid(waiter, &status, WUNTRACED), waiter);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == SIGTERM) << status;
    for (const int fd : {to[0], to[1], from[0], from[1]}) ::close(fd);
  }
}

TEST(ChildTest, EndedChildRetainsPidUntilReaped) {
  const absl::StatusOr<pid_t> child = SpawnCommand({"sh", "-c", "exit 42"}, EnvironmentWith({}), Options());
  ASSERT_TRUE(child.ok()) << child.status();
  AwaitEnd(*child);
  // A signal to the zombie succeeds, and does not change its exit status.
  EXPECT_EQ(::kill(*child, SIGKILL), 0);
  EXPECT_EQ(Reap(*child).code, 42);
  EXPECT_EQ(::kill(*child, 0), -1);
}

TEST(ChildTest, DeathBySignalSetsSignalAndCode) {
  const ExitStatus status = RunShell("kill -TERM $$");
  EXPECT_EQ(status.signal, SIGTERM);
  EXPECT_EQ(status.code, 128 + SIGTERM);
}

TEST(ChildTest, MissingAndUnexecutableCommandsDiffer) {
  const auto spawn = [](const std::string& command) { return SpawnCommand({command}, {}, Options()).status(); };
  EXPECT_TRUE(absl::IsNotFound(spawn("/no/such/command")));
  EXPECT_TRUE(absl::IsNotFound(spawn("no-such-command-anywhere")));
  EXPECT_TRUE(absl::IsFailedPrecondition(spawn("/etc/passwd")));
}

TEST(ChildTest, EnvironmentEntryReplacesSameNameOnly) {
  ::setenv("BERTH_TEST", "old", 1);
  ::setenv("BERTH_TEST_LONGER", "same", 1);
  EXPECT_EQ(RunShell("[ $BERTH_TEST = new ] && [ $BERTH_TEST_LONGER = same ]", {"BERTH_TEST=new"}).code, 0);
  const std::vector<std::string> environment = EnvironmentWith({"BERTH_TEST=new"});
  EXPECT_EQ(std::count(environment.begin(), environment.end(), "BERTH_TEST=old"), 0);
  EXPECT_EQ(std::count(environment.begin(), environment.end(), "BERTH_TEST=new"), 1);
}

}  // namespace
}  // namespace berth::cli
