#include "client/cli/child.h"

#include <stdlib.h>

#include <algorithm>

#include "client/cli/signal_relay.h"
#include "gtest/gtest.h"

namespace berth::cli {
namespace {

ExitStatus RunShell(const std::string& script, const std::vector<std::string>& entries = {}) {
  sigset_t none;
  ::sigemptyset(&none);
  const absl::StatusOr<pid_t> child = SpawnCommand({"sh", "-c", script}, EnvironmentWith(entries), none);
  EXPECT_TRUE(child.ok()) << child.status();
  return child.ok() ? Reap(*child) : ExitStatus{.code = -1};
}

TEST(ChildTest, TheExitCodeIsTheCommandsOwn) {
  EXPECT_EQ(RunShell("exit 0").code, 0);
  EXPECT_EQ(RunShell("exit 42").code, 42);
  EXPECT_EQ(RunShell("exit 255").code, 255);
}

TEST(ChildTest, TheExitCodeIsKnownWhereTheParentIgnoredTheEndOfChildren) {
  ::signal(SIGCHLD, SIG_IGN);
  const auto relay = SignalRelay::Start();
  ASSERT_TRUE(relay.ok()) << relay.status();
  EXPECT_EQ(RunShell("exit 42").code, 42);
}

TEST(ChildTest, AnEndedChildKeepsItsPidUntilItIsReaped) {
  sigset_t none;
  ::sigemptyset(&none);
  const absl::StatusOr<pid_t> child = SpawnCommand({"sh", "-c", "exit 42"}, EnvironmentWith({}), none);
  ASSERT_TRUE(child.ok()) << child.status();
  AwaitEnd(*child);
  // A signal finds the zombie, and does nothing to its end.
  EXPECT_EQ(::kill(*child, SIGKILL), 0);
  EXPECT_EQ(Reap(*child).code, 42);
  EXPECT_EQ(::kill(*child, 0), -1);
}

TEST(ChildTest, ADeathBySignalIsToldAsSuch) {
  const ExitStatus status = RunShell("kill -TERM $$");
  EXPECT_EQ(status.signal, SIGTERM);
  EXPECT_EQ(status.code, 128 + SIGTERM);
}

TEST(ChildTest, WhatIsNotThereAndWhatCannotBeExecutedAreToldApart) {
  sigset_t none;
  ::sigemptyset(&none);
  const auto spawn = [&](const std::string& command) { return SpawnCommand({command}, {}, none).status(); };
  EXPECT_TRUE(absl::IsNotFound(spawn("/no/such/command")));
  EXPECT_TRUE(absl::IsNotFound(spawn("no-such-command-anywhere")));
  EXPECT_TRUE(absl::IsFailedPrecondition(spawn("/etc/passwd")));
}

TEST(ChildTest, EnvironmentEntriesReplaceThoseOfTheSameNameOnly) {
  ::setenv("BERTH_TEST", "old", 1);
  ::setenv("BERTH_TEST_LONGER", "kept", 1);
  EXPECT_EQ(RunShell("[ $BERTH_TEST = new ] && [ $BERTH_TEST_LONGER = kept ]", {"BERTH_TEST=new"}).code, 0);
  const std::vector<std::string> environment = EnvironmentWith({"BERTH_TEST=new"});
  EXPECT_EQ(std::count(environment.begin(), environment.end(), "BERTH_TEST=old"), 0);
  EXPECT_EQ(std::count(environment.begin(), environment.end(), "BERTH_TEST=new"), 1);
}

}  // namespace
}  // namespace berth::cli
