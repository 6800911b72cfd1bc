// pytest under `berth run`, and with a permit for each test: with the real runner, whose children inherit no fds.

#include <signal.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class PytestTest : public ::testing::Test {
 protected:
  PytestTest() : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}) {}

  void SetUp() override {
    if (Subprocess::Start({.argv = {"/usr/bin/python3", "-c", "import pytest"}}).Wait() != 0) {
      GTEST_SKIP() << "needs pytest";
    }
  }
  void TearDown() override { daemon_.ExpectAccountsBack(); }

  // Starts pytest with these cases under a wrapper.
  Subprocess Start(std::vector<std::string> wrapper, const std::string& cases,
                   std::vector<std::string> environment = {}) {
    wrapper.insert(wrapper.end(),
                   {"/usr/bin/python3", "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "berth_pytest",
                    absl::StrCat(Path("tests/runners/pytest_cases.py"), cases)});
    wrapper.insert(wrapper.begin(), {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    environment.insert(
        environment.end(),
        {absl::StrCat("PYTHONPATH=",
                      std::filesystem::path(Path("client/testing/berth_pytest.py")).parent_path().string()),
         "PYTHONDONTWRITEBYTECODE=1", "PYTHONHOME",
         absl::StrCat("BERTH_COMMAND=", ProgramPath("client/cli/berth")), "BERTH_SESSION",
         "BERTH_PERMIT_KEEPER"});
    return Subprocess::Start({.argv = std::move(wrapper), .environment = std::move(environment)});
  }

  int Run(std::vector<std::string> wrapper, const std::string& cases,
          std::vector<std::string> environment = {}) {
    environment.push_back(absl::StrCat("BERTH_FOLDER=", daemon_.folder()));
    Subprocess pytest = Start(std::move(wrapper), cases, std::move(environment));
    said_ = pytest.ReadAll();
    return pytest.Wait();
  }

  static std::string Path(const std::string& name) {
    return std::filesystem::absolute(ProgramPath(name)).string();
  }

  bool Said(absl::string_view text) const { return absl::StrContains(said_, text); }

  TestDaemon daemon_;
  std::string said_;
};

TEST_F(PytestTest, TestsUnderRunLeakAndFreeNothingEarly) {
  const std::string berth = ProgramPath("client/cli/berth");
  for (const char* const way : {"--until=command", "--until=tree", "--exec"}) {
    EXPECT_EQ(Run({berth, "run", way, "--"}, "::TestUnderRun"), 0) << way << said_;
    EXPECT_TRUE(Said("4 passed")) << said_;
    EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; })) << way;
  }
}

TEST_F(PytestTest, EachTestHoldsItsOwnPermitWithFixture) {
  EXPECT_EQ(Run({}, "::TestWithTheFixture"), 0) << said_;
  EXPECT_TRUE(Said("6 passed, 1 xfailed")) << said_;
  // Inside a run the fixture's permit nests.
  EXPECT_EQ(Run({ProgramPath("client/cli/berth"), "run", "--"},
                "::TestWithTheFixture::test_it_is_held_while_the_test_runs"),
            0)
      << said_;
}

TEST_F(PytestTest, TestWithEndedPermitFails) {
  const std::string held = std::filesystem::path(daemon_.folder()).parent_path() / "taken";
  Subprocess pytest = Start({}, "::TestThatLosesItsPermit",
                            {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), absl::StrCat("HELD=", held)});
  EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(held) || pytest.IsGone(); }));
  daemon_.RevokePermits();
  said_ = pytest.ReadAll();
  EXPECT_EQ(pytest.Wait(), 1) << said_;
  EXPECT_TRUE(Said("1 passed, 1 error")) << said_;
  EXPECT_TRUE(Said("the permit ended before its release: an operator (uid ")) << said_;
  EXPECT_TRUE(Said("berth release ended with 79: the permit was lost while the test ran")) << said_;
}

TEST_F(PytestTest, KilledPytestHoldsNothing) {
  EXPECT_EQ(Run({}, "::TestThatDies"), 128 + SIGKILL) << said_;
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
}

// As pytest-xdist's workers: each process acquires for itself.
TEST_F(PytestTest, FourProcessesShareTwoPermits) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}});
  const std::string folder = std::filesystem::path(daemon.folder()).parent_path() / "beside";
  std::filesystem::create_directory(folder);
  GiveToClients(folder);
  const std::vector<std::string> environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()),
                                                absl::StrCat("FOLDER=", folder)};
  std::vector<Subprocess> processes;
  for (int i = 0; i < 4; ++i) processes.push_back(Start({}, "::TestBesideOthers", environment));
  for (Subprocess& process : processes) {
    const std::string said = process.ReadAll();
    EXPECT_EQ(process.Wait(), 0) << said;
    EXPECT_TRUE(absl::StrContains(said, "3 passed")) << said;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  daemon.ExpectAccountsBack();
}

TEST_F(PytestTest, FixtureWithoutDaemonSkipsUnlessRequired) {
  const std::string one = "::TestWithTheFixture::test_it_is_held_while_the_test_runs";
  Subprocess skipped = Start({}, one, {"BERTH_FOLDER=/nowhere"});
  EXPECT_TRUE(absl::StrContains(skipped.ReadAll(), "1 skipped"));
  EXPECT_EQ(skipped.Wait(), 0);
  Subprocess failed = Start({}, one, {"BERTH_FOLDER=/nowhere", "BERTH_REQUIRE=1"});
  EXPECT_TRUE(absl::StrContains(failed.ReadAll(), "1 error"));
  EXPECT_EQ(failed.Wait(), 1);
}

TEST_F(PytestTest, RefusingDaemonFailsFixture) {
  const std::string socket = daemon_.folder() + "/berthd.sock";
  const std::filesystem::perms before = std::filesystem::status(socket).permissions();
  std::filesystem::permissions(socket, std::filesystem::perms::none);
  // Without its capabilities, root is subject to a file's mode like any other user.
  std::vector<std::string> wrapper;
  if (IsRoot()) wrapper = {"/usr/bin/setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"};
  EXPECT_EQ(Run(wrapper, "::TestWithTheFixture::test_it_is_held_while_the_test_runs"), 1) << said_;
  EXPECT_TRUE(Said("berth acquire ended with 69")) << said_;
  std::filesystem::permissions(socket, before);
}

}  // namespace
}  // namespace berth::testing
