#include "client/internal/environment.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/session_capsule.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(EnvironmentTest, TheFoldersVariableHasPrecedence) {
  ::setenv(kFolderVariable, "/somewhere", 1);
  EXPECT_EQ(DefaultFolder(), "/somewhere");
  ::unsetenv(kFolderVariable);
}

TEST(EnvironmentTest, AFolderMeansTheSameAfterAChangeOfTheWorkingFolder) {
  ASSERT_EQ(::chdir("/tmp"), 0);
  EXPECT_EQ(Absolute("run/berth"), "/tmp/run/berth");
  EXPECT_EQ(Absolute("/run/berth"), "/run/berth");
}

TEST(EnvironmentTest, InheritedFdsAreTwoNumbersAndWhoKeepsThem) {
  const auto fds = ParseInheritedFds("5,7");
  ASSERT_TRUE(fds.ok());
  EXPECT_EQ(fds->lifeline, 5);
  EXPECT_EQ(fds->capsule, 7);
  EXPECT_EQ(FormatInheritedFds(*fds), "5,7");
  EXPECT_EQ(fds->keeper, 0);
  const auto kept = ParseInheritedFds("5,7,4711");
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->keeper, 4711);
  EXPECT_EQ(FormatInheritedFds(*kept), "5,7,4711");
  for (const char* text : {"", "5", "5,", ",7", "5,7,", "5,7,0", "5,7,-9", "5,7,x", "5,7,9,11", "-1,7",
                           "5,-7", "a,b", "5;7", "99999999999,1"}) {
    EXPECT_EQ(ParseInheritedFds(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(EnvironmentTest, AnUnsetOrEmptyVariableIsNoSessionAndABrokenOneIsAnError) {
  ::unsetenv(kSessionVariable);
  EXPECT_EQ(InheritedFdsFromEnvironment()->has_value(), false);
  ::setenv(kSessionVariable, "", 1);
  EXPECT_EQ(InheritedFdsFromEnvironment()->has_value(), false);
  ::setenv(kSessionVariable, "nonsense", 1);
  EXPECT_FALSE(InheritedFdsFromEnvironment().ok());
  ::unsetenv(kSessionVariable);
}

}  // namespace
}  // namespace berth::internal
