// Calls that end close to their grant: no permit is left over, whichever side saw the end first.
//
// BERTH_FAULT_CALLS sets how many calls are made (2,000, and 400 of the SDK's; in the soak ten times as many),
// BERTH_FAULT_SEED replays the random choices of a run.

#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

using Permits = v1::PermitService::Stub;
using Sessions = v1::SessionService::Stub;

// A call that ends at its deadline resets its stream, and so many resets would count as a flood.
constexpr char kManyResets[] = "[limits]\nresets_per_second = 100000\nresets_per_second_per_uid = 100000\n";

// Number of calls by their outcome.
using Outcomes = std::map<std::string, uint64_t>;

// Calls AcquirePermit `count` times with a deadline of its own choice, releases its grants, and forgets calls with an
// unknown outcome. The client lives on: its death releases nothing.
class Hasty {
 public:
  Hasty(const TestDaemon& daemon, uint64_t seed) : client_(RawClient::Open(daemon.folder())), random_(seed) {}

  void Run(uint64_t count) {
    for (uint64_t i = 0; i < count && !failed(); ++i) {
      const v1::RequestTag tag = Tag();
      v1::AcquirePermitRequest acquire;
      *acquire.mutable_request() = tag;
      acquire.set_holder_key(absl::StrCat("k", tag.sequence()));
      const absl::Duration deadline = 2 * around_ * std::uniform_real_distribution<>()(random_);
      const absl::StatusOr<v1::AcquirePermitResponse> permit =
          client_.Call(&Permits::AcquirePermit, acquire, deadline);
      around_ *= permit.ok() ? 0.99 : 1.01;
      if (permit.ok()) {
        ++outcomes_["granted"];
        Release(permit->acquisition());
      } else {
        Forget(tag.sequence());
      }
    }
  }

  const Outcomes& outcomes() const { return outcomes_; }
  const absl::Status& status() const { return status_; }

 private:
  bool failed() const { return !status_.ok(); }

  // Only one call is pending at a time, so all earlier calls are settled.
  v1::RequestTag Tag() {
    v1::RequestTag tag = client_.NextTag();
    tag.set_answered_below(tag.sequence());
    return tag;
  }

  void Release(uint64_t acquisition) {
    v1::ReleasePermitRequest release;
    *release.mutable_request() = Tag();
    release.set_acquisition(acquisition);
    status_.Update(client_.Call(&Permits::ReleasePermit, release).status());
  }

  void Forget(uint64_t sequence) {
    v1::ForgetRequestRequest forget;
    forget.set_sequence(sequence);
    const absl::StatusOr<v1::ForgetRequestResponse> forgotten =
        client_.Call(&Sessions::ForgetRequest, forget);
    status_.Update(forgotten.status());
    if (!forgotten.ok()) return;
    ++outcomes_[v1::ForgetRequestResponse::Outcome_Name(forgotten->outcome())];
  }

  RawClient client_;
  std::mt19937_64 random_;
  // The duration of a call here, adjusted until as many calls are late as are not.
  absl::Duration around_ = absl::Microseconds(500);
  Outcomes outcomes_;
  absl::Status status_;
};

TEST(DeadlinesTest, CallsAroundDeadlineLeaveNoPermit) {
  const uint64_t calls = FromEnvironment("BERTH_FAULT_CALLS", GateOrSoak(2'000, 20'000));
  const uint64_t seed = SeedFromEnvironment("BERTH_FAULT_SEED");
  TestDaemon daemon({.config = kManyResets, .environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  constexpr uint64_t kClients = 4;
  {
    std::vector<std::unique_ptr<Hasty>> clients;
    for (uint64_t i = 0; i < kClients; ++i) clients.push_back(std::make_unique<Hasty>(daemon, seed + i));
    std::vector<std::thread> threads;
    for (const auto& client : clients)
      threads.emplace_back([&client, calls] { client->Run(calls / kClients); });
    for (std::thread& thread : threads) thread.join();
    Outcomes all;
    for (const auto& client : clients) {
      EXPECT_TRUE(Ok(client->status()));
      for (const auto& [name, count] : client->outcomes()) all[name] += count;
    }
    for (const auto& [name, count] : all) {
      printf("%s: %lu\n", name.c_str(), count);
      RecordProperty(name, absl::StrCat(count));
    }
    // Both outcomes must occur, or the test checks nothing.
    EXPECT_GT(all["granted"], 0u);
    EXPECT_GT(all["UNDONE"] + all["CANCELLED"] + all["REMEMBERED"] + all["NOTHING_TO_DO"], 0u);
    // Every client lives and has settled all of its calls: the pool is free without any death.
    EXPECT_TRUE(daemon.AccountsBecome([&](const Accounts& accounts) {
      return accounts.permits + accounts.units + accounts.waiters == 0 &&
             accounts.processes == daemon.accounts_at_start().processes + kClients;
    })) << Describe(daemon.TakeAccounts());
  }
  daemon.ExpectAccountsBack();
}

TEST(DeadlinesTest, SdkDeadlinesLeaveNothing) {
  const uint64_t calls = FromEnvironment("BERTH_FAULT_CALLS", GateOrSoak(400, 4'000));
  const uint64_t seed = SeedFromEnvironment("BERTH_FAULT_SEED");
  TestDaemon daemon({.config = kManyResets, .environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  constexpr uint64_t kActors = 4;
  std::vector<std::unique_ptr<Actor>> actors;
  for (uint64_t i = 0; i < kActors; ++i) actors.push_back(std::make_unique<Actor>(daemon));
  for (uint64_t i = 0; i < kActors; ++i) {
    actors[i]->SendLine(absl::StrCat("rush ", calls / kActors, " 1000 ", seed + i));
  }
  for (const auto& actor : actors) {
    const absl::StatusOr<std::string> granted = actor->Answer(absl::Minutes(5));
    EXPECT_TRUE(Ok(granted));
  }
  // The SDK settles a call without an answer in the background.
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) {
    return accounts.permits + accounts.waiters == 0;
  })) << Describe(daemon.TakeAccounts());
  for (const auto& actor : actors) actor->Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
