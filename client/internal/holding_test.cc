#include "client/internal/holding.h"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

class CountingReleaser final : public Holding::Releaser {
 public:
  explicit CountingReleaser(std::atomic<int>* releases) : releases_(releases) {}
  absl::Status Release() override {
    ++*releases_;
    return absl::OkStatus();
  }

 private:
  std::atomic<int>* const releases_;
};

class HoldingTest : public testing::Test {
 protected:
  Holding* Make(uint64_t units = 1) {
    return Holding::Make(key_, units, std::make_unique<CountingReleaser>(&releases_));
  }

  std::atomic<int> releases_ = 0;
  int session_ = 0;
  HoldingKey key_ = {.session = &session_, .pool = "gpu-tests", .holder_key = "k"};
};

TEST_F(HoldingTest, NestedGuardsShareOneAcquisitionAndTheLastGivesItBack) {
  Holding* const outer = Make();
  Holding* const inner = Holding::Nest(key_, 1);
  EXPECT_EQ(inner, outer);
  EXPECT_EQ(outer->depth(), 2u);
  EXPECT_TRUE(outer->Drop().ok());
  EXPECT_EQ(releases_, 0);
  EXPECT_TRUE(inner->Drop().ok());
  EXPECT_EQ(releases_, 1);
}

TEST_F(HoldingTest, WhatIsOverIsNeverNestedIn) {
  EXPECT_EQ(Holding::Nest(key_, 1), nullptr);
  EXPECT_TRUE(Make()->Drop().ok());
  EXPECT_EQ(Holding::Nest(key_, 1), nullptr);
}

TEST_F(HoldingTest, OnlyTheSameSessionPoolAndHolderNestAndNoMoreUnitsThanAreHeld) {
  Holding* const held = Make(2);
  int other = 0;
  EXPECT_EQ(Holding::Nest({.session = &other, .pool = key_.pool, .holder_key = key_.holder_key}, 1), nullptr);
  EXPECT_EQ(Holding::Nest({.session = &session_, .pool = "other", .holder_key = key_.holder_key}, 1),
            nullptr);
  EXPECT_EQ(Holding::Nest({.session = &session_, .pool = key_.pool, .holder_key = "other"}, 1), nullptr);
  EXPECT_EQ(Holding::Nest(key_, 3), nullptr);
  EXPECT_EQ(Holding::Nest(key_, 2), held);
  EXPECT_TRUE(held->Drop().ok());
  EXPECT_TRUE(held->Drop().ok());
  EXPECT_EQ(releases_, 1);
}

TEST_F(HoldingTest, AnotherThreadDoesNotNestInWhatThisOneHolds) {
  Holding* const held = Make();
  std::thread([&] { EXPECT_EQ(Holding::Nest(key_, 1), nullptr); }).join();
  EXPECT_TRUE(held->Drop().ok());
}

TEST_F(HoldingTest, AGuardDroppedOnAnotherThreadCountsExactly) {
  Holding* const held = Make();
  ASSERT_EQ(Holding::Nest(key_, 1), held);
  std::thread([&] {
    EXPECT_TRUE(held->Drop().ok());
    EXPECT_EQ(releases_, 0);
    EXPECT_TRUE(held->Drop().ok());
  }).join();
  EXPECT_EQ(releases_, 1);
  EXPECT_EQ(Holding::Nest(key_, 1), nullptr) << "the acquiring thread knows that it holds no more";
}

TEST_F(HoldingTest, AHoldingOutlivesTheThreadThatMadeIt) {
  Holding* held = nullptr;
  std::thread([&] { held = Make(); }).join();
  EXPECT_EQ(held->depth(), 1u);
  EXPECT_TRUE(held->Drop().ok());
  EXPECT_EQ(releases_, 1);
}

TEST_F(HoldingTest, LeavingGivesNothingBack) {
  Holding* const held = Make();
  held->Leave();
  EXPECT_EQ(releases_, 0);
  EXPECT_EQ(Holding::Nest(key_, 1), nullptr);
}

// The owner nests while another thread drops what may be the last guard: each acquisition is given back
// exactly once.
TEST_F(HoldingTest, NestingRacesTheLastDropWithoutLosingOrDoublingARelease) {
  constexpr int kRounds = 20000;
  // A ring, so that a busy machine need not switch threads for each. Each place has a session of its own.
  constexpr int kPlaces = 64;
  std::array<std::atomic<Holding*>, kPlaces> handed = {};
  std::array<int, kPlaces> sessions = {};
  std::thread dropper([&] {
    for (int i = 0; i < kRounds; ++i) {
      Holding* guard;
      while ((guard = handed[i % kPlaces].exchange(nullptr)) == nullptr) std::this_thread::yield();
      EXPECT_TRUE(guard->Drop().ok());
    }
  });
  int made = 0;
  for (int i = 0; i < kRounds; ++i) {
    std::atomic<Holding*>& place = handed[i % kPlaces];
    const HoldingKey key = {.session = &sessions[i % kPlaces], .pool = key_.pool, .holder_key = key_.holder_key};
    while (place.load() != nullptr) std::this_thread::yield();
    place.store(Holding::Make(key, 1, std::make_unique<CountingReleaser>(&releases_)));
    ++made;
    Holding* const nested = Holding::Nest(key, 1);
    if (nested != nullptr) {
      EXPECT_TRUE(nested->Drop().ok());
    }
  }
  dropper.join();
  EXPECT_EQ(releases_, made);
}

TEST_F(HoldingTest, EveryThreadHasAHolderKeyOfItsOwnAlsoAfterOthersEnded) {
  std::set<std::string> keys = {ThreadHolderKey()};
  EXPECT_EQ(ThreadHolderKey(), ThreadHolderKey());
  for (int i = 0; i < 50; ++i) {
    std::thread([&] { keys.insert(ThreadHolderKey()); }).join();
  }
  EXPECT_EQ(keys.size(), 51u);
}

}  // namespace
}  // namespace berth::internal
