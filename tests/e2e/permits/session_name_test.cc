// BERTH_SESSION across processes: it names one session, and no other session by a reused pid or fd number.

#include <sched.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Releases the inherited session.
constexpr char kLetGo[] =
    "IFS=, read lifeline credentials rest <<<$BERTH_SESSION; exec {lifeline}>&- {credentials}>&-; ";
// Prints its session's name, and lives until its input ends.
constexpr char kSayName[] = "echo $BERTH_SESSION; read line; true";

// The pool has one permit.
class SessionNameTest : public ::testing::Test {
 protected:
  SessionNameTest() : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}) {}

  void TearDown() override { daemon_.ExpectAccountsBack(); }

  // `session`: the value of BERTH_SESSION; empty for none.
  Subprocess Start(std::vector<std::string> argv, const std::string& session = "",
                   bool pid_namespace = false) {
    argv.insert(argv.begin(), {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    return Subprocess::Start(
        {.argv = std::move(argv),
         .environment = {absl::StrCat("BERTH=", berth_), absl::StrCat("BERTH_FOLDER=", daemon_.folder()),
                         session.empty() ? "BERTH_SESSION" : "BERTH_SESSION=" + session,
                         "BERTH_PERMIT_KEEPER"},
         .pid_namespace = pid_namespace});
  }
  Subprocess StartRun(std::vector<std::string> words, const std::string& session = "") {
    words.insert(words.begin(), {berth_, "run"});
    return Start(std::move(words), session);
  }
  // Runs the program to its end. Returns its exit code; its output is in said_.
  int Run(std::vector<std::string> argv, const std::string& session = "") {
    Subprocess process = Start(std::move(argv), session);
    said_ = process.ReadAll();
    return process.Wait();
  }
  int TryRun(const std::string& session) {
    return Run({berth_, "run", "--no-wait", "--", "/bin/echo", "in"}, session);
  }

  // Returns the name of an ended session, as its `berth run` set it.
  std::string EndedName() {
    Subprocess run = StartRun({"--", "/bin/bash", "-c", kSayName});
    std::string name = Must(run.ReadLine());
    run.CloseInput();
    EXPECT_EQ(run.Wait(), 0);
    EXPECT_TRUE(SessionsBecome(1));
    return name;
  }
  bool SessionsBecome(uint64_t count) {
    return daemon_.AccountsBecome([count](const Accounts& accounts) { return accounts.sessions == count; });
  }

  const std::string berth_ = ProgramPath("client/cli/berth");
  TestDaemon daemon_;
  std::string said_;
};

// Every way by which a process enters a session.
struct Way {
  const char* name;
  std::vector<std::string> argv;
};
std::vector<Way> Ways() {
  const std::string berth = ProgramPath("client/cli/berth");
  return {{"run", {berth, "run", "--no-wait", "--", "/bin/true"}},
          {"exec", {berth, "run", "--no-wait", "--exec", "--", "/bin/true"}},
          {"tree", {berth, "run", "--no-wait", "--until=tree", "--", "/bin/true"}},
          {"ctest-run", {berth, "ctest-run", "--no-wait", "--", "/bin/true"}},
          {"acquire", {"/bin/sh", "-c", "eval \"$($BERTH acquire --shell --no-wait)\""}},
          {"acquire as JSON", {"/bin/sh", "-c", "$BERTH --json acquire --no-wait --owner $$ >/dev/null"}},
          {"SDK",
           {"/bin/sh", "-c",
            absl::StrCat("printf 'open\\nacquire p try\\n' | ", ProgramPath("tests/support/actor/actor"),
                         " | grep -c ^ok | grep -qx 2")}},
          {"status", {berth, "status"}}};
}

TEST_F(SessionNameTest, EndedSessionNameIsIgnoredByEveryVerb) {
  const std::string ended = EndedName();
  for (const Way& way : Ways()) {
    EXPECT_EQ(Run(way.argv, ended), 0) << way.name << ": " << said_;
    ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) {
      return accounts.permits == 0 && accounts.sessions == 1;
    })) << way.name;
  }
  // The command nests in nothing: the permit of a concurrent job belongs to that job.
  Subprocess job = StartRun({"--", "/bin/cat"});
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 1; }));
  for (const Way& way : Ways()) {
    if (absl::string_view(way.name) == "status") continue;
    EXPECT_NE(Run(way.argv, ended), 0) << way.name << ": " << said_;
  }
  EXPECT_EQ(daemon_.TakeAccounts().permits, 1u);
  job.CloseInput();
  EXPECT_EQ(job.Wait(), 0);
}

