// Waiters of a daemon in a PID namespace of its own, which cannot look at its clients' processes: the stopped ones
// among them cost the next waiter one limit together.

#include <sched.h>
#include <signal.h>

#include <cstdint>
#include <string>
#include <vector>

#include "berth/v1/history.pb.h"
#include "client/sdk/admin/history.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class UnseenWaitersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!MayUnshare(CLONE_NEWPID)) GTEST_SKIP() << "needs the right to make PID namespaces";
  }
  static bool WaitersBecome(TestDaemon& daemon, uint64_t count) {
    return daemon.AccountsBecome([count](const Accounts& accounts) { return accounts.waiters == count; });
  }
  // Returns the number of permits that ended so.
  static int CountEnds(TestDaemon& daemon, v1::HistoryLease::End end) {
    v1::ListHistoryRequest request;
    request.set_kind(v1::HistoryLease::PERMIT);
    const v1::ListHistoryResponse answer = Must(ListHistory(daemon.admin_session(), request, 1'000));
    int count = 0;
    for (const v1::HistoryLease& lease : answer.leases()) count += lease.end() == end ? 1 : 0;
    return count;
  }
};

TEST_F(UnseenWaitersTest, HundredStoppedWaitersCostNoMoreThanOne) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}, .pid_namespace = true});
  const BerthCommand berth(daemon.folder());
  Actor holder(daemon);
  holder.Do("acquire p");
  std::vector<Subprocess> stopped;
  const uint64_t count = GateOrSoak(8, 100);
  for (uint64_t i = 0; i < count; ++i) {
    // Every other one is a gang.
    stopped.push_back(berth.Start(i % 2 == 0 ? std::vector<std::string>{"run", "--quiet", "--", "/bin/true"}
                                             : std::vector<std::string>{"run", "--quiet", "--gpus", "1", "--",
                                                                        "/bin/true"}));
    ASSERT_TRUE(WaitersBecome(daemon, i + 1));
  }
  Actor next(daemon);
  next.SendLine("acquire p");
  ASSERT_TRUE(WaitersBecome(daemon, count + 1));
  for (const Subprocess& process : stopped) {
    process.Signal(SIGSTOP);
    ASSERT_TRUE(Eventually([&] { return StateOf(process.pid()) == 'T'; }));
  }
  holder.Do("release p");
  EXPECT_TRUE(Ok(next.Answer()));
  EXPECT_LE(CountEnds(daemon, v1::HistoryLease::NOT_TAKEN_UP), 1) << "of the stopped processes";
  for (const Subprocess& process : stopped) process.Signal(SIGCONT);
  next.Do("release p");
  for (Subprocess& process : stopped) EXPECT_EQ(process.Wait(), 0);
  next.Quit();
  holder.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
