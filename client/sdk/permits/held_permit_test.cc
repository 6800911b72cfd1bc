#include "client/sdk/permits/held_permit.h"

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

class CountingReleaser final : public HeldPermit::Releaser {
 public:
  explicit CountingReleaser(std::atomic<int>* releases) : releases_(releases) {}
  absl::Status Release() override {
    ++*releases_;
    return absl::OkStatus();
  }

 private:
  std::atomic<int>* const releases_;
};

class HeldPermitTest : public testing::Test {
 protected:
  HeldPermit* Make(uint64_t units = 1) {
    return HeldPermit::Make(key_, units, std::make_unique<CountingReleaser>(&releases_));
  }

  std::atomic<int> releases_ = 0;
  int session_ = 0;
  HeldPermitKey key_ = {.session = &session_, .pool = "gpu-tests", .holder_key = "k"};
};

TEST_F(HeldPermitTest, LastNestedGuardReturnsPermit) {
  HeldPermit* const outer = Make();
  HeldPermit* const inner = HeldPermit::Nest(key_, 1);
  EXPECT_EQ(inner, outer);
  EXPECT_EQ(outer->depth(), 2u);
  EXPECT_TRUE(outer->Drop().ok());
  EXPECT_EQ(releases_, 0);
  EXPECT_TRUE(inner->Drop().ok());
  EXPECT_EQ(releases_, 1);
}

TEST_F(HeldPermitTest, ReleasedPermitIsNotNestedIn) {
  EXPECT_EQ(HeldPermit::Nest(key_, 1), nullptr);
  EXPECT_TRUE(Make()->Drop().ok());
  EXPECT_EQ(HeldPermit::Nest(key_, 1), nullptr);
}

TEST_F(HeldPermitTest, NestingNeedsSameSessionPoolHolderAndUnits) {
  HeldPermit* const held = Make(2);
  int other = 0;
  EXPECT_EQ(HeldPermit::Nest({.session = &other, .pool = key_.pool, .holder_key = key_.holder_key}, 1), nullptr);
  EXPECT_EQ(HeldPermit::Nest({.session = &session_, .pool = "other", .holder_key = key_.holder_key}, 1),
            nullptr);
  EXPECT_EQ(HeldPermit::Nest({.session = &session_, .pool = key_.pool, .holder_key = "other"}, 1), nullptr);
  EXPECT_EQ(HeldPermit::Nest(key_, 3), nullptr);
  EXPECT_EQ(HeldPermit::Nest(key_, 2), held);
  EXPECT_TRUE(held->Drop().ok());
  EXPECT_TRUE(held->Drop().ok());
  EXPECT_EQ(releases_, 1);
}

TEST_F(HeldPermitTest, OtherThreadDoesNotNestInPermit) {
  HeldPermit* const held = Make();
  std::thread([&] { EXPECT_EQ(HeldPermit::Nest(key_, 1), nullptr); }).join();
  EXPECT_TRUE(held->Drop().ok());
}

TEST_F(HeldPermitTest, GuardDroppedOnOtherThreadCountsExactly) {
  HeldPermit* const held = Make();
  ASSERT_EQ(HeldPermit::Nest(key_, 1), held);
  std::thread([&] {
    EXPECT_TRUE(held->Drop().ok());
    EXPECT_EQ(releases_, 0);
    EXPECT_TRUE(held->Drop().ok());
  }).join();
  EXPECT_EQ(releases_, 1);
  EXPECT_EQ(HeldPermit::Nest(key_, 1), nullptr) << "the acquiring thread knows that it holds no more";
}

TEST_F(HeldPermitTest, PermitOutlivesItsThread) {
  HeldPermit* held = nullptr;
  std::thread([&] { held = Make(); }).join();
  EXPECT_EQ(held->depth(), 1u);
  EXPECT_TRUE(held->Drop().ok());
  EXPECT_EQ(releases_, 1);
}

TEST_F(HeldPermitTest, LeaveReturnsNoPermit) {
  HeldPermit* const held = Make();
  held->Leave();
  EXPECT_EQ(releases_, 0);
  EXPECT_EQ(HeldPermit::Nest(key_, 1), nullptr);
}

// The owner nests while another thread drops what may be the last guard. Each acquisition is given back exactly once.
TEST_F(HeldPermitTest, NestingDuringLastDropReleasesExactlyOnce) {
  constexpr int kRounds = 20000;
  // A ring, so that a busy machine need not switch threads for each held permit. Each place has its own session.
  constexpr int kPlaces = 64;
  std::array<std::atomic<HeldPermit*>, kPlaces> handed = {};
  std::array<int, kPlaces> sessions = {};
  std::thread dropper([&] {
    for (int i = 0; i < kRounds; ++i) {
      HeldPermit* guard;
      while ((guard = handed[i % kPlaces].exchange(nullptr)) == nullptr) std::this_thread::yield();
      EXPECT_TRUE(guard->Drop().ok());
    }
  });
  int made = 0;
  for (int i = 0; i < kRounds; ++i) {
    std::atomic<HeldPermit*>& place = handed[i % kPlaces];
    const HeldPermitKey key = {.session = &sessions[i % kPlaces], .pool = key_.pool, .holder_key = key_.holder_key};
    while (place.load() != nullptr) std::this_thread::yield();
    place.store(HeldPermit::Make(key, 1, std::make_unique<CountingReleaser>(&releases_)));
    ++made;
    HeldPermit* const nested = HeldPermit::Nest(key, 1);
    if (nested != nullptr) {
      EXPECT_TRUE(nested->Drop().ok());
    }
  }
  dropper.join();
  EXPECT_EQ(releases_, made);
}

TEST_F(HeldPermitTest, EveryThreadHasUniqueHolderKey) {
  std::set<std::string> keys = {ThreadHolderKey()};
  EXPECT_EQ(ThreadHolderKey(), ThreadHolderKey());
  for (int i = 0; i < 50; ++i) {
    std::thread([&] { keys.insert(ThreadHolderKey()); }).join();
  }
  EXPECT_EQ(keys.size(), 51u);
}

}  // namespace
}  // namespace berth::internal
