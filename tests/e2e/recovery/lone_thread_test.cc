// Jobs whose main thread has ended while another thread runs: such a process lives, and /proc shows it as a zombie.

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class LoneThreadTest : public ::testing::Test {
 protected:
  Subprocess Start(const std::vector<std::string>& argv) {
    return Subprocess::Start(
        {.argv = argv,
         .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION", "BERTH_PERMIT_KEEPER"}});
  }
  Subprocess StartRun(std::vector<std::string> words) {
    words.insert(words.begin(), {ProgramPath("client/cli/berth"), "run"});
    return Start(words);
  }
  bool PermitsBecome(uint64_t count) {
    return daemon_.AccountsBecome([count](const Accounts& accounts) { return accounts.permits == count; });
  }

  TestDaemon daemon_{{.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}};
  const std::string job_ = ProgramPath("tests/e2e/recovery/lone_thread");
};

TEST_F(LoneThreadTest, JobCountsAfterRestartUntilItEnds) {
  Subprocess run = StartRun({"--until=tree", "--", job_});
  pid_t job;
  const std::string first = Must(run.ReadLine());
  ASSERT_TRUE(absl::SimpleAtoi(first, &job)) << first;
  run.Kill();
  run.Wait();
  EXPECT_EQ(StateOf(job), 'Z');
  daemon_.KillSupervisorAndBroker();
  daemon_.StartAgain();
  // The next daemon searches for the lifeline's holders, and finds none or this one.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(StartRun({"--no-wait", "--", "/bin/true"}).Wait(), 75) << "the job has ended?";
  EXPECT_EQ(::kill(job, SIGKILL), 0);
  EXPECT_TRUE(PermitsBecome(0));
  daemon_.ExpectAccountsBack();
}

TEST_F(LoneThreadTest, ProcessOpensSessionAndHoldsPermit) {
  Subprocess job = Start({job_});
  Must(job.ReadLine());
  job.WriteLine("acquire");
  EXPECT_EQ(Must(job.ReadLine()), "held");
  EXPECT_TRUE(PermitsBecome(1));
  EXPECT_EQ(StartRun({"--no-wait", "--", "/bin/true"}).Wait(), 75);
  job.WriteLine("end");
  EXPECT_EQ(job.Wait(), 9);
  EXPECT_TRUE(PermitsBecome(0));
  daemon_.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
