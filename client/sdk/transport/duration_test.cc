#include "client/sdk/transport/duration.h"

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(DurationTest, NegativeOptionIsNamedWithItsValue) {
  EXPECT_TRUE(CheckNotNegative("max_wait", absl::ZeroDuration()).ok());
  EXPECT_TRUE(CheckNotNegative("max_wait", absl::InfiniteDuration()).ok());
  EXPECT_EQ(CheckNotNegative("max_wait", -absl::Seconds(5)),
            absl::InvalidArgumentError("max_wait is -5s: expected 0 or more"));
  EXPECT_EQ(CheckNotNegative("ttl", -absl::InfiniteDuration()),
            absl::InvalidArgumentError("ttl is -inf: expected 0 or more"));
}

TEST(DurationTest, LongDurationBecomesTheLongestOfTheWire) {
  google::protobuf::Duration proto;
  ToProto(absl::Milliseconds(1'500), &proto);
  EXPECT_EQ(proto.seconds(), 1);
  EXPECT_EQ(proto.nanos(), 500'000'000);
  ToProto(absl::Hours(1'000'000'000), &proto);
  EXPECT_EQ(proto.seconds(), 315'576'000'000);
  EXPECT_EQ(proto.nanos(), 0);
}

}  // namespace
}  // namespace berth::internal
