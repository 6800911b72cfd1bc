// A daemon in a PID namespace of its own sees none of its clients' processes. Their leases continue after a stop and
// start, and stay counted as long as the daemon cannot tell that they are over.

#include <sched.h>
#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/session.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class UnseenHoldersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!MayUnshare(CLONE_NEWPID)) GTEST_SKIP() << "needs the right to make PID namespaces";
  }

  // The next daemon is in another PID namespace.
  void Restart(TestDaemon& daemon) {
    daemon.Stop();
    daemon.StartAgain();
  }
  Subprocess Run(const TestDaemon& daemon, const std::string& words) {
    return Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("exec 2>&1; exec ", ProgramPath("client/cli/berth"), " run ", words)},
         .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()), "BERTH_SESSION"}});
  }
  bool IsFull(TestDaemon& daemon) {
    const uint64_t sessions = daemon.TakeAccounts().sessions;
    const bool full = Run(daemon, "--no-wait -- /bin/true").Wait() == 75;
    // Nothing would show the end of the process to a daemon that starts before this one has noticed it.
    EXPECT_TRUE(daemon.AccountsBecome([&](const Accounts& accounts) { return accounts.sessions <= sessions; }));
    return full;
  }
  // Returns whether the daemon knows the session; empty if it gives no answer.
  static std::optional<bool> Knows(TestDaemon& daemon, SessionId session) {
    const absl::StatusOr<v1::ListSessionsResponse> answer = daemon.inspector().ListSessions();
    if (!answer.ok()) return std::nullopt;
    return std::any_of(answer->sessions().begin(), answer->sessions().end(),
                       [&](const v1::Session& known) { return known.id() == session.value(); });
  }
  bool PermitsBecome(TestDaemon& daemon, uint64_t count) {
    return daemon.AccountsBecome([count](const Accounts& accounts) { return accounts.permits == count; });
  }
  // A session without a lease whose client ended unseen, directly before the stop, ends before a test gives up on that.
  TestDaemonOptions options_ = {.environment = {"BERTH_GPU_TEST_CONCURRENCY=1", "BERTH_TEST_UNSEEN_MS=30000"},
                                .pid_namespace = true};
};

TEST_F(UnseenHoldersTest, HoldersResumeAndReleaseAsElsewhere) {
  TestDaemon daemon(options_);
  for (const int restarts : {1, 2}) {
    SCOPED_TRACE(restarts);
    Actor holder(daemon);
    holder.Do("acquire p");
    for (int i = 0; i < restarts; ++i) Restart(daemon);
    EXPECT_TRUE(IsFull(daemon));
    EXPECT_TRUE(Ok(holder.Ask("status"))) << "it heard of no end";
    EXPECT_TRUE(Ok(holder.Ask("release p")));
    EXPECT_TRUE(PermitsBecome(daemon, 0));
    holder.Quit();

    Subprocess run = Run(daemon, "--on-revoke TERM -- /bin/sh -c 'echo in; read line; exit 9'");
    ASSERT_EQ(Must(run.ReadLine()), "in");
    for (int i = 0; i < restarts; ++i) Restart(daemon);
    EXPECT_TRUE(IsFull(daemon));
    run.WriteLine("go");
    EXPECT_EQ(run.Wait(), 9) << "the command's own code";
    EXPECT_EQ(run.ReadAll(), "") << "nothing was said";
    EXPECT_TRUE(PermitsBecome(daemon, 0));
    daemon.ExpectAccountsBack();
  }
}

TEST_F(UnseenHoldersTest, PermitStaysCountedUntilOperatorEndsSession) {
  TestDaemon daemon(options_);
  const auto end_by_operator = [&] {
    EXPECT_TRUE(IsFull(daemon));
    const v1::ListPermitsResponse permits = Must(daemon.inspector().ListPermits());
    ASSERT_EQ(permits.permits_size(), 1);
    EXPECT_TRUE(Ok(daemon.inspector().EndSession(SessionId(permits.permits(0).session()))));
    EXPECT_TRUE(PermitsBecome(daemon, 0));
    daemon.ExpectAccountsBack();
  };
  Subprocess run = Run(daemon, "--until=tree -- /bin/sh -c 'echo $$; read line'");
  int32_t command;
  ASSERT_TRUE(absl::SimpleAtoi(Must(run.ReadLine()), &command));
  run.Kill();
  run.Wait();
  Restart(daemon);
  EXPECT_TRUE(IsFull(daemon)) << "the command of the killed wrapper lives";
  Restart(daemon);
  EXPECT_TRUE(IsFull(daemon)) << "and is no process of the third daemon's namespace either";
  // Nothing shows this end to the daemon.
  ::kill(command, SIGKILL);
  end_by_operator();

  // A process that has resumed may have descendants that hold the session.
  Actor holder(daemon);
  holder.Do("acquire p");
  Restart(daemon);
  EXPECT_TRUE(Ok(holder.Ask("status")));
  holder.Kill();
  end_by_operator();
}

TEST_F(UnseenHoldersTest, SessionWithoutLeaseEndsAlone) {
  options_.environment.back() = "BERTH_TEST_UNSEEN_MS=300";
  TestDaemon daemon(options_);
  Actor idle(daemon), holder(daemon);
  const SessionId empty = idle.session(), held = holder.session();
  holder.Do("acquire p");
  daemon.Stop();
  // They cannot return, and nothing shows their end to the next daemon.
  idle.Kill();
  holder.Kill();
  daemon.StartAgain();
  EXPECT_TRUE(Eventually([&] { return Knows(daemon, empty) == false; }));
  EXPECT_TRUE(Eventually([&] { return Knows(daemon, held) == true; }));
  EXPECT_TRUE(IsFull(daemon));
  EXPECT_TRUE(Ok(daemon.inspector().EndSession(held)));
  EXPECT_TRUE(PermitsBecome(daemon, 0));
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
