#include "daemon/service/conversion/status_conversion.h"

#include <optional>
#include <string>

#include <berth/error.h>

#include "common/terminal_text.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace berth::service {

// The canonical codes have the same numbers on both sides.
static_assert(static_cast<int>(grpc::StatusCode::UNAUTHENTICATED) ==
              static_cast<int>(absl::StatusCode::kUnauthenticated));
static_assert(static_cast<int>(grpc::StatusCode::CANCELLED) ==
              static_cast<int>(absl::StatusCode::kCancelled));

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // A path in the text may have bytes that no string of a protobuf message can have.
  const std::string text = ToTerminal(status.message());
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value()) return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text);

  google::rpc::ErrorInfo info;
  info.set_reason(std::string(ReasonName(details->reason)));
  info.set_domain("berth");
  for (const auto& [name, value] : details->metadata) (*info.mutable_metadata())[name] = ToTerminal(value);
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(text);
  wire.add_details()->PackFrom(info);
  if (details->retry_after.has_value()) {
    google::rpc::RetryInfo retry;
    const absl::Duration delay = *details->retry_after;
    retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(delay));
    retry.mutable_retry_delay()->set_nanos(
        static_cast<int32_t>((delay - absl::Seconds(absl::ToInt64Seconds(delay))) / absl::Nanoseconds(1)));
    wire.add_details()->PackFrom(retry);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text, wire.SerializeAsString());
}

}  // namespace berth::service
