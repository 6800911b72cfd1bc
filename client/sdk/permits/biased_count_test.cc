#include "client/sdk/permits/biased_count.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(BiasedCountTest, CountRisesFromFirstReferenceAndEndsAtZero) {
  for (const bool owned : {true, false}) {
    BiasedCount count(owned);
    EXPECT_EQ(count.value(), 1u);
    EXPECT_TRUE(count.AddToSome());
    EXPECT_EQ(count.value(), 2u);
    EXPECT_FALSE(count.Drop());
    EXPECT_TRUE(count.Drop());
    EXPECT_EQ(count.value(), 0u);
    EXPECT_FALSE(count.AddToSome());
    EXPECT_EQ(count.value(), 0u);
  }
}

TEST(BiasedCountTest, OtherThreadsDropOwnersReferences) {
  BiasedCount count(/*owned=*/true);
  ASSERT_TRUE(count.AddToSome());
  ASSERT_TRUE(count.AddToSome());
  std::thread([&] { EXPECT_FALSE(count.Drop()); }).join();
  EXPECT_EQ(count.value(), 2u);
  EXPECT_TRUE(count.AddToSome()) << "the owner counts on beside others";
  EXPECT_FALSE(count.Drop());
  std::thread([&] {
    EXPECT_FALSE(count.Drop());
    EXPECT_TRUE(count.Drop());
  }).join();
  EXPECT_FALSE(count.AddToSome());
}

TEST(BiasedCountTest, CountOutlivesItsOwner) {
  std::unique_ptr<BiasedCount> count;
  std::thread([&] {
    count = std::make_unique<BiasedCount>(/*owned=*/true);
    ASSERT_TRUE(count->AddToSome());
    count->Share();
  }).join();
  // The new thread may have the same address.
  std::thread([&] { EXPECT_FALSE(count->Drop()); }).join();
  EXPECT_TRUE(count->Drop());
}

// The owner adds and drops as fast as it can, while other threads drop guards that they were given. Exactly one drop is
// the last, and none follows it.
TEST(BiasedCountTest, ConcurrentDropsHaveSingleLastDrop) {
  constexpr int kRounds = 3000;
  constexpr int kOthers = 2;
  std::atomic<BiasedCount*> handed[kOthers] = {};
  std::atomic<bool> done = false;
  std::atomic<int> lasts = 0;
  std::vector<std::thread> others;
  for (int i = 0; i < kOthers; ++i) {
    others.emplace_back([&, i] {
      while (!done) {
        BiasedCount* const count = handed[i].load(std::memory_order_acquire);
        if (count == nullptr) {
          std::this_thread::yield();
          continue;
        }
        lasts += count->Drop() ? 1 : 0;
        handed[i].store(nullptr, std::memory_order_release);
      }
    });
  }
  std::mt19937 random(1);
  for (int round = 0; round < kRounds; ++round) {
    BiasedCount count(/*owned=*/true);
    for (int i = 1; i < kOthers; ++i) ASSERT_TRUE(count.AddToSome());
    // The owner's progress at the drops varies from round to round.
    const int before = static_cast<int>(random() % 50);
    const int after = static_cast<int>(random() % 200);
    const auto nest = [&] {
      if (!count.AddToSome()) return;
      ASSERT_EQ(lasts, 0) << "it has ended, and was nested in";
      lasts += count.Drop() ? 1 : 0;
    };
    for (int i = 0; i < before; ++i) nest();
    for (auto& slot : handed) slot.store(&count, std::memory_order_release);
    for (int i = 0; i < after; ++i) nest();
    for (auto& slot : handed) {
      while (slot.load(std::memory_order_acquire) != nullptr) std::this_thread::yield();
    }
    ASSERT_EQ(lasts.exchange(0), 1) << "round " << round;
    ASSERT_EQ(count.value(), 0u);
  }
  done = true;
  for (std::thread& other : others) other.join();
}

TEST(BiasedCountTest, ForkedChildDropsWithoutWaiting) {
  BiasedCount count(/*owned=*/true);
  ASSERT_TRUE(count.AddToSome());
  pid_t child = 0;
  std::thread([&] {
    child = ::fork();
    if (child == 0) ::_exit(count.Drop() ? 1 : 0);
  }).join();
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(count.value(), 2u);
}

}  // namespace
}  // namespace berth::internal
