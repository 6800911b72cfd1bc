// Budgets, waits for capacity and reservations across real processes.

#include <signal.h>
#include <unistd.h>

#include <string>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

v1::SetBudgetRequest LimitOf(SessionId session, uint64_t bytes) {
  v1::SetBudgetRequest request;
  request.set_session(session.value());
  request.set_limit_bytes(bytes);
  return request;
}

TEST(BudgetsTest, EveryLayerBindsAndIsNamed) {
  TestDaemon daemon({.flags = {"--device-budget=16MiB"}});
  Actor a(daemon), b(daemon);
  ASSERT_TRUE(Ok(daemon.inspector().SetBudget(LimitOf(a.session(), 4 * kMiB))));
  v1::SetBudgetRequest tenant;
  tenant.mutable_tenant()->set_uid(ClientUid());
  tenant.set_limit_bytes(8 * kMiB);
  ASSERT_TRUE(Ok(daemon.inspector().SetBudget(tenant)));
  a.Do(absl::StrCat("allocate x ", 4 * kMiB));
  EXPECT_TRUE(Refused(a.Ask("allocate y 1"), Reason::kOverBudget,
                      {{"layer", "session"}, {"current", absl::StrCat(4 * kMiB)}, {"remaining", "0"}}));
  b.Do(absl::StrCat("allocate x ", 4 * kMiB));
  EXPECT_TRUE(Refused(b.Ask("allocate y 1"), Reason::kOverBudget,
                      {{"layer", "tenant"}, {"limit", absl::StrCat(8 * kMiB)}, {"remaining", "0"}}));
  int sessions = 0;
  const v1::ListBudgetsResponse accounts = Must(daemon.inspector().ListBudgets());
  for (const v1::Budget& budget : accounts.budgets()) {
    if (budget.layer() == v1::Budget::TENANT) {
      EXPECT_EQ(budget.bytes().live(), 8 * kMiB);
      EXPECT_EQ(budget.peak_bytes(), 8 * kMiB);
      EXPECT_EQ(budget.allocations_total(), 2u);
      EXPECT_EQ(budget.refused_total(), 1u);
    }
    sessions += budget.layer() == v1::Budget::SESSION && budget.bytes().live() == 4 * kMiB ? 1 : 0;
  }
  EXPECT_EQ(sessions, 2);
  a.Kill();
  // A dead process's bytes are no longer charged to its tenant.
  EXPECT_TRUE(Eventually([&] { return Ok(b.Ask("allocate y 1")); }));
  b.Quit();
  daemon.ExpectAccountsBack();
}

TEST(BudgetsTest, ByteWaiterGetsReleasedOrOrphanedBytes) {
  TestDaemon daemon({.flags = {"--device-budget=8MiB"}});
  Actor holder(daemon), waiter(daemon);
  holder.Do(absl::StrCat("allocate x ", 8 * kMiB));
  waiter.SendLine(absl::StrCat("allocate x ", 8 * kMiB, " wait=30s"));
  // The waiter's request waits; a request that may not wait is refused.
  EXPECT_TRUE(Refused(holder.Ask("allocate y 1"), Reason::kOverBudget));
  holder.Do("drop x");
  EXPECT_TRUE(Ok(waiter.Answer()));
  holder.SendLine(absl::StrCat("allocate x ", 8 * kMiB, " wait=30s"));
  waiter.Kill();
  EXPECT_TRUE(Ok(holder.Answer()));
  Actor late(daemon);
  EXPECT_TRUE(Refused(late.Ask("allocate x 1 wait=50ms"), Reason::kWaitTimedOut,
                      {{"layer", "device"}, {"remaining", "0"}}));
  late.Quit();
  holder.Quit();
  daemon.ExpectAccountsBack();
}

TEST(BudgetsTest, StoppedWaiterDelaysNoOthersKilledWaiterLeaves) {
  TestDaemon daemon({.flags = {"--device-budget=8MiB"}});
  const std::string socket = daemon.folder() + "/berthd.sock";
  Actor holder(daemon), waiter(daemon), other(daemon);
  holder.Do(absl::StrCat("allocate x ", 4 * kMiB));
  holder.Do(absl::StrCat("allocate y ", 4 * kMiB));
  const size_t connections = CountConnections(socket);
  waiter.SendLine(absl::StrCat("allocate x ", 8 * kMiB, " wait=60s"));
  // The waiter's first call is in transit, and so arrives before a later call is answered.
  ASSERT_TRUE(Eventually([&] { return CountConnections(socket) > connections; }));
  EXPECT_TRUE(Refused(other.Ask("allocate x 1"), Reason::kOverBudget));
  ASSERT_EQ(::kill(waiter.pid(), SIGSTOP), 0);
  holder.Do("drop y");
  // Half of the requested bytes are free, and no active waiter claims them.
  EXPECT_TRUE(Ok(other.Ask(absl::StrCat("allocate x ", 2 * kMiB, " wait=30s"))));
  EXPECT_TRUE(Ok(other.Ask(absl::StrCat("allocate y ", 2 * kMiB))));
  waiter.Kill();
  holder.Do("drop x");
  other.Do("drop x");
  other.Do("drop y");
  // Nothing stays reserved for a dead waiter.
  EXPECT_TRUE(Eventually([&] { return Ok(other.Ask(absl::StrCat("allocate z ", 8 * kMiB))); }));
  other.Quit();
  holder.Quit();
  daemon.ExpectAccountsBack();
}

