#include "daemon/base/token_bucket.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000);

TEST(TokenBucketTest, BurstIsAvailableAtOnceThenEmpty) {
  TokenBucket bucket({.per_second = 10, .burst = 3});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(bucket.Take(kStart, 1)) << i;
  EXPECT_FALSE(bucket.Take(kStart, 1));
  EXPECT_EQ(bucket.left(), 0);
}

TEST(TokenBucketTest, BucketFillsOverTimeUpToBurst) {
  TokenBucket bucket({.per_second = 10, .burst = 3});
  ASSERT_TRUE(bucket.Take(kStart, 3));
  EXPECT_FALSE(bucket.Take(kStart + absl::Milliseconds(99), 1));
  EXPECT_TRUE(bucket.Take(kStart + absl::Milliseconds(100), 1));
  EXPECT_FALSE(bucket.IsFull(kStart + absl::Milliseconds(399)));
  EXPECT_TRUE(bucket.IsFull(kStart + absl::Milliseconds(401)));
  EXPECT_TRUE(bucket.Take(kStart + absl::Hours(1), 3));
  EXPECT_FALSE(bucket.Take(kStart + absl::Hours(1), 1));
}

TEST(TokenBucketTest, InsufficientTokensAreNotTaken) {
  TokenBucket bucket({.per_second = 10, .burst = 3});
  EXPECT_FALSE(bucket.Take(kStart, 4));
  EXPECT_EQ(bucket.left(), 3);
  bucket.TakeUpTo(kStart, 4);
  EXPECT_EQ(bucket.left(), 0);
}

TEST(TokenBucketTest, BackwardTimeAddsNoTokens) {
  TokenBucket bucket({.per_second = 10, .burst = 3});
  ASSERT_TRUE(bucket.Take(kStart, 3));
  EXPECT_FALSE(bucket.Take(kStart - absl::Seconds(10), 1));
  EXPECT_FALSE(bucket.Take(kStart, 1));
}

TEST(UidBucketsTest, EachUserHasItsOwnBucket) {
  UidBuckets buckets({.per_second = 1, .burst = 1});
  EXPECT_TRUE(buckets.Of(kStart, 1).Take(kStart, 1));
  EXPECT_FALSE(buckets.Of(kStart, 1).Take(kStart, 1));
  EXPECT_TRUE(buckets.Of(kStart, 2).Take(kStart, 1));
}

TEST(UidBucketsTest, FullBucketsAreForgottenOthersStay) {
  UidBuckets buckets({.per_second = 1, .burst = 2});
  ASSERT_TRUE(buckets.Of(kStart, 0).Take(kStart, 2));
  for (uint32_t uid = 1; uid < 256; ++uid) ASSERT_TRUE(buckets.Of(kStart, uid).Take(kStart, 1));
  ASSERT_EQ(buckets.size(), 256);
  const absl::Time later = kStart + absl::Seconds(1);
  buckets.Of(later, 1'000);
  EXPECT_EQ(buckets.size(), 2);
  EXPECT_FALSE(buckets.Of(later, 0).Take(later, 2));
}

}  // namespace
}  // namespace berth
