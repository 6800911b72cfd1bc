#include "common/wire/take_up.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace berth {
namespace {

using Taking = TakeUpWords::Taking;

bool Never(uint64_t) { return false; }

TEST(TakeUpWordsTest, GrantIsTakenOnce) {
  TakeUpWords words{};
  EXPECT_EQ(words.Take(7), Taking::kNotOffered);
  EXPECT_FALSE(words.Withdraw(7));
  ASSERT_TRUE(words.Offer(7, Never));
  EXPECT_EQ(words.Take(8), Taking::kNotOffered);
  EXPECT_EQ(words.Take(7), Taking::kTaken);
  EXPECT_FALSE(words.Withdraw(7));
  // A repeated answer finds the grant taken.
  EXPECT_EQ(words.Take(7), Taking::kTaken);
}

TEST(TakeUpWordsTest, WithdrawnGrantIsRefusedAndOfferedAgain) {
  TakeUpWords words{};
  ASSERT_TRUE(words.Offer(7, Never));
  EXPECT_TRUE(words.Withdraw(7));
  EXPECT_TRUE(words.IsWithdrawn(7));
  // The next broker repeats a withdrawal that the last did not persist.
  EXPECT_TRUE(words.Withdraw(7));
  EXPECT_EQ(words.Take(7), Taking::kWithdrawn);
  EXPECT_EQ(words.Take(7), Taking::kNotOffered);
  ASSERT_TRUE(words.Offer(7, Never));
  EXPECT_EQ(words.Take(7), Taking::kTaken);
}

TEST(TakeUpWordsTest, OnlyResolvedWordsAreReused) {
  TakeUpWords words{};
  for (uint64_t sequence = 1; sequence <= TakeUpWords::kWords; ++sequence) ASSERT_TRUE(words.Offer(sequence, Never));
  EXPECT_FALSE(words.Offer(100, Never));
  EXPECT_TRUE(words.Withdraw(3));
  // The process may still read the answer that was withdrawn.
  EXPECT_FALSE(words.Offer(100, Never));
  EXPECT_EQ(words.Take(5), Taking::kTaken);
  EXPECT_TRUE(words.Offer(100, Never));
  EXPECT_FALSE(words.Offer(101, Never));
  EXPECT_TRUE(words.Offer(101, [](uint64_t sequence) { return sequence == 3; }));
  std::vector<uint64_t> untaken;
  words.ForEachUntaken([&](uint64_t sequence) { untaken.push_back(sequence); });
  EXPECT_EQ(untaken.size(), TakeUpWords::kWords);
}

TEST(TakeUpWordsTest, ExactlyOneSideWins) {
  TakeUpWords words{};
  constexpr uint64_t kRounds = 20'000;
  std::atomic<uint64_t> offered = 0, resolved = 0;
  uint64_t withdrawn = 0, taken = 0, refused = 0;
  std::thread daemon([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      words.Offer(round, [](uint64_t) { return true; });
      offered = round;
      withdrawn += words.Withdraw(round) ? 1 : 0;
      while (resolved < round) std::this_thread::yield();
    }
  });
  for (uint64_t round = 1; round <= kRounds; ++round) {
    while (offered < round) std::this_thread::yield();
    const Taking taking = words.Take(round);
    taken += taking == Taking::kTaken ? 1 : 0;
    // The daemon's second look at a word that the process has cleared finds nothing.
    refused += taking == Taking::kWithdrawn ? 1 : 0;
    resolved = round;
  }
  daemon.join();
  EXPECT_EQ(taken + refused, kRounds);
  EXPECT_EQ(withdrawn, refused);
}

}  // namespace
}  // namespace berth
