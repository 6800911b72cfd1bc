#include "client/sdk/transport/return_patience.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr absl::Duration kEach = absl::Seconds(2);

TEST(ReturnPatienceTest, EachReleaseHasItsOwnDeadline) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  const ReturnPatience patience(kEach);
  for (const absl::Time now : {start, start + absl::Seconds(1), start + absl::Hours(1)}) {
    EXPECT_EQ(patience.Deadline(now), now + kEach);
    EXPECT_EQ(patience.Bound(now + absl::Hours(1)), now + absl::Hours(1));
  }
  EXPECT_EQ(patience.Bound(absl::InfiniteFuture()), absl::InfiniteFuture());
}

TEST(ReturnPatienceTest, LastReturnsShareOneDeadline) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  ReturnPatience patience(kEach);
  patience.BeginLast(start);
  // The waits of a release, a second permit's, and the session's end.
  for (const absl::Duration spent : {absl::ZeroDuration(), absl::Milliseconds(1500), kEach, absl::Seconds(5)}) {
    EXPECT_EQ(patience.Deadline(start + spent), start + kEach);
    EXPECT_EQ(patience.Bound(start + spent + absl::Hours(1)), start + kEach);
    patience.BeginLast(start + spent);
  }
  // A shorter wait stays as short.
  EXPECT_EQ(patience.Bound(start + absl::Milliseconds(500)), start + absl::Milliseconds(500));
}

}  // namespace
}  // namespace berth::internal
