#include "client/sdk/transport/status_conversion.h"

#include <berth/error.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(StatusConversionTest, OkConvertsToOk) {
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
}

TEST(StatusConversionTest, RefusalRetainsReasonMetadataAndRetryAdvice) {
  const absl::Status refusal =
      RefuseWithRetry(Reason::kOverBudget, absl::Milliseconds(1500), "device {device}: asked {requested}",
                      {{"device", 0}, {"requested", 4096}});
  const absl::Status back = FromGrpc(ToGrpc(refusal));
  EXPECT_EQ(back.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(back.message(), "device 0: asked 4096");
  const auto details = GetErrorDetails(back);
  ASSERT_TRUE(details.has_value());
  EXPECT_EQ(details->reason, Reason::kOverBudget);
  EXPECT_EQ(details->metadata.at("requested"), "4096");
  EXPECT_EQ(details->retry_after, absl::Milliseconds(1500));
}

TEST(StatusConversionTest, TransportErrorHasNoReason) {
  const absl::Status status = FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection reset"));
  EXPECT_EQ(status, absl::UnavailableError("connection reset"));
  EXPECT_FALSE(GetErrorDetails(status).has_value());
}

TEST(StatusConversionTest, ForeignAndUnreadableDetailsAreIgnored) {
  google::rpc::ErrorInfo info;
  info.set_domain("elsewhere");
  info.set_reason("OVER_CAP");
  google::rpc::Status wire;
  wire.add_details()->PackFrom(info);
  const auto with = [](const std::string& details) {
    return FromGrpc(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no", details));
  };
  EXPECT_FALSE(GetErrorDetails(with(wire.SerializeAsString())).has_value());
  EXPECT_FALSE(GetErrorDetails(with("\xff\xff\xff")).has_value());
  info.set_domain("berth");
  info.set_reason("FROM_THE_FUTURE");
  wire.mutable_details(0)->PackFrom(info);
  EXPECT_FALSE(GetErrorDetails(with(wire.SerializeAsString())).has_value());
}

}  // namespace
}  // namespace berth
