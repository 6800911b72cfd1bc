// `berth acquire` that stops while it waits: its holder process, in a session of its own, waits on its behalf.

#include <signal.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class StoppedAcquireTest : public ::testing::Test {
 protected:
  StoppedAcquireTest() : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}) {}

  void TearDown() override { daemon_.ExpectAccountsBack(); }

  bool WaitersBecome(uint64_t count) {
    return daemon_.AccountsBecome([count](const Accounts& accounts) { return accounts.waiters == count; });
  }
  // Returns the waiters in the order of the queue.
  std::vector<v1::Waiter> Waiters() {
    const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits());
    return {permits.waiters().begin(), permits.waiters().end()};
  }
  bool FirstWaiterIsStopped() {
    const std::vector<v1::Waiter> waiters = Waiters();
    return !waiters.empty() && waiters[0].stopped();
  }

  TestDaemon daemon_;
};

// A job that is `berth acquire` itself, for the shell that started it. The shell says how the job ended.
class AcquireJob {
 public:
  explicit AcquireJob(const TestDaemon& daemon, const std::string& options = "")
      : shell_(Subprocess::Start(
            {.argv = {"/bin/bash", "-c",
                      absl::StrCat("set -m; \"$0\" acquire --quiet --shell --owner $$ ", options,
                                   " >/dev/null & echo $!; read line; "
                                   "while wait $!; kill -0 $! 2>/dev/null; do :; done; wait $!; echo $?; read line"),
                      ProgramPath("client/cli/berth")},
             .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()), "BERTH_SESSION"}})) {
    EXPECT_TRUE(absl::SimpleAtoi(Must(shell_.ReadLine()), &pid_));
  }
  pid_t pid() const { return pid_; }
  void Stop(int signal) const {
    ::kill(-pid_, signal);
    ASSERT_TRUE(Eventually([&] { return StateOf(pid_) == 'T'; })) << signal;
  }
  void Continue() const { ::kill(-pid_, SIGCONT); }
  // Waits for the end of `berth acquire`. Returns its exit code; 128 and the signal for a signal.
  std::string AwaitEnd() {
    shell_.WriteLine("");
    return Must(shell_.ReadLine());
  }
  // The shell, which owns what was acquired, ends.
  void End() {
    shell_.CloseInput();
    EXPECT_EQ(shell_.Wait(), 1);
  }

 private:
  Subprocess shell_;
  pid_t pid_ = 0;
};

TEST_F(StoppedAcquireTest, StoppedAcquireLeavesQueueAndReturnsToPlace) {
  for (const int signal : {SIGTSTP, SIGTTIN, SIGTTOU}) {
    for (const char* const options : {"", "--gpus 1"}) {
      SCOPED_TRACE(absl::StrCat(signal, " ", options));
      Actor holder(daemon_), next(daemon_), last(daemon_);
      holder.Do("acquire p");
      AcquireJob job(daemon_, options);
      ASSERT_TRUE(WaitersBecome(1));
      const pid_t waiter = Waiters()[0].process().pid();
      job.Stop(signal);
      // No look at the process is needed. The holder process is in a session of its own, and runs.
      EXPECT_TRUE(FirstWaiterIsStopped());
      EXPECT_NE(StateOf(waiter), 'T');
      next.SendLine("acquire p");
      ASSERT_TRUE(WaitersBecome(2));
      holder.Do("release p");
      EXPECT_TRUE(Ok(next.Answer()));
      last.SendLine("acquire p");
      ASSERT_TRUE(WaitersBecome(2));
      EXPECT_EQ(Waiters()[0].process().pid(), waiter);
      job.Continue();
      ASSERT_TRUE(Eventually([&] { return !FirstWaiterIsStopped(); }));
      EXPECT_EQ(Waiters()[0].process().pid(), waiter);
      next.Do("release p");
      EXPECT_EQ(job.AwaitEnd(), "0");
      job.End();
      EXPECT_TRUE(Ok(last.Answer()));
      for (Actor* const actor : {&holder, &next, &last}) actor->Quit();
    }
  }
}

