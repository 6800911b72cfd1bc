#include "tests/support/testing.h"

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/environment.h"
#include "tests/support/subprocess.h"

namespace berth::testing {
namespace {

TEST(TestingTest, EventuallyBacksOff) {
  int looks = 0;
  EXPECT_FALSE(Eventually(
      [&] {
        ++looks;
        return false;
      },
      absl::Milliseconds(200)));
  // After 2, 4, 8, 16, 32 and 50 ms, each 50 ms then, and a last time. A stalled machine looks less often.
  EXPECT_LE(looks, 11);
  EXPECT_TRUE(Eventually([&] { return --looks < 0; }));
}

TEST(TestingTest, FailedMustEndsItsCaseAlone) {
  EXPECT_THROW(Must(absl::NotFoundError("no such thing"), "thing"), std::runtime_error);
  EXPECT_EQ(Must(absl::StatusOr<int>(7)), 7);
}

// Returns BERTH_TEST_PATIENCE of a process that is started with these changes.
std::string PatienceWith(const std::vector<std::string>& changes) {
  Subprocess shell = Subprocess::Start(
      {.argv = {"/bin/sh", "-c", "echo \"$BERTH_TEST_PATIENCE\""}, .environment = changes});
  return Must(shell.ReadLine());
}

TEST(TestingTest, ProcessesHavePatienceUnlessTheyDecline) {
  EXPECT_EQ(PatienceWith({}), absl::StrCat(FromEnvironment("BERTH_TEST_PATIENCE", 0)));
  EXPECT_GE(FromEnvironment("BERTH_TEST_PATIENCE", 0), 1u) << "of the test program itself";
  EXPECT_EQ(PatienceWith({"BERTH_TEST_PATIENCE=1"}), "1");
}

std::string Program() { return std::filesystem::read_symlink("/proc/self/exe"); }

// Returns the exit code of as_other_user with this program and `filter`; `*output` is what it printed.
int CodeAsOtherUser(const std::string& filter, std::string* output) {
  Subprocess script = Subprocess::Start(
      {.argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>&1", "tests/support/as_other_user", Program(),
                absl::StrCat("--gtest_filter=", filter)},
       .environment = {"XML_OUTPUT_FILE", "GTEST_OUTPUT"}});
  const int code = script.Wait();
  *output = script.ReadAll();
  return code;
}

TEST(TestingTest, FilterForOtherUserMustMatchCases) {
  std::string output;
  for (const std::string filter : {"*FailedMust*", "*FailedMust*:*Patience*", "*FailedMust*-*NoSuch*"}) {
    EXPECT_EQ(CodeAsOtherUser(filter, &output), 0) << filter << output;
  }
  for (const std::string filter : {"*NoSuchCase*", "*FailedMust*:*NoSuchCase*"}) {
    EXPECT_EQ(CodeAsOtherUser(filter, &output), 1) << filter << output;
    EXPECT_TRUE(absl::StrContains(output, "matches \"*NoSuchCase*\"")) << output;
  }
}

}  // namespace
}  // namespace berth::testing
