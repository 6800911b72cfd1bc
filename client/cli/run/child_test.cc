#include "client/cli/run/child.h"

#include <stdlib.h>

#include <algorithm>

#include "client/cli/run/signal_relay.h"
#include "gtest/gtest.h"

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
    EXPECT_EQ(RunShell("exit 42").code, 42);
  }
  struct sigaction after;
  ::sigaction(SIGCHLD, nullptr, &after);
  EXPECT_EQ(after.sa_handler, SIG_IGN) << "as it was";
  ::signal(SIGCHLD, SIG_DFL);
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
