// GoogleTest with client/testing: runs a program as users write it, with a daemon and without.

#include "gtest/gtest.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class GtestTest : public ::testing::Test {
 protected:
  // Starts the program's tests that match the filter, under `berth run` where `under_run` is set.
  Subprocess Start(const std::string& filter, std::vector<std::string> environment, bool under_run) {
    std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1"};
    if (under_run) argv.insert(argv.end(), {ProgramPath("client/cli/berth"), "run", "--"});
    argv.push_back(ProgramPath("tests/runners/gtest_program"));
    argv.push_back("--gtest_filter=" + filter);
    // The program must not write this test's own reports.
    environment.insert(environment.end(), {"XML_OUTPUT_FILE", "TEST_PREMATURE_EXIT_FILE"});
    environment.push_back("BERTH_FOLDER=" + (daemon_.has_value() ? daemon_->folder() : "/nowhere"));
    if (environment.empty() || !absl::StartsWith(environment[0], "BERTH_SESSION="))
      environment.push_back("BERTH_SESSION");
    return Subprocess::Start({.argv = argv, .environment = environment});
  }
  int Run(const std::string& filter, std::vector<std::string> environment = {}, bool under_run = false) {
    Subprocess program = Start(filter, std::move(environment), under_run);
    said_ = program.ReadAll();
    return program.Wait();
  }

  bool Said(absl::string_view text) const { return absl::StrContains(said_, text); }

  void StartDaemon(int cap = 1) {
    daemon_.emplace(TestDaemonOptions{.environment = {absl::StrCat("BERTH_GPU_TEST_CONCURRENCY=", cap)}});
  }

  std::optional<TestDaemon> daemon_;
  std::string said_;
};

TEST_F(GtestTest, TestsReturningEverythingPass) {
  StartDaemon();
  for (const bool under_run : {false, true}) {
    // Under `berth run` the permit is that of the wrapper, with its label and without a device.
    const std::string filter =
        under_run ? "HeldTest.OwnAcquire*:CleanTest*:SuiteTest*" : "Held*:Placed*:Clean*:SuiteTest*";
    EXPECT_EQ(Run(filter, {"BERTH_REQUIRE=1"}, under_run), 0) << said_;
    EXPECT_TRUE(Said(under_run ? "[  PASSED  ] 4 tests" : "[  PASSED  ] 6 tests")) << said_;
  }
  daemon_->ExpectAccountsBack();
}

TEST_F(GtestTest, TestWithEndedPermitFails) {
  StartDaemon();
  for (const bool under_run : {false, true}) {
    Subprocess program = Start("TakenTest*", {}, under_run);
    said_.clear();
    for (std::string line; line != "taken"; absl::StrAppend(&said_, line, "\n")) line = Must(program.ReadLine());
    daemon_->RevokePermits();
    absl::StrAppend(&said_, program.ReadAll());
    // The revoked permit is the wrapper's.
    EXPECT_EQ(program.Wait(), under_run ? 79 : 1) << said_;
    EXPECT_TRUE(Said("the permit ended before its release: an operator (uid ")) << said_;
    EXPECT_TRUE(Said("[  FAILED  ] 1 test,")) << said_;
  }
  daemon_->ExpectAccountsBack();
}

TEST_F(GtestTest, LeakingTestFailsAndNamesLeak) {
  struct Leak {
    const char* filter;
    std::vector<std::string> said;
  };
  const std::vector<Leak> leaks = {
      {"LeakyTest.APermit:LeakyTest.LaterTest*",
       {"LeakyTest.APermit leaks 1 permit", "pool gpu-tests", "[  FAILED  ] 1 test,", "[  PASSED  ] 1 test."}},
      {"LeakyTest.ABlock", {"LeakyTest.ABlock leaks 1 block of 6 MiB", "6 MiB, \"forgotten block\""}},
      {"LeakyTest.AMapping", {"LeakyTest.AMapping leaks 1 block of 2 MiB"}},
      {"LeakyTest.AReservation", {"LeakyTest.AReservation leaks 1 reservation"}},
      {"LeakySuiteTest*", {"test suite LeakySuiteTest leaks 1 block of 4 MiB", "[  PASSED  ] 1 test."}},
  };
  // A permit for each wrapper and for the program that leaks one.
  StartDaemon(static_cast<int>(leaks.size()) + 1);
  for (const bool under_run : {false, true}) {
    // All at once: the listener of each waits for leases that may still come back.
    std::vector<Subprocess> programs;
    for (const Leak& leak : leaks) programs.push_back(Start(leak.filter, {}, under_run));
    for (size_t i = 0; i < leaks.size(); ++i) {
      const std::string said = programs[i].ReadAll();
      EXPECT_EQ(programs[i].Wait(), 1) << said;
      for (const std::string& text : leaks[i].said)
        EXPECT_TRUE(absl::StrContains(said, text)) << text << " in\n" << said;
    }
    // The leaked leases of the tests came back when the tests ended.
    daemon_->ExpectAccountsBack();
  }
}

TEST_F(GtestTest, TestsWithoutDaemonSkipUnlessRequired) {
  const std::string filter = "HeldTest*:CleanTest.NeedsNoDaemon";
  EXPECT_EQ(Run(filter), 0) << said_;
  EXPECT_TRUE(Said("SKIPPED; BERTH_REQUIRE=1 makes that a failure")) << said_;
  EXPECT_TRUE(Said("[  PASSED  ] 1 test.") && Said("[  SKIPPED ] 2 tests")) << said_;
  EXPECT_EQ(Run(filter, {"BERTH_REQUIRE=0"}), 0) << said_;
  EXPECT_EQ(Run(filter, {"BERTH_REQUIRE="}), 0) << said_;
  EXPECT_EQ(Run(filter, {"BERTH_REQUIRE=1"}), 1) << said_;
  EXPECT_TRUE(Said("no Berth session: ") && Said("and one is required")) << said_;
  EXPECT_FALSE(Said("[       OK ]")) << "nothing ran\n" << said_;
}

TEST_F(GtestTest, InvalidSessionFailsInsteadOfSkipping) {
  StartDaemon();
  // As where a runner closed a session's fds but left its variable.
  EXPECT_EQ(Run("CleanTest.NeedsNoDaemon", {"BERTH_SESSION=98,99"}), 1) << said_;
  EXPECT_TRUE(Said("no Berth session: ")) << said_;
}

}  // namespace
}  // namespace berth::testing
