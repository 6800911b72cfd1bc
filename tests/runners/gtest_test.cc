// GoogleTest with client/testing: a program as users write it is run, with a daemon and without.

#include "gtest/gtest.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/subprocess.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class GtestTest : public ::testing::Test {
 protected:
  // Runs the program's tests of that filter; by way of `berth run` where that is wanted.
  int Run(const std::string& filter, std::vector<std::string> environment = {}, bool under_run = false) {
    std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1"};
    if (under_run) argv.insert(argv.end(), {ProgramPath("client/cli/berth"), "run", "--"});
    argv.push_back(ProgramPath("tests/runners/gtest_program"));
    argv.push_back("--gtest_filter=" + filter);
    environment.push_back("BERTH_FOLDER=" + (daemon_.has_value() ? daemon_->folder() : "/nowhere"));
    if (environment.empty() || !absl::StartsWith(environment[0], "BERTH_SESSION="))
      environment.push_back("BERTH_SESSION");
    Subprocess program = Subprocess::Start({.argv = argv, .environment = environment});
    said_ = program.ReadAll();
    return program.Wait();
  }

  void ExpectLeak(const std::string& filter, const std::vector<std::string>& said) {
    for (const bool under_run : {false, true}) {
      EXPECT_EQ(Run(filter, {}, under_run), 1) << said_;
      for (const std::string& text : said)
        EXPECT_TRUE(absl::StrContains(said_, text)) << text << " in\n" << said_;
      // Whatever it leaked came back when it ended.
      daemon_->ExpectBooksBack();
    }
  }

  bool Said(absl::string_view text) const { return absl::StrContains(said_, text); }

  void StartDaemon() { daemon_.emplace(TestDaemonOptions{.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}); }

  std::optional<TestDaemon> daemon_;
  std::string said_;
};

TEST_F(GtestTest, TestsThatGiveBackPass) {
  StartDaemon();
  for (const bool under_run : {false, true}) {
    // Under `berth run` the permit is that one's, with its label and without a device.
    const std::string filter =
        under_run ? "HeldTest.WhatIt*:CleanTest*:SuiteTest*" : "Held*:Placed*:Clean*:SuiteTest*";
    EXPECT_EQ(Run(filter, {"BERTH_REQUIRE=1"}, under_run), 0) << said_;
    EXPECT_TRUE(Said(under_run ? "[  PASSED  ] 4 tests" : "[  PASSED  ] 6 tests")) << said_;
  }
  daemon_->ExpectBooksBack();
}

TEST_F(GtestTest, ATestThatLeaksFailsAndIsToldWhat) {
  StartDaemon();
  ExpectLeak(
      "LeakyTest.APermit:LeakyTest.ThoseAfterIt*",
      {"LeakyTest.APermit leaks 1 permit", "pool gpu-tests", "[  FAILED  ] 1 test,", "[  PASSED  ] 1 test."});
  ExpectLeak("LeakyTest.ABlock", {"LeakyTest.ABlock leaks 1 block of 6 MiB", "6 MiB, \"forgotten block\""});
  ExpectLeak("LeakyTest.AMapping", {"LeakyTest.AMapping leaks 1 block of 2 MiB"});
  ExpectLeak("LeakyTest.AReservation", {"LeakyTest.AReservation leaks 1 reservation"});
  ExpectLeak("LeakySuiteTest*", {"test suite LeakySuiteTest leaks 1 block of 4 MiB", "[  PASSED  ] 1 test."});
}

TEST_F(GtestTest, WithoutADaemonTestsAreSkippedAloudUnlessOneIsRequired) {
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

TEST_F(GtestTest, ADaemonThatRefusesIsNoReasonToSkip) {
  StartDaemon();
  // As where a runner closed the fds of a session and kept its variable.
  EXPECT_EQ(Run("CleanTest.NeedsNoDaemon", {"BERTH_SESSION=98,99"}), 1) << said_;
  EXPECT_TRUE(Said("no Berth session: ")) << said_;
}

}  // namespace
}  // namespace berth::testing
