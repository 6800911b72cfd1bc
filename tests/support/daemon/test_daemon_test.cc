#include "tests/support/daemon/test_daemon.h"

#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

bool IsGone(const std::string& folder) {
  return ProcessesWith("berthd", absl::StrCat("--folder=", folder)).empty() &&
         !std::filesystem::exists(std::filesystem::path(folder).parent_path());
}

TEST(TestDaemonTest, EndOfTestRemovesDaemon) {
  std::string folder;
  {
    TestDaemon daemon;
    folder = daemon.folder();
    EXPECT_FALSE(IsGone(folder));
  }
  EXPECT_TRUE(IsGone(folder));
}

TEST(TestDaemonDeathTest, AbortOfTestRemovesDaemon) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  // This same test aborts, in a separate process.
  const std::string note = absl::StrCat(::testing::TempDir(), "/test_daemon_test.folder");
  const auto abort_with_a_daemon = [&] {
    TestDaemon daemon;
    std::ofstream(note) << daemon.folder();
    // Leaves only the guard to end the remaining processes.
    daemon.KillSupervisor();
    ::abort();
  };
  EXPECT_EXIT(abort_with_a_daemon(), ::testing::KilledBySignal(SIGABRT), "");
  std::string folder;
  std::ifstream(note) >> folder;
  ASSERT_FALSE(folder.empty());
  EXPECT_TRUE(Eventually([&] { return IsGone(folder); })) << folder;
  std::filesystem::remove(note);
}

}  // namespace
}  // namespace berth::testing