TEST_F(SessionNameTest, SessionNameJoinsOnlyItsSession) {
  const std::vector<std::string> ended = absl::StrSplit(EndedName(), ',');
  Subprocess job = StartRun({"--", "/bin/bash", "-c", kSayName});
  const std::vector<std::string> living = absl::StrSplit(Must(job.ReadLine()), ',');
  ASSERT_EQ(living.size(), 6u);
  EXPECT_EQ(TryRun(absl::StrJoin(living, ",")), 0) << "by the opener: " << said_;
  const auto with = [&](size_t part, const std::string& value) {
    std::vector<std::string> name = living;
    name[part] = value;
    return absl::StrJoin(name, ",");
  };
  const struct {
    const char* what;
    std::string name;
    int code;
  } rows[] = {
      {"the opener's pid came round", with(5, ended[5]), 75},
      {"a session that never was", with(5, "4711"), 75},
      {"the opener is gone, its session lives", with(2, "999999999"), 125},
      {"fds of something else, of a session that lives", with(1, "0"), 125},
      {"another PID namespace", with(4, "1"), 125},
      {"an earlier version's name: two fds", absl::StrCat(living[0], ",", living[1]), 125},
      {"an earlier version's name, with the pid of a run",
       absl::StrCat(living[0], ",", living[1], ",", living[2]), 125},
      {"no name", "nonsense", 125},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(TryRun(row.name), row.code) << row.what << ": " << said_;
    EXPECT_TRUE(row.code != 125 || absl::StrContains(said_, "unset")) << row.what << ": " << said_;
  }
  EXPECT_EQ(daemon_.TakeAccounts().permits, 1u);
  job.CloseInput();
  EXPECT_EQ(job.Wait(), 0);
}

TEST_F(SessionNameTest, ReusedPidIsNotTakenForOwnerProcess) {
  if (!MayUnshare(CLONE_NEWPID) || OtherUser().has_value())
    GTEST_SKIP() << "needs the right to make a PID namespace, and to choose its next pid";
  // The second run gets the pid of the first, and with it the same fd numbers.
  constexpr char kScript[] =
      "old=$($BERTH run -- sh -c 'echo $BERTH_SESSION'); pid=$(echo $old | cut -d, -f3)\n"
      "mkfifo $BERTH_FOLDER/../fifo; exec 3<>$BERTH_FOLDER/../fifo\n"
      "echo $((pid - 1)) > /proc/sys/kernel/ns_last_pid\n"
      "$BERTH run -- sh -c 'echo $BERTH_SESSION >&3; exec sleep 600' &\n"
      "read new <&3\n"
      "[ $(echo $new | cut -d, -f1-3) = $(echo $old | cut -d, -f1-3) ] || echo no pid came round: $old $new\n"
      "BERTH_SESSION=$old $BERTH run --no-wait -- echo a stranger runs; echo ended with $?; kill $!; wait $!";
  Subprocess script = Start({"/bin/bash", "-c", kScript}, "", /*pid_namespace=*/true);
  const std::string said = script.ReadAll();
  script.Wait();
  EXPECT_TRUE(absl::StrContains(said, "ended with 75\n")) << said;
  EXPECT_FALSE(absl::StrContains(said, "a stranger runs") || absl::StrContains(said, "no pid came round"))
      << said;
}

TEST_F(SessionNameTest, FdsOfOtherRunAreNotTakenForNamedSession) {
  const std::string ended = EndedName();
  // The ended session's numbers equal those of the run that contains this one.
  const std::string script =
      absl::StrCat("IFS=, read a b rest <<<$BERTH_SESSION; IFS=, read c d rest <<<", ended,
                   "; [ $a,$b = $c,$d ] || exit 9; BERTH_SESSION=", ended, " $BERTH run --no-wait -- true");
  EXPECT_EQ(Run({berth_, "run", "--", "/bin/bash", "-c", script}), 75) << said_;
}

