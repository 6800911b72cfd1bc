// Gangs and plans over a stop, or the death, of the whole daemon: permits and bytes stay together, to the unit and
// byte, and a waiting gang keeps its place.

#include <cstdint>
#include <ostream>
#include <string>

#include <berth/error.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/plan.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr char kTwo[] = "gpu-tests:1:any gpu-tests:1:any";
constexpr char kFour[] = "gpu-tests:2:any gpu-tests:2:any";

enum class Way { kStopped, kKilled };
std::ostream& operator<<(std::ostream& out, Way way) {
  return out << (way == Way::kStopped ? "Stopped" : "Killed");
}

// A pool of four, which a gang of two and a plan over both devices fill.
class StopStartGangsTest : public ::testing::TestWithParam<Way> {
 protected:
  StopStartGangsTest()
      : daemon_({.flags = {"--host-devices=2", "--host-bytes=64MiB"},
                 .environment = {"BERTH_GPU_TEST_CONCURRENCY=4"}}) {}

  void End() {
    if (GetParam() == Way::kStopped) {
      daemon_.Stop();
    } else {
      daemon_.KillSupervisorAndBroker();
    }
  }
  // Takes two permits with 12 MiB, and two permits with 4 MiB. Returns the plan's tiles.
  static std::string Fill(Actor& gang, Actor& plan) {
    gang.Do(absl::StrCat("gang g ", kTwo, " reserve=0:", 8 * kMiB, " reserve=1:", 4 * kMiB));
    return plan.Do(absl::StrCat("plan p 4 pool=gpu-tests reserve=", kMiB));
  }
  // Without a session: a daemon that is killed may not have noticed the end of one that this process has closed.
  Inspector Look() {
    return Inspector(Must(Session::Open({.folder = daemon_.folder(), .observer = true, .always_new = true})));
  }
  // Describes the permits and reservations that are out.
  std::string Leases() {
    Inspector look = Look();
    std::string text;
    const v1::ListPermitsResponse permits = Must(look.ListPermits());
    for (const v1::Permit& permit : permits.permits()) {
      absl::StrAppend(&text, "permit ", permit.id(), " of session ", permit.session(), " in gang ", permit.gang(), ": ",
                      permit.units(), " of ", permit.pool(), " on ", permit.device().uuid(), "\n");
    }
    const v1::ListReservationsResponse reservations = Must(look.ListReservations());
    for (const v1::Reservation& reservation : reservations.reservations()) {
      absl::StrAppend(&text, "reservation ", reservation.id(), " of session ", reservation.session(), ":");
      for (const v1::Reservation::Claim& claim : reservation.claims()) {
        absl::StrAppend(&text, " ", claim.left_bytes(), " of ", claim.bytes(), " on ", claim.device());
      }
      absl::StrAppend(&text, "\n");
    }
    return text;
  }
  // Waits until that many requests wait, and the process of each is connected.
  bool WaitersBecome(int count) {
    return Eventually([&] {
      const v1::ListPermitsResponse permits = Must(Look().ListPermits());
      int connected = 0;
      for (const v1::Waiter& waiter : permits.waiters()) connected += waiter.stopped() ? 0 : 1;
      return permits.waiters_size() == count && connected == count;
    });
  }
  bool OutBecomes(uint64_t units, uint64_t reserved) {
    return daemon_.AccountsBecome([&](const Accounts& accounts) {
      return accounts.units == units && accounts.reserved == reserved;
    });
  }

  TestDaemon daemon_;
};

TEST_P(StopStartGangsTest, LeasesContinueUnchangedAndWaitersInOrder) {
  Actor holder(daemon_), planner(daemon_), first(daemon_), second(daemon_);
  Fill(holder, planner);
  ASSERT_TRUE(OutBecomes(4, 16 * kMiB));
  const std::string before = Leases();
  first.SendLine(absl::StrCat("gang w ", kTwo, " reserve=1:", 2 * kMiB));
  ASSERT_TRUE(WaitersBecome(1));
  second.SendLine(absl::StrCat("gang w ", kTwo));
  ASSERT_TRUE(WaitersBecome(2));
  End();
  daemon_.StartAgain();
  ASSERT_TRUE(WaitersBecome(2));
  EXPECT_EQ(Leases(), before);
  EXPECT_TRUE(OutBecomes(4, 16 * kMiB));
  EXPECT_TRUE(Ok(holder.Ask("gang-release g")));
  EXPECT_TRUE(Ok(first.Answer()));
  EXPECT_TRUE(WaitersBecome(1)) << "the second gang waits behind the first";
  EXPECT_TRUE(OutBecomes(4, 6 * kMiB));
  EXPECT_TRUE(Ok(planner.Ask("plan-release p")));
  EXPECT_TRUE(Ok(second.Answer()));
  EXPECT_TRUE(OutBecomes(4, 2 * kMiB));
  for (Actor* const actor : {&holder, &planner, &first, &second}) actor->Quit();
  daemon_.ExpectAccountsBack();
}

// The blocks in which the plan's tiles were end with the daemon: the plan stays, and its data must be brought again.
TEST_P(StopStartGangsTest, PlanKeepsItsLeasesAndReportsLostMemory) {
  Actor holder(daemon_), planner(daemon_);
  const std::string tiles = Fill(holder, planner);
  const std::string before = Leases();
  End();
  daemon_.StartAgain();
  EXPECT_TRUE(Eventually([&] { return planner.Do("plan-stale p") == "1"; }));
  const v1::ListPlansResponse plans = Must(Look().ListPlans());
  ASSERT_EQ(plans.plans_size(), 1);
  EXPECT_EQ(plans.plans(0).stale(), v1::Plan::MEMORY_LOST);
  EXPECT_EQ(planner.Do("replan p"), tiles) << "the units stay on their devices";
  EXPECT_EQ(planner.Do("plan-stale p"), "0");
  EXPECT_EQ(Leases(), before) << "the plan keeps its permits and bytes";
  EXPECT_TRUE(Ok(planner.Ask("plan-release p")));
  EXPECT_TRUE(OutBecomes(2, 12 * kMiB)) << "the gang's";
  for (Actor* const actor : {&holder, &planner}) actor->Quit();
  daemon_.ExpectAccountsBack();
}

TEST_P(StopStartGangsTest, LeasesOfProcessEndedDuringStopReturnTogether) {
  Actor holder(daemon_), planner(daemon_), waiter(daemon_);
  Fill(holder, planner);
  waiter.SendLine(absl::StrCat("gang w ", kFour));
  ASSERT_TRUE(WaitersBecome(1));
  End();
  holder.Kill();
  daemon_.StartAgain();
  EXPECT_TRUE(OutBecomes(2, 4 * kMiB)) << "the plan's";
  EXPECT_TRUE(WaitersBecome(1)) << "two units do not serve a gang of four";
  End();
  planner.Kill();
  daemon_.StartAgain();
  EXPECT_TRUE(Ok(waiter.Answer()));
  EXPECT_TRUE(OutBecomes(4, 0));
  waiter.Quit();
  daemon_.ExpectAccountsBack();
}

INSTANTIATE_TEST_SUITE_P(Ways, StopStartGangsTest, ::testing::Values(Way::kStopped, Way::kKilled),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace berth::testing
