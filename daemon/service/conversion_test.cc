#include "daemon/service/conversion.h"

#include "gtest/gtest.h"

namespace berth::service {
namespace {

TEST(ConversionTest, TimesBeforeTheEpochKeepTheirNanosPositive) {
  google::protobuf::Timestamp wire;
  ToProto(absl::UnixEpoch() - absl::Nanoseconds(1), &wire);
  EXPECT_EQ(wire.seconds(), -1);
  EXPECT_EQ(wire.nanos(), 999'999'999);
}

}  // namespace
}  // namespace berth::service
