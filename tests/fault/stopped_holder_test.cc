// A holder that is stopped without dying: it retains its permit, every client sees since when, and it continues as if
// nothing had happened.

#include <signal.h>

#include <string>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

TEST(StoppedHolderTest, StoppedHolderRetainsPermitAndShowsAge) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  const absl::Time before = absl::Now();
  holder.Do("acquire p label=stuck");
  holder.process().Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(holder.pid()) == 'T'; }));
  Actor waiter(daemon);
  EXPECT_TRUE(Refused(waiter.Ask("acquire p wait_ms=100"), Reason::kWaitTimedOut));
  waiter.SendLine("acquire p");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));

  const v1::ListPermitsResponse permits = Must(daemon.inspector().ListPermits());
  ASSERT_EQ(permits.permits_size(), 1);
  EXPECT_EQ(permits.permits(0).label(), "stuck");
  EXPECT_EQ(permits.permits(0).process().pid(), holder.pid());
  const google::protobuf::Timestamp& granted = permits.permits(0).grant_time();
  const absl::Time since = absl::FromUnixSeconds(granted.seconds()) + absl::Nanoseconds(granted.nanos());
  EXPECT_GE(since, before - absl::Seconds(1));
  EXPECT_LE(since, absl::Now());
  ASSERT_EQ(permits.waiters_size(), 1);
  EXPECT_EQ(permits.waiters(0).process().pid(), waiter.pid());

  holder.process().Signal(SIGCONT);
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(waiter.Answer()));
  holder.Quit();
  waiter.Quit();
  daemon.ExpectAccountsBack();
}

TEST(StoppedHolderTest, StoppedImporterQuarantinesBlockUntilDeath) {
  TestDaemon daemon;
  Actor owner(daemon);
  Actor importer(daemon);
  const std::string handle = owner.Do("allocate b 1000000");
  owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
  importer.Do(absl::StrCat("import b ", handle));
  importer.process().Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(importer.pid()) == 'T'; }));
  EXPECT_TRUE(Ok(owner.Ask("free b")));
  EXPECT_EQ(daemon.TakeAccounts().quarantined, uint64_t{2} << 20);
  EXPECT_TRUE(Ok(owner.Ask("allocate c 1000000")));
  // SIGKILL ends a stopped process as well.
  importer.Kill();
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.quarantined == 0; }));
  owner.Quit();
  daemon.ExpectAccountsBack();
}

TEST(StoppedHolderTest, StoppedClientDelaysNoOthers) {
  TestDaemon daemon;
  Actor stopped(daemon);
  stopped.Do("allocate b 4096");
  stopped.SendLine("allocate c 4096");
  stopped.process().Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(stopped.pid()) == 'T'; }));
  Actor other(daemon);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Ok(other.Ask("allocate b 4096")));
    EXPECT_TRUE(Ok(other.Ask("acquire p")));
    EXPECT_TRUE(Ok(other.Ask("release p")));
    EXPECT_TRUE(Ok(other.Ask("drop b")));
  }
  stopped.process().Signal(SIGCONT);
  EXPECT_TRUE(Ok(stopped.Answer()));
  stopped.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
