#include "daemon/server/memory_watch.h"

#include <poll.h>
#include <string.h>

#include <memory>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using Verdict = MemoryBound::Verdict;

const absl::Time kStart = absl::FromUnixSeconds(1'000);
const absl::Time kLater = kStart + MemoryBound::kLeastLife;

TEST(MemoryBoundTest, ProcessWithinBoundContinues) {
  MemoryBound bound(MiB(100), MiB(10), kStart);
  EXPECT_EQ(bound.Judge(kLater, MiB(100), false), Verdict::kGoOn);
}

TEST(MemoryBoundTest, ProcessAboveBoundTrimsThenEnds) {
  MemoryBound bound(MiB(100), MiB(10), kStart);
  EXPECT_EQ(bound.Judge(kLater, MiB(101), false), Verdict::kTrim);
  EXPECT_EQ(bound.Judge(kLater, MiB(99), true), Verdict::kGoOn);
  EXPECT_EQ(bound.Judge(kLater + MemoryBound::kTrimPause, MiB(101), false), Verdict::kTrim);
  EXPECT_EQ(bound.Judge(kLater + MemoryBound::kTrimPause, MiB(101), true), Verdict::kEnd);
}

TEST(MemoryBoundTest, ProcessThatTrimmedLatelyEnds) {
  MemoryBound bound(MiB(100), MiB(10), kStart);
  ASSERT_EQ(bound.Judge(kLater, MiB(101), false), Verdict::kTrim);
  EXPECT_EQ(bound.Judge(kLater + absl::Milliseconds(250), MiB(101), false), Verdict::kEnd);
}

TEST(MemoryBoundTest, FreshProcessDoesNotEnd) {
  MemoryBound bound(MiB(100), MiB(10), kStart);
  EXPECT_EQ(bound.Judge(kStart, GiB(1), false), Verdict::kTrim);
  EXPECT_EQ(bound.Judge(kLater - absl::Milliseconds(1), GiB(1), true), Verdict::kGoOn);
  EXPECT_EQ(bound.Judge(kLater, GiB(1), true), Verdict::kEnd);
}

struct BoundCase {
  const char* name;
  Bytes configured;
  Bytes idle;
  Bytes bound;
};

TEST(MemoryBoundTest, ConfiguredBoundRisesOnlyWithProgramSize) {
  for (const BoundCase& row : {BoundCase{"Small", MiB(100), MiB(10), MiB(100)},
                               BoundCase{"Half", MiB(100), MiB(50), MiB(100)},
                               BoundCase{"LargerProgram", MiB(100), MiB(80), MiB(160)},
                               BoundCase{"Capped", MiB(100), MiB(300), MiB(200)},
                               BoundCase{"Default", kBrokerMemory, MiB(40), kBrokerMemory}}) {
    EXPECT_EQ(MemoryBound(row.configured, row.idle, kStart).bound(), row.bound) << row.name;
  }
}

TEST(MemoryBoundTest, BoundBelowTwiceBaseIsRejectedWithMinimum) {
  EXPECT_TRUE(MemoryBound::Check(MiB(20), MiB(10)).ok());
  const absl::Status refused = MemoryBound::Check(MiB(19), MiB(10));
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_EQ(refused.message(),
            "limits.broker_memory: 19 MiB, but a broker without clients uses 10 MiB; the minimum is twice that, 20 "
            "MiB");
}

TEST(ReadOwnMemoryTest, OnlyWrittenMemoryIsCounted) {
  const absl::StatusOr<Bytes> before = ReadOwnMemory();
  ASSERT_TRUE(before.ok()) << before.status();
  constexpr size_t kSize = 64 << 20;
  const std::unique_ptr<char[]> block(new char[kSize]);
  memset(block.get(), 1, kSize);
  const absl::StatusOr<Bytes> after = ReadOwnMemory();
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_GE(after->count() - before->count(), kSize / 2);
  EXPECT_LT(after->count() - before->count(), 2 * kSize);
}

TEST(MemoryWatchTest, WatchReadsUntilDestroyed) {
  MemoryWatch watch(MemoryBound(GiB(1024), Bytes(1), absl::Now()), [](Bytes) { FAIL(); });
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (watch.has() == Bytes() && absl::Now() < deadline) ::poll(nullptr, 0, 1);
  EXPECT_GT(watch.has(), Bytes());
  EXPECT_EQ(watch.bound(), GiB(1024));
}

}  // namespace
}  // namespace berth
