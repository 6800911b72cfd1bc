#include "client/sdk/permits/spin_lock.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(SpinLockTest, LockAdmitsSingleThread) {
  SpinLock lock;
  // Two counters that differ only inside the lock.
  uint64_t one = 0;
  uint64_t other = 0;
  constexpr int kThreads = 4;
  constexpr int kRounds = 50'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const SpinLockHolder holder(&lock);
        ++one;
        // Occasionally the other threads find the lock held for long.
        if (round % 1000 == 0) std::this_thread::yield();
        ASSERT_EQ(++other, one);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(one, uint64_t{kThreads} * kRounds);
}

TEST(SpinLockTest, SleeperRetriesAfterUnlock) {
  SpinLock lock;
  for (int round = 0; round < 200; ++round) {
    lock.Lock();
    std::vector<std::thread> sleepers;
    for (int i = 0; i < 3; ++i) sleepers.emplace_back([&] { const SpinLockHolder holder(&lock); });
    std::this_thread::yield();
    lock.Unlock();
    for (std::thread& sleeper : sleepers) sleeper.join();
  }
}

}  // namespace
}  // namespace berth::internal
