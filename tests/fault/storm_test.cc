// Many SIGKILLs of holders and waiters, at any moment of acquiring, using, caching and releasing. After each death the
// daemon's count is compared with the living holders, one by one, and the next grant is timed.
//
// BERTH_FAULT_STORM sets how many are killed (20, in the soak 60; 1,000 for the published result), BERTH_FAULT_SEED
// replays a run.

#include <algorithm>
#include <iostream>
#include <list>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr size_t kCap = 4;

class StormTest : public ::testing::Test {
 protected:
  StormTest()
      : seed_(SeedFromEnvironment("BERTH_FAULT_SEED")),
        random_(seed_),
        daemon_({.config = absl::StrCat("[pools.gpu-tests]\ncap = ", kCap, "\n")}) {}
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << "BERTH_FAULT_SEED=" << seed_;
  }

  // Starts an actor that caches its permit, or one that does not.
  std::unique_ptr<Actor> Start() {
    auto actor = std::make_unique<Actor>(daemon_, ActorOptions{.open = false});
    actor->Do(random_() % 2 == 0 ? "open cache" : "open");
    return actor;
  }
  void Hold() {
    holders_.push_back(Start());
    holders_.back()->Do("acquire p");
  }
  std::unique_ptr<Actor> TakeHolder() {
    auto at = std::next(holders_.begin(), static_cast<ptrdiff_t>(random_() % holders_.size()));
    std::unique_ptr<Actor> holder = std::move(*at);
    holders_.erase(at);
    return holder;
  }
  // Waits for a random moment of the work that was begun.
  void AnyMoment() {
    const absl::Time until = absl::Now() + absl::Microseconds(static_cast<int64_t>(random_() % 2'000));
    while (absl::Now() < until) {
    }
  }

  // Expects the daemon's holders to be exactly the living holders.
  void ExpectExact(const std::string& after) {
    std::set<int32_t> expected;
    for (const auto& holder : holders_) expected.insert(holder->pid());
    std::set<int32_t> seen;
    const bool exact = Eventually([&] {
      seen.clear();
      const v1::ListPermitsResponse permits = Must(daemon_.inspector().ListPermits());
      for (const v1::Permit& permit : permits.permits()) seen.insert(permit.process().pid());
      return seen == expected && static_cast<size_t>(permits.permits_size()) == expected.size() &&
             permits.waiters_size() == 0;
    });
    EXPECT_TRUE(exact) << "after " << after << ": " << seen.size() << " of " << expected.size();
  }

  // Kills an actor that holds, uses, caches, or is about to release, while another one waits; times the waiter's grant.
  void KillHolder() {
    const std::unique_ptr<Actor> waiter = Start();
    waiter->SendLine("acquire p");
    ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
    const std::unique_ptr<Actor> victim = TakeHolder();
    if (random_() % 2 == 0) {
      victim->SendLine(random_() % 2 == 0 ? "release p" : "spin 100000");
      AnyMoment();
    }
    victim->Kill();
    const absl::Time gone = absl::Now();
    ASSERT_TRUE(Ok(waiter->Answer()));
    grants_.push_back(absl::Now() - gone);
    waiter->Do("release p");
  }
  // Kills an actor with a cached permit that no request waits for.
  void KillIdleCacher() {
    const std::unique_ptr<Actor> victim = TakeHolder();
    victim->Do("release p");
    AnyMoment();
    victim->Kill();
  }
  // Kills an actor that requests, waits or has just been granted.
  void KillWaiter() {
    if (random_() % 2 == 0) {
      const std::unique_ptr<Actor> gone = TakeHolder();
      gone->Do("release p");
      gone->Quit();
    }
    const std::unique_ptr<Actor> victim = Start();
    victim->SendLine("acquire p");
    AnyMoment();
    victim->Kill();
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  TestDaemon daemon_;
  std::list<std::unique_ptr<Actor>> holders_;
  std::vector<absl::Duration> grants_;
};

TEST_F(StormTest, CountIsExactAfterEachDeath) {
  const uint64_t kills = FromEnvironment("BERTH_FAULT_STORM", GateOrSoak(20, 60));
  for (uint64_t kill = 0; kill < kills && !HasFailure(); ++kill) {
    while (holders_.size() < kCap) Hold();
    switch (random_() % 4) {
      case 0:
        KillIdleCacher();
        ExpectExact("an idle cacher's death");
        break;
      case 1:
        KillWaiter();
        ExpectExact("a waiter's death");
        break;
      default:
        KillHolder();
        ExpectExact("a holder's death");
    }
  }
  holders_.clear();
  daemon_.ExpectAccountsBack();
  ASSERT_FALSE(grants_.empty());
  std::sort(grants_.begin(), grants_.end());
  std::cout << kills << " killed; from a holder proved gone to the next grant: median "
            << absl::FormatDuration(grants_[grants_.size() / 2]) << ", p99 "
            << absl::FormatDuration(grants_[grants_.size() * 99 / 100]) << ", most "
            << absl::FormatDuration(grants_.back()) << "\n";
}

}  // namespace
}  // namespace berth::testing
