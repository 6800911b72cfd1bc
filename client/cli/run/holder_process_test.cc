#include "client/cli/run/holder_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/run/child.h"
#include "common/os/fd_passing.h"
#include "gtest/gtest.h"

namespace berth::cli {
namespace {

TEST(HolderProcessTest, TaskIsParsedAsFormatted) {
  const absl::StatusOr<HolderTask> task =
      ParseHolderTask(FormatHolderTask({.owner = 7, .report = 9, .verdict = 11, .token = "ab12"}));
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->owner, 7);
  EXPECT_EQ(task->report, 9);
  EXPECT_EQ(task->verdict, 11);
  EXPECT_EQ(task->token, "ab12");
  for (const char* const text : {"", "7", "7,9", "7,9,t", "x,9,8,t", "7,y,8,t", "7,9,z,t", "7,9,8,t,u"}) {
    EXPECT_FALSE(ParseHolderTask(text).ok()) << text;
  }
}

TEST(HolderProcessTest, ReportIsParsedAsFormatted) {
  const absl::StatusOr<HolderReport> report =
      ParseHolderReport(FormatHolderReport({.environment = {"A=1", "B=two\nlines", "C="}}));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->code, 0);
  EXPECT_EQ(report->environment, (std::vector<std::string>{"A=1", "B=two\nlines", "C="}));
  const absl::StatusOr<HolderReport> refused =
      ParseHolderReport(FormatHolderReport({.code = 75, .reason = "not-free"}));
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_EQ(refused->code, 75);
  EXPECT_EQ(refused->reason, "not-free");
  EXPECT_FALSE(ParseHolderReport("well").ok());
}

TEST(HolderProcessTest, ShellReadsExportedValueUnchanged) {
  const std::string value = "it's \"a\" $HOME `x` \\ value";
  const std::string script =
      absl::StrCat(ShellExports({"BERTH_T=" + value, "BERTH_U=u"}),
                   "[ \"$BERTH_T\" = \"$1\" ] && [ $BERTH_U = u ] || exit 1\n",
                   ShellRestore({"BERTH_T", "BERTH_U"}, {"BERTH_U=before", "BERTH_TT=other"}),
                   "[ -z \"${BERTH_T+set}\" ] && [ $BERTH_U = before ]");
  const absl::StatusOr<pid_t> child =
      SpawnCommand({"sh", "-c", script, "sh", value}, EnvironmentWith({}), {.signals = ReadSignalSettings()});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(Reap(*child).code, 0);
}

// The terminal's stop and the end of the wait can meet.
TEST(HolderProcessTest, ReportIsReadFromHolderThatEndedWithUnreadMessages) {
  auto ends = SocketPair();
  ASSERT_TRUE(ends.ok()) << ends.status();
  auto& [mine, holders] = *ends;
  const std::string report = FormatHolderReport({.code = 75, .reason = "not-free"});
  SendHolderMessage(mine.get(), HolderMessage::kPause);
  SendHolderMessage(mine.get(), HolderMessage::kContinue);
  ASSERT_TRUE(SendMessage(holders.get(), std::as_bytes(std::span(report))).ok());
  holders.reset();
  const auto stops = TerminalStops::Hold();
  ASSERT_TRUE(stops.ok()) << stops.status();
  const absl::StatusOr<HolderReport> read = AwaitHolderReport(mine.get(), **stops);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->code, 75);
}

TEST(HolderProcessTest, OwnerProcessNeedsFullIdentity) {
  EXPECT_TRUE(absl::IsInvalidArgument(FindHolder("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FindHolder("12").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FindHolder("-12 ab").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FindHolder("me ab").status()));
  // An existing process that is no holder process.
  EXPECT_TRUE(absl::IsNotFound(FindHolder(absl::StrCat(::getpid(), " ab BERTH_SESSION")).status()));
  const absl::StatusOr<std::vector<std::string>> names = NamesOfHolder("12 ab BERTH_SESSION BERTH_FOLDER");
  ASSERT_TRUE(names.ok());
  EXPECT_EQ(*names, (std::vector<std::string>{"BERTH_SESSION", "BERTH_FOLDER", kHolderVariable}));
  // A shell evaluates the names.
  for (const char* const name : {"x;touch${IFS}y", "$(id)", "`id`", "a|b", "1X", "A=B", "A\nid", "-f"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(NamesOfHolder(absl::StrCat("12 ab BERTH_SESSION ", name)).status())) << name;
  }
}

// Any user can start a process with that command line.
TEST(HolderProcessTest, ProcessOfAnotherUserIsNoOwnerProcess) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: starts a process of another user";
  for (const bool another : {false, true}) {
    std::vector<std::string> command = {"sh", "-c", "kill -STOP $$", "--keep=7,9,11,ab"};
    if (another) command.insert(command.begin(), {"setpriv", "--reuid=7001", "--clear-groups"});
    const absl::StatusOr<pid_t> child = SpawnCommand(command, EnvironmentWith({}), {.signals = ReadSignalSettings()});
    ASSERT_TRUE(child.ok()) << child.status();
    // By then the process has its command line and its user.
    siginfo_t stopped = {};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(*child), &stopped, WSTOPPED | WNOWAIT), 0);
    const absl::StatusOr<FoundHolder> found = FindHolder(absl::StrCat(*child, " ab BERTH_SESSION"));
    EXPECT_EQ(found.ok(), !another) << found.status();
    if (another) {
      EXPECT_TRUE(absl::IsFailedPrecondition(found.status())) << found.status();
      EXPECT_TRUE(absl::StrContains(found.status().message(), "belongs to uid 7001, and this is uid 0: run"))
          << found.status();
      const absl::Status other = FindHolder(absl::StrCat(*child, " cd BERTH_SESSION")).status();
      EXPECT_TRUE(absl::IsNotFound(other)) << "a later process of that number: " << other;
    }
    ::kill(*child, SIGKILL);
    EXPECT_EQ(Reap(*child).signal, SIGKILL);
  }
}

}  // namespace
}  // namespace berth::cli