TEST_F(SessionNameTest, ProcessOutlivingItsRunOpensNewSession) {
  for (const char* const way : {"--until=command", "--exec"}) {
    // With the inherited fds, and without.
    for (const char* const before : {"", kLetGo}) {
      Subprocess run =
          StartRun({way, "--", "/bin/bash", "-c",
                    absl::StrCat("exec 9<&0; (", before, "read line <&9; $BERTH run -- echo again) & true")});
      EXPECT_EQ(run.Wait(), 0);
      // The tree's session lives on in a process that holds its fds.
      const bool lives = absl::string_view(way) == "--exec" && absl::string_view(before).empty();
      ASSERT_TRUE(SessionsBecome(lives ? 2 : 1)) << way << before;
      run.WriteLine("go on");
      EXPECT_EQ(run.ReadAll(), "again\n") << way << before;
      ASSERT_TRUE(SessionsBecome(1));
    }
  }
}

TEST_F(SessionNameTest, UnjoinableLivingSessionIsNotReplaced) {
  // The tree holds the session; the process that the name refers to has ended.
  Subprocess run = StartRun({"--until=tree", "--", "/bin/bash", "-c", kSayName});
  const std::string name = Must(run.ReadLine());
  run.Kill();
  run.Wait();
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.processes == 1; }));
  for (const Way& way : Ways()) {
    // `status` joins no session.
    const bool only_looks = absl::string_view(way.name) == "status";
    EXPECT_EQ(Run(way.argv, name) == 0, only_looks) << way.name << ": " << said_;
    if (absl::string_view(way.name) == "run") {
      EXPECT_TRUE(absl::StrContains(said_, "names a session that this process did not inherit")) << said_;
    }
  }
  run.CloseInput();
  EXPECT_TRUE(SessionsBecome(1));
  EXPECT_EQ(TryRun(name), 0) << said_;
}

TEST_F(SessionNameTest, SessionFdsAvoidScriptFdNumbers) {
  constexpr char kTake[] = "for n in 3 4 5 6 7 8 9; do eval \"exec $n>/dev/null\"; done; exec 10>&1 255>&1; ";
  for (const char* const way : {"--until=command", "--until=tree", "--exec"}) {
    EXPECT_EQ(Run({berth_, "run", way, "--", "/bin/bash", "-c",
                   absl::StrCat(kTake, "$BERTH run --no-wait -- echo nested")}),
              0)
        << way << said_;
    EXPECT_EQ(said_, "nested\n") << way;
  }
  // The processes left behind hold the tree's permit.
  Subprocess run =
      StartRun({"--until=tree", "--", "/bin/bash", "-c", absl::StrCat(kTake, "echo in; read line; exit 0")});
  EXPECT_EQ(Must(run.ReadLine()), "in");
  run.Kill();
  run.Wait();
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.processes == 1; }));
  EXPECT_EQ(TryRun(""), 75);
  run.CloseInput();
  EXPECT_TRUE(SessionsBecome(1));
}

TEST_F(SessionNameTest, LowFdLimitLeavesFdsForSession) {
  for (const int limit : {48, 64, 200}) {
    EXPECT_EQ(Run({"/bin/bash", "-c",
                   absl::StrCat("ulimit -Sn ", limit,
                                "; $BERTH run -- bash -c 'IFS=, read a b rest <<<$BERTH_SESSION; [ $a -ge ",
                                limit / 2, " ] && [ $b -lt ", limit,
                                " ] && [ -e /proc/self/fd/$b ] && $BERTH run --no-wait -- true'")}),
              0)
        << limit << ": " << said_;
  }
}

TEST_F(SessionNameTest, OwnerProcessIgnoresFdsOfStaleName) {
  // The numbers of an ended session now belong to a pipe, whose reader waits for its end.
  std::vector<std::string> name = absl::StrSplit(EndedName(), ',');
  name[0] = "7";
  name[1] = "8";
  Subprocess shell =
      Start({"/bin/bash", "-c",
             "exec 7>&1 8>&1; eval \"$($BERTH acquire --shell)\"; echo $?; exec 7>&- 8>&- >/dev/null 2>&1; "
             "read line; true"},
            absl::StrJoin(name, ","));
  EXPECT_EQ(shell.ReadAll(), "0\n");
  shell.CloseInput();
  EXPECT_EQ(shell.Wait(), 0);
}

}  // namespace
}  // namespace berth::testing
