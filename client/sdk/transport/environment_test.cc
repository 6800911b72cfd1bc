#include "client/sdk/transport/environment.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/wire/session_credentials.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(EnvironmentTest, FolderVariableHasPrecedence) {
  ::setenv(kFolderVariable, "/somewhere", 1);
  EXPECT_EQ(DefaultFolder(), "/somewhere");
  ::unsetenv(kFolderVariable);
}

TEST(EnvironmentTest, RelativeFolderIsMadeAbsolute) {
  ASSERT_EQ(::chdir("/tmp"), 0);
  EXPECT_EQ(Absolute("run/berth"), "/tmp/run/berth");
  EXPECT_EQ(Absolute("/run/berth"), "/run/berth");
}

TEST(EnvironmentTest, SessionNameIsParsedAsFormatted) {
  const SessionName name = {.lifeline = 960,
                            .session_credentials = 961,
                            .opener = 4711,
                            .opener_start = 123456789,
                            .pid_namespace = 4026531836,
                            .session = SessionId(~uint64_t{0})};
  EXPECT_EQ(FormatSessionName(name), "960,961,4711,123456789,4026531836,18446744073709551615");
  const auto read = ParseSessionName(FormatSessionName(name));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(FormatSessionName(*read), FormatSessionName(name));
}

TEST(EnvironmentTest, EarlierSessionNameParsesWithoutOwnerProcess) {
  for (const char* const text : {"5,7", "5,7,4711"}) {
    const auto name = ParseSessionName(text);
    ASSERT_TRUE(name.ok()) << name.status();
    EXPECT_EQ(name->lifeline, 5);
    EXPECT_EQ(name->session_credentials, 7);
    EXPECT_EQ(name->opener, 0);
    EXPECT_FALSE(name->session);
    EXPECT_EQ(FormatSessionName(*name), "5,7");
  }
}

TEST(EnvironmentTest, MalformedSessionNameIsRejected) {
  for (const char* text :
       {"", "5", "5,", ",7", "5,7,9,11", "5,7,9,11,13", "5,7,9,11,13,", "5,7,9,11,13,0", "5,7,0,11,13,15",
        "5,7,-9,11,13,15", "5,7,9,x,13,15", "5,7,9,11,x,15", "5,7,9,11,13,x", "5,7,9,11,13,15,17", "-1,7",
        "5,-7", "a,b", "5;7", "99999999999,1"}) {
    EXPECT_EQ(ParseSessionName(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(EnvironmentTest, UnsetVariableNamesNoSessionBrokenIsError) {
  ::unsetenv(kSessionVariable);
  EXPECT_EQ(SessionNameFromEnvironment()->has_value(), false);
  ::setenv(kSessionVariable, "", 1);
  EXPECT_EQ(SessionNameFromEnvironment()->has_value(), false);
  ::setenv(kSessionVariable, "nonsense", 1);
  EXPECT_FALSE(SessionNameFromEnvironment().ok());
  ::unsetenv(kSessionVariable);
}

TEST(EnvironmentTest, PidNamespaceMatchesKernel) {
  struct stat file = {};
  ASSERT_EQ(::stat("/proc/self/ns/pid", &file), 0);
  EXPECT_EQ(PidNamespace(), file.st_ino);
}

}  // namespace
}  // namespace berth::internal
