#include "daemon/service/conversion/status_conversion.h"

#include <berth/error.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

TEST(StatusConversionTest, RefusalCarriesReasonMetadataAndRetry) {
  const grpc::Status status = ToGrpc(RefuseWithRetry(
      Reason::kLimit, absl::Milliseconds(1500), "{what}: {current}", {{"what", "waiters"}, {"current", 7}}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "waiters: 7");
  google::rpc::Status wire;
  ASSERT_TRUE(wire.ParseFromString(status.error_details()));
  EXPECT_EQ(wire.code(), status.error_code());
  EXPECT_EQ(wire.message(), "waiters: 7");
  ASSERT_EQ(wire.details_size(), 2);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(wire.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "LIMIT");
  EXPECT_EQ(info.domain(), "berth");
  EXPECT_EQ(info.metadata().at("current"), "7");
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(wire.details(1).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 500'000'000);
}

TEST(StatusConversionTest, InvalidUtf8IsWrittenOut) {
  const grpc::Status status = ToGrpc(Refuse(Reason::kNotFound, "no {path}", {{"path", "/a\xff/b"}}));
  EXPECT_EQ(status.error_message(), "no /a\\xff/b");
  google::rpc::Status wire;
  ASSERT_TRUE(wire.ParseFromString(status.error_details()));
  EXPECT_EQ(wire.message(), status.error_message());
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(wire.details(0).UnpackTo(&info));
  EXPECT_EQ(info.metadata().at("path"), "/a\\xff/b");
}

TEST(StatusConversionTest, OtherStatusRetainsCodeAndText) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  const grpc::Status status = ToGrpc(absl::UnavailableError("gone"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "gone");
  EXPECT_TRUE(status.error_details().empty());
}

}  // namespace
}  // namespace berth::service
