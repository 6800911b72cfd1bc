#include "daemon/service/conversion/conversion.h"

#include "absl/time/clock.h"
#include "berth/v1/permit.pb.h"
#include "daemon/broker/node_clock.h"
#include "daemon/service/conversion/permit_conversion.h"
#include "google/protobuf/timestamp.pb.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

TEST(ConversionTest, TimesBeforeEpochHavePositiveNanos) {
  google::protobuf::Timestamp wire;
  WallToProto(absl::UnixEpoch() - absl::Nanoseconds(1), &wire);
  EXPECT_EQ(wire.seconds(), -1);
  EXPECT_EQ(wire.nanos(), 999'999'999);
}

TEST(ConversionTest, CoreTimesAreShownAsWallTime) {
  google::protobuf::Timestamp wire;
  const absl::Time before = absl::Now();
  ToProto(NodeClock::Real().Now(), &wire);
  const absl::Time shown = absl::FromUnixSeconds(wire.seconds()) + absl::Nanoseconds(wire.nanos());
  EXPECT_GE(shown, before - absl::Seconds(1));
  EXPECT_LE(shown, absl::Now() + absl::Seconds(1));
}

TEST(ConversionTest, EstimateEndsOnceAllHoldsExceedIt) {
  for (const bool applies : {true, false}) {
    core::WaitView view;
    view.estimate = absl::Seconds(2);
    view.estimate_until = NodeClock::Real().Now() + (applies ? absl::Hours(1) : absl::ZeroDuration());
    v1::WaitExplanation wire;
    ToProto(view, &wire);
    EXPECT_EQ(wire.has_estimate(), applies);
  }
}

}  // namespace
}  // namespace berth::service
