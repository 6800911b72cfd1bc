#include "client/sdk/arena/arena_size_classes.h"

#include <cstdint>
#include <random>

#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr ArenaPolicy kPolicies[] = {ArenaPolicy::kSizeClasses, ArenaPolicy::kPowerOfTwo};

// Calls `check` with small numbers, with all values around powers of two, and with random ones.
template <typename Check>
void ForManyGranules(Check check) {
  for (uint64_t granules = 1; granules <= 5000; ++granules) check(granules);
  for (int bit = 12; bit < 38; ++bit) {
    for (int64_t off = -3; off <= 3; ++off) check((uint64_t{1} << bit) + off);
  }
  check(ArenaSizeClasses::kMaxGranules);
  std::mt19937_64 random(1);
  for (int i = 0; i < 10000; ++i) check((random() % ArenaSizeClasses::kMaxGranules >> random() % 30) + 1);
}

TEST(ArenaSizeClassesTest, RequestClassIsSmallestThatFits) {
  for (const ArenaPolicy policy : kPolicies) {
    const ArenaSizeClasses classes(policy);
    ForManyGranules([&](uint64_t granules) {
      const uint32_t ceil = classes.Ceil(granules);
      ASSERT_LT(ceil, ArenaSizeClasses::kCount) << granules;
      ASSERT_GE(classes.Granules(ceil), granules);
      if (ceil > 0) {
        ASSERT_LT(classes.Granules(ceil - 1), granules);
      }
    });
  }
}

TEST(ArenaSizeClassesTest, FreePieceClassIsLargestThatFits) {
  for (const ArenaPolicy policy : kPolicies) {
    const ArenaSizeClasses classes(policy);
    ForManyGranules([&](uint64_t granules) {
      const uint32_t floor = classes.Floor(granules);
      ASSERT_LE(classes.Granules(floor), granules);
      ASSERT_GT(classes.Granules(floor + 1), granules);
    });
  }
}

TEST(ArenaSizeClassesTest, RoundingWastesLessThanEighth) {
  const ArenaSizeClasses classes(ArenaPolicy::kSizeClasses);
  ForManyGranules([&](uint64_t granules) {
    const uint64_t waste = classes.Granules(classes.Ceil(granules)) - granules;
    ASSERT_LT(waste * 8, granules) << granules;
  });
}

TEST(ArenaSizeClassesTest, PowersOfTwoWasteLessThanRequested) {
  const ArenaSizeClasses classes(ArenaPolicy::kPowerOfTwo);
  ForManyGranules([&](uint64_t granules) {
    const uint64_t size = classes.Granules(classes.Ceil(granules));
    ASSERT_EQ(size & (size - 1), 0u);
    ASSERT_LT(size - granules, granules);
  });
}

TEST(ArenaSizeClassesTest, SizesUpToEightGranulesAreExact) {
  const ArenaSizeClasses classes(ArenaPolicy::kSizeClasses);
  for (uint64_t granules = 1; granules <= 8; ++granules) {
    EXPECT_EQ(classes.Granules(classes.Ceil(granules)), granules);
  }
  EXPECT_EQ(classes.Granules(classes.Ceil(17)), 18u);
}

}  // namespace
}  // namespace berth::internal
