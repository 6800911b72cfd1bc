#include "daemon/service/conversion/status_conversion.h"

#include <cstddef>
#include <string>
#include <utility>

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

// Metadata of gRPC has at most 8 KiB; the text is percent-encoded there, and the details are in base64.
TEST(StatusConversionTest, LongTextIsShortenedInTheMiddle) {
  // How many bytes one of the text takes there.
  const std::pair<std::string, size_t> parts[] = {{"x", 1}, {"\xff", 1}, {"\xc3\xbc", 3}, {"%", 3}};
  for (const size_t length : {5'000, 100'000}) {
    for (const auto& [part, encoded] : parts) {
      std::string key;
      while (key.size() < length) key += part;
      const grpc::Status status = ToGrpc(Refuse(Reason::kInvalidField, "begin {field}: {value}; the way out",
                                                {{"field", key}, {"value", key}, {"limit", key}}));
      EXPECT_LE(status.error_message().size() * encoded + status.error_details().size() * 4 / 3, 8'000u) << part;
      EXPECT_EQ(status.error_message().substr(0, 6), "begin ");
      EXPECT_EQ(status.error_message().substr(status.error_message().size() - 11), "the way out");
      google::rpc::Status wire;
      EXPECT_TRUE(wire.ParseFromString(status.error_details()));
    }
  }
  // A compiler's output reaches the client as a whole.
  const std::string output(2'000, 'o');
  EXPECT_EQ(ToGrpc(Refuse(Reason::kInvalidField, "{value}", {{"value", output}})).error_message(), output);
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
