#include "client/sdk/transport/status_conversion.h"

#include <optional>
#include <string>

#include <berth/error.h>

#include "absl/time/time.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace berth {
namespace {

constexpr char kDomain[] = "berth";

std::optional<ErrorDetails> DecodeDetails(const std::string& bytes) {
  google::rpc::Status wire;
  if (!wire.ParseFromString(bytes)) return std::nullopt;
  std::optional<ErrorDetails> details;
  std::optional<absl::Duration> retry_after;
  for (const google::protobuf::Any& detail : wire.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    if (detail.Is<google::rpc::ErrorInfo>() && detail.UnpackTo(&info) && info.domain() == kDomain) {
      const std::optional<Reason> reason = ReasonFromName(info.reason());
      if (!reason.has_value()) return std::nullopt;
      details = ErrorDetails{.reason = *reason, .metadata = {info.metadata().begin(), info.metadata().end()}};
    } else if (detail.Is<google::rpc::RetryInfo>() && detail.UnpackTo(&retry)) {
      retry_after =
          absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  if (details.has_value()) details->retry_after = retry_after;
  return details;
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (const std::optional<ErrorDetails> details = DecodeDetails(status.error_details())) {
    SetErrorDetails(*details, &result);
  }
  return result;
}

absl::Status FromStatusProto(absl::string_view bytes) {
  google::rpc::Status wire;
  if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || wire.code() == 0) {
    return absl::InternalError("the daemon sent a malformed refusal");
  }
  return FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(wire.code()), wire.message(), std::string(bytes)));
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string text(status.message());
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value()) return grpc::Status(code, text);

  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(text);
  google::rpc::ErrorInfo info;
  info.set_domain(kDomain);
  info.set_reason(std::string(ReasonName(details->reason)));
  info.mutable_metadata()->insert(details->metadata.begin(), details->metadata.end());
  wire.add_details()->PackFrom(info);
  if (details->retry_after.has_value()) {
    google::rpc::RetryInfo retry;
    absl::Duration rest;
    retry.mutable_retry_delay()->set_seconds(
        absl::IDivDuration(*details->retry_after, absl::Seconds(1), &rest));
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
    wire.add_details()->PackFrom(retry);
  }
  return grpc::Status(code, text, wire.SerializeAsString());
}

}  // namespace berth