// The end of a terminal sends SIGHUP and SIGCONT.
TEST_F(StoppedAcquireTest, EndOfStoppedAcquireEndsItsWait) {
  for (const std::vector<int>& signals : {std::vector<int>{SIGKILL}, std::vector<int>{SIGHUP, SIGCONT}}) {
    SCOPED_TRACE(signals[0]);
    Actor holder(daemon_);
    holder.Do("acquire p");
    AcquireJob job(daemon_);
    ASSERT_TRUE(WaitersBecome(1));
    const pid_t waiter = Waiters()[0].process().pid();
    job.Stop(SIGTSTP);
    for (const int signal : signals) ::kill(-job.pid(), signal);
    EXPECT_TRUE(WaitersBecome(0));
    EXPECT_TRUE(Eventually([&] { return !IsAlive(waiter); }));
    EXPECT_EQ(job.AwaitEnd(), absl::StrCat(128 + signals[0]));
    job.End();
    holder.Quit();
  }
}

// The holder process does not answer.
TEST_F(StoppedAcquireTest, TerminalStopsAcquireOfStoppedHolderProcess) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  AcquireJob job(daemon_);
  ASSERT_TRUE(WaitersBecome(1));
  const pid_t waiter = Waiters()[0].process().pid();
  ::kill(waiter, SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(waiter) == 'T'; }));
  job.Stop(SIGTSTP);
  ::kill(waiter, SIGCONT);
  job.Continue();
  holder.Do("release p");
  EXPECT_EQ(job.AwaitEnd(), "0");
  job.End();
  holder.Quit();
}

// Signals to `berth acquire` alone do not reach the holder process. `seen`: the unit comes free once the waiter is
// skipped, or at once after the stop.
TEST_F(StoppedAcquireTest, StoppedAcquireHoldsNothing) {
  for (const bool seen : {true, false}) {
    SCOPED_TRACE(seen);
    Actor holder(daemon_), next(daemon_);
    holder.Do("acquire p");
    Subprocess shell = Subprocess::Start(
        {.argv = {"/bin/bash", "-c",
                  "\"$0\" acquire --quiet --shell --owner $$ >/dev/null & echo $!; wait $!; echo acquired; "
                  "read line; true",
                  ProgramPath("client/cli/berth")},
         .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
    pid_t acquire = 0;
    ASSERT_TRUE(absl::SimpleAtoi(Must(shell.ReadLine()), &acquire));
    ASSERT_TRUE(WaitersBecome(1));
    const pid_t waiter = Waiters()[0].process().pid();
    next.SendLine("acquire p");
    ASSERT_TRUE(WaitersBecome(2));
    ::kill(acquire, SIGSTOP);
    ASSERT_TRUE(Eventually([&] { return StateOf(acquire) == 'T'; }));
    if (seen) ASSERT_TRUE(Eventually([&] { return FirstWaiterIsStopped(); }));
    holder.Do("release p");
    EXPECT_TRUE(Ok(next.Answer()));
    EXPECT_NE(StateOf(waiter), 'T');
    ::kill(acquire, SIGCONT);
    next.Do("release p");
    EXPECT_EQ(Must(shell.ReadLine()), "acquired");
    shell.CloseInput();
    EXPECT_EQ(shell.Wait(), 0);
    holder.Quit();
    next.Quit();
  }
}

TEST_F(StoppedAcquireTest, EndOfOwnerEndsWaitOfStoppedAcquire) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  Subprocess owner = Subprocess::Start({.argv = {"/bin/cat"}});
  Subprocess acquire = Subprocess::Start(
      {.argv = {ProgramPath("client/cli/berth"), "acquire", "--quiet", "--json", "--owner", absl::StrCat(owner.pid())},
       .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
  ASSERT_TRUE(WaitersBecome(1));
  ::kill(acquire.pid(), SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return FirstWaiterIsStopped(); }));
  owner.CloseInput();
  owner.Wait();
  EXPECT_TRUE(WaitersBecome(0));
  ::kill(acquire.pid(), SIGCONT);
  acquire.Wait();
  holder.Quit();
}

}  // namespace
}  // namespace berth::testing
