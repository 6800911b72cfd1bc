#include "client/cli/keeper.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "client/cli/child.h"
#include "gtest/gtest.h"

namespace berth::cli {
namespace {

TEST(KeeperTest, ATaskIsReadAsItWasWritten) {
  const absl::StatusOr<KeeperTask> task =
      ParseKeeperTask(FormatKeeperTask({.owner = 7, .report = 9, .token = "ab12"}));
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->owner, 7);
  EXPECT_EQ(task->report, 9);
  EXPECT_EQ(task->token, "ab12");
  for (const char* const text : {"", "7", "7,9", "x,9,t", "7,y,t", "7,9,t,u"}) {
    EXPECT_FALSE(ParseKeeperTask(text).ok()) << text;
  }
}

TEST(KeeperTest, AReportIsReadAsItWasWritten) {
  const absl::StatusOr<KeeperReport> report =
      ParseKeeperReport(FormatKeeperReport({.environment = {"A=1", "B=two\nlines", "C="}}));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->code, 0);
  EXPECT_EQ(report->environment, (std::vector<std::string>{"A=1", "B=two\nlines", "C="}));
  EXPECT_EQ(ParseKeeperReport(FormatKeeperReport({.code = 75}))->code, 75);
  EXPECT_FALSE(ParseKeeperReport("well").ok());
}

TEST(KeeperTest, WhatAShellReadsIsWhatWasMeant) {
  const std::string value = "it's \"a\" $HOME `x` \\ value";
  const std::string script =
      absl::StrCat(ShellExports({"BERTH_T=" + value, "BERTH_U=u"}),
                   "[ \"$BERTH_T\" = \"$1\" ] && [ $BERTH_U = u ] || exit 1\n",
                   ShellRestore({"BERTH_T", "BERTH_U"}, {"BERTH_U=before", "BERTH_TT=other"}),
                   "[ -z \"${BERTH_T+set}\" ] && [ $BERTH_U = before ]");
  sigset_t none;
  ::sigemptyset(&none);
  const absl::StatusOr<pid_t> child =
      SpawnCommand({"sh", "-c", script, "sh", value}, EnvironmentWith({}), none);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(Reap(*child).code, 0);
}

TEST(KeeperTest, AKeeperIsKnownByMoreThanItsNumber) {
  EXPECT_TRUE(absl::IsInvalidArgument(FindKeeper("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FindKeeper("12").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FindKeeper("-12 ab").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FindKeeper("me ab").status()));
  // A process that is there, and no keeper.
  EXPECT_TRUE(absl::IsNotFound(FindKeeper(absl::StrCat(::getpid(), " ab BERTH_SESSION")).status()));
  const absl::StatusOr<std::vector<std::string>> names = NamesOfKeeper("12 ab BERTH_SESSION BERTH_FOLDER");
  ASSERT_TRUE(names.ok());
  EXPECT_EQ(*names, (std::vector<std::string>{"BERTH_SESSION", "BERTH_FOLDER", kKeeperVariable}));
}

}  // namespace
}  // namespace berth::cli