TEST(BudgetsTest, NextWaiterIsServedAndStoppedOneWaitsOn) {
  TestDaemon daemon({.flags = {"--device-budget=8MiB"}});
  const std::string socket = daemon.folder() + "/berthd.sock";
  Actor holder(daemon), stops(daemon), next(daemon);
  holder.Do(absl::StrCat("allocate x ", 8 * kMiB));
  for (Actor* const actor : {&stops, &next}) {
    const size_t connections = CountConnections(socket);
    actor->SendLine(absl::StrCat("allocate x ", 8 * kMiB, " wait=60s"));
    ASSERT_TRUE(Eventually([&] { return CountConnections(socket) > connections; }));
    EXPECT_TRUE(Refused(holder.Ask("allocate y 1"), Reason::kOverBudget));
  }
  ASSERT_EQ(::kill(stops.pid(), SIGSTOP), 0);
  holder.Do("drop x");
  EXPECT_TRUE(Ok(next.Answer()));
  ASSERT_EQ(::kill(stops.pid(), SIGCONT), 0);
  next.Do("drop x");
  EXPECT_TRUE(Ok(stops.Answer()));
  for (Actor* const actor : {&holder, &stops, &next}) actor->Quit();
  daemon.ExpectAccountsBack();
}

TEST(BudgetsTest, ExpiredStoppedWaiterGetsNothing) {
  TestDaemon daemon({.flags = {"--device-budget=8MiB"}});
  Actor holder(daemon), waiter(daemon);
  holder.Do(absl::StrCat("allocate x ", 8 * kMiB));
  waiter.SendLine(absl::StrCat("allocate x ", 8 * kMiB, " wait=200ms"));
  ASSERT_EQ(::kill(waiter.pid(), SIGSTOP), 0);
  // Waits beyond the stopped waiter's deadline.
  EXPECT_TRUE(Refused(holder.Ask("allocate y 1 wait=400ms"), Reason::kWaitTimedOut));
  holder.Do("drop x");
  EXPECT_TRUE(Ok(holder.Ask(absl::StrCat("allocate y ", 8 * kMiB, " wait=30s"))));
  ASSERT_EQ(::kill(waiter.pid(), SIGCONT), 0);
  const absl::Status late = waiter.Answer().status();
  // A waiter that had not sent its request before the stop sends it now.
  EXPECT_TRUE(IsRefusal(late, Reason::kWaitTimedOut) || absl::IsDeadlineExceeded(late)) << late;
  waiter.Quit();
  holder.Quit();
  daemon.ExpectAccountsBack();
}

TEST(BudgetsTest, StoppedProcessRetainsReservationUntilItsEnd) {
  TestDaemon daemon({.flags = {"--device-budget=16MiB"}});
  Actor stopped(daemon), other(daemon);
  stopped.Do(absl::StrCat("reserve r 0=", 12 * kMiB));
  stopped.Do(absl::StrCat("allocate x ", 4 * kMiB, " from=r"));
  ASSERT_EQ(::kill(stopped.pid(), SIGSTOP), 0);
  EXPECT_TRUE(Refused(other.Ask(absl::StrCat("allocate y ", 6 * kMiB)), Reason::kOverBudget));
  other.SendLine(absl::StrCat("allocate y ", 16 * kMiB, " wait=30s"));
  stopped.Kill();
  EXPECT_TRUE(Ok(other.Answer()));
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(BudgetsTest, ReservationIsDrawnDownAndRestReturns) {
  TestDaemon daemon({.flags = {"--device-budget=16MiB", "--host-devices=2"}});
  Actor a(daemon), b(daemon);
  a.Do(absl::StrCat("reserve r 0=", 12 * kMiB, " 1=", 4 * kMiB));
  EXPECT_EQ(daemon.TakeAccounts().reserved, 16 * kMiB);
  EXPECT_TRUE(Refused(b.Ask(absl::StrCat("reserve r 0=", 2 * kMiB, " 1=", 14 * kMiB)), Reason::kOverBudget,
                      {{"device", "1"}}));
  EXPECT_TRUE(Refused(b.Ask(absl::StrCat("allocate x ", 6 * kMiB)), Reason::kOverBudget));
  a.Do(absl::StrCat("allocate x ", 8 * kMiB, " from=r"));
  EXPECT_TRUE(Refused(a.Ask(absl::StrCat("allocate y ", 6 * kMiB, " from=r")), Reason::kOverBudget,
                      {{"layer", "reservation"}, {"remaining", absl::StrCat(4 * kMiB)}}));
  const v1::ListReservationsResponse listed = Must(daemon.inspector().ListReservations());
  ASSERT_EQ(listed.reservations_size(), 1);
  EXPECT_EQ(listed.reservations(0).claims(0).left_bytes(), 4 * kMiB);
  EXPECT_EQ(daemon.TakeAccounts().reserved, 8 * kMiB);
  a.Do("unreserve r");
  EXPECT_EQ(daemon.TakeAccounts().reserved, 0u);
  a.Do(absl::StrCat("reserve q 0=", 8 * kMiB));
  a.Kill();
  EXPECT_TRUE(
      daemon.AccountsBecome([](const Accounts& held_now) { return held_now.reserved == 0 && held_now.live == 0; }));
  b.Do(absl::StrCat("reserve r 0=", 16 * kMiB, " ttl=50ms"));
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& held_now) { return held_now.reserved == 0; }));
  // An expired reservation sends no notice: the next draw reports it, and the release has nothing left to return.
  const absl::Status drawn = b.Ask("allocate x 1 from=r").status();
  EXPECT_TRUE(Refused(drawn, Reason::kNotFound)) << drawn;
  EXPECT_TRUE(absl::StrContains(drawn.message(), "its time has expired")) << drawn;
  EXPECT_TRUE(Ok(b.Ask("unreserve r")));
  b.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
