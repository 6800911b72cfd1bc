// Calls that end close to their grant: no permit is left over, whoever saw what.
//
// BERTH_FAULT_CALLS sets how many calls are made (2,000, and 400 of the SDK's; in the soak ten times as many),
// BERTH_FAULT_SEED replays the draws of a run.

#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/environment.h"
#include "tests/support/raw_client.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Permits = v1::PermitService::Stub;
using Sessions = v1::SessionService::Stub;

// A call that ends at its deadline resets its stream, and as many as these make would be a flood's.
constexpr char kManyResets[] = "[limits]\nresets_per_second = 100000\nresets_per_second_per_uid = 100000\n";

// What became of calls, by name.
using Outcomes = std::map<std::string, uint64_t>;

// Calls AcquirePermit `count` times with a deadline of its own choice, gives back what it got, and forgets
// what it cannot know. Its client lives on: nothing comes back by its death.
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

  // One call is under way at a time, so all earlier ones are settled.
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
  // What a call takes here: found by aiming at as many that come too late as do not.
  absl::Duration around_ = absl::Microseconds(500);
  Outcomes outcomes_;
  absl::Status status_;
};

TEST(DeadlinesTest, NoPermitIsLeftOverOfCallsAroundTheirDeadline) {
  const uint64_t calls = FromEnvironment("BERTH_FAULT_CALLS", ByLane(2'000, 20'000));
  const uint64_t seed = SeedFromEnvironment("BERTH_FAULT_SEED");
  SCOPED_TRACE(absl::StrCat("BERTH_FAULT_SEED=", seed));
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
    // Both ways of ending happened, or the test tries nothing.
    EXPECT_GT(all["granted"], 0u);
    EXPECT_GT(all["UNDONE"] + all["CANCELLED"] + all["REMEMBERED"] + all["NOTHING_TO_DO"], 0u);
    // Every client lives and has settled all of its calls: the pool is free, without anybody's death.
    const Books books = daemon.TakeBooks();
    EXPECT_EQ(books.permits, 0u);
    EXPECT_EQ(books.units, 0u);
    EXPECT_EQ(books.waiters, 0u);
    EXPECT_EQ(books.processes, daemon.books_at_start().processes + kClients);
  }
  daemon.ExpectBooksBack();
}

TEST(DeadlinesTest, TheSdksOwnDeadlinesLeaveNothingEither) {
  const uint64_t calls = FromEnvironment("BERTH_FAULT_CALLS", ByLane(400, 4'000));
  const uint64_t seed = SeedFromEnvironment("BERTH_FAULT_SEED");
  SCOPED_TRACE(absl::StrCat("BERTH_FAULT_SEED=", seed));
  TestDaemon daemon({.config = kManyResets, .environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  constexpr uint64_t kActors = 4;
  std::vector<std::unique_ptr<Actor>> actors;
  for (uint64_t i = 0; i < kActors; ++i) actors.push_back(std::make_unique<Actor>(daemon));
  for (uint64_t i = 0; i < kActors; ++i) {
    actors[i]->Tell(absl::StrCat("rush ", calls / kActors, " 1000 ", seed + i));
  }
  for (const auto& actor : actors) {
    const absl::StatusOr<std::string> granted = actor->Answer(absl::Minutes(5));
    EXPECT_TRUE(Ok(granted));
  }
  const Books books = daemon.TakeBooks();
  EXPECT_EQ(books.permits, 0u);
  EXPECT_EQ(books.waiters, 0u);
  for (const auto& actor : actors) actor->Quit();
  daemon.ExpectBooksBack();
}

}  // namespace
}  // namespace berth::testing
