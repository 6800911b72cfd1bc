#include "daemon/service/conversion/conversion.h"

#include <string.h>

#include <optional>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.pb.h"
#include "common/status_macros.h"
#include "common/terminal_text.h"
#include "daemon/broker/node_clock.h"
#include "daemon/service/conversion/page.h"
#include "daemon/service/conversion/refused_conversion.h"
#include "daemon/service/conversion/status_conversion.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace berth::service {
namespace {

// Range of google.protobuf.Duration.
constexpr int64_t kMaxDurationSeconds = 315'576'000'000;

// The core's enums have the wire's numbers.
static_assert(static_cast<int>(core::SessionState::kEnding) == v1::Session::ENDING);
static_assert(static_cast<int>(core::ForgetOutcome::kNothingToDo) ==
              v1::ForgetRequestResponse::NOTHING_TO_DO);

constexpr size_t kKeyDigits = 16;

std::string Encode(absl::string_view digits) { return absl::WebSafeBase64Escape(digits); }

// Returns the `count` numbers of a token; nothing for an invalid token.
std::optional<std::vector<uint64_t>> Decode(const std::string& token, size_t count) {
  std::string digits;
  if (!absl::WebSafeBase64Unescape(token, &digits) || digits.size() != count * kKeyDigits)
    return std::nullopt;
  std::vector<uint64_t> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    if (!absl::SimpleHexAtoi(digits.substr(i * kKeyDigits, kKeyDigits), &numbers[i])) return std::nullopt;
  }
  return numbers;
}

absl::Status NotOurs(const std::string& token) {
  return Refuse(Reason::kInvalidField,
                "invalid {field} \"{value}\": expected a token of an earlier answer; tokens are {limit}",
                {{"field", "page_token"}, {"value", absl::CHexEscape(token.substr(0, 64))}, {"limit", "opaque"}});
}

// Returns the request for the first page.
absl::StatusOr<core::PageRequest> ReadSize(int32_t page_size) {
  if (page_size < 0) {
    return Refuse(Reason::kInvalidField, "{field}: {value} is negative; {limit}",
                  {{"field", "page_size"}, {"value", page_size}, {"limit", "0 to 1000"}});
  }
  core::PageRequest page = {.rows = kMaxPageSize, .parts = kMaxPageParts};
  if (page_size != 0 && page_size < kMaxPageSize) page.rows = static_cast<uint64_t>(page_size);
  return page;
}

}  // namespace

absl::StatusOr<absl::Duration> FromProto(absl::string_view field,
                                         const google::protobuf::Duration& duration) {
  if (duration.seconds() < 0 || duration.nanos() < 0 || duration.nanos() > 999'999'999 ||
      duration.seconds() > kMaxDurationSeconds) {
    return Refuse(Reason::kInvalidField, "{field}: {value} is not a duration from 0 to {limit}",
                  {{"field", field},
                   {"value", absl::StrCat(duration.seconds(), "s ", duration.nanos(), "ns")},
                   {"limit", absl::StrCat(kMaxDurationSeconds, "s")}});
  }
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

void ToProto(absl::Duration duration, google::protobuf::Duration* out) {
  const int64_t seconds = absl::IDivDuration(duration, absl::Seconds(1), &duration);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

void ToProto(absl::Time time, google::protobuf::Timestamp* out) { WallToProto(NodeClock::Real().ToWall(time), out); }

void WallToProto(absl::Time wall, google::protobuf::Timestamp* out) {
  const int64_t seconds = absl::ToUnixSeconds(wall);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(wall - absl::FromUnixSeconds(seconds))));
}

void ToProto(const core::Tenant& tenant, v1::Tenant* out) {
  out->set_uid(tenant.uid);
  out->set_container(tenant.container);
}

void ToProto(const core::ProcessInfo& process, v1::Process* out) {
  out->set_pid(process.pid);
  out->set_uid(process.uid);
  out->set_gid(process.gid);
  out->set_name(process.name);
}

core::RequestTag FromProto(const v1::RequestTag& tag) {
  return {.sequence = tag.sequence(),
          .answered_below = tag.answered_below(),
          .open = {tag.open().begin(), tag.open().end()},
          .takes_up = tag.takes_up()};
}

void ToProto(const core::SessionView& view, v1::Session* out) {
  out->set_id(view.id.value());
  ToProto(view.tenant, out->mutable_tenant());
  out->set_label(view.label);
  out->set_state(static_cast<v1::Session::State>(view.state));
  ToProto(view.opened_at, out->mutable_create_time());
  ToProto(view.opener, out->mutable_opener());
  for (const core::ProcessInfo& process : view.processes) ToProto(process, out->add_processes());
  out->set_permit_units(view.permit_units);
  out->set_waiters(view.waiters);
  out->set_live_bytes(view.live.count());
}

void ToProto(const core::DrainResult& result, v1::StopNodeResponse* out) {
  out->set_sessions(result.out.sessions);
  out->set_units(result.out.units);
  out->set_blocks(result.out.blocks);
  out->set_bytes(result.out.bytes.count());
}

// ---- page.h --------------------------------------------------------------------------------------------------

absl::StatusOr<core::PageRequest> ReadPage(int32_t page_size, const std::string& token) {
  BERTH_ASSIGN_OR_RETURN(core::PageRequest page, ReadSize(page_size));
  if (token.empty()) return page;
  const std::optional<std::vector<uint64_t>> key = Decode(token, 1);
  if (!key.has_value()) return NotOurs(token);
  page.after = key->front();
  return page;
}

absl::StatusOr<core::PageRequest> ReadPage(int32_t page_size, const std::string& token, uint64_t scope) {
  BERTH_ASSIGN_OR_RETURN(core::PageRequest page, ReadSize(page_size));
  if (token.empty()) return page;
  const std::optional<std::vector<uint64_t>> key = Decode(token, 2);
  if (!key.has_value()) return NotOurs(token);
  if (key->back() == scope) page.after = key->front();
  return page;
}

std::string PageToken(uint64_t key) { return Encode(absl::StrCat(absl::Hex(key, absl::kZeroPad16))); }

std::string PageToken(uint64_t key, uint64_t scope) {
  return Encode(absl::StrCat(absl::Hex(key, absl::kZeroPad16), absl::Hex(scope, absl::kZeroPad16)));
}

// ---- status_conversion.h -------------------------------------------------------------------------------------

// The canonical codes have the same numbers on both sides.
static_assert(static_cast<int>(grpc::StatusCode::UNAUTHENTICATED) ==
              static_cast<int>(absl::StatusCode::kUnauthenticated));
static_assert(static_cast<int>(grpc::StatusCode::CANCELLED) ==
              static_cast<int>(absl::StatusCode::kCancelled));

namespace {

// The middle of a longer text is left out: its end says what to do.
std::string Shortened(absl::string_view raw, size_t limit) {
  // A path in the text may have bytes that no string of a protobuf message can have.
  std::string text = ToTerminal(raw);
  if (text.size() <= limit) return text;
  const auto is_inside_code_point = [&](size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  size_t head = limit / 2;
  size_t tail = text.size() - limit / 2;
  while (is_inside_code_point(head)) --head;
  while (is_inside_code_point(tail)) ++tail;
  return absl::StrCat(text.substr(0, head), "[...]", text.substr(tail));
}

// Whether a client's gRPC accepts the status: the text percent-encoded and the details in base64.
bool Fits(const grpc::Status& status) {
  constexpr size_t kMaxMetadata = 8192;
  constexpr size_t kOtherFields = 512;
  size_t bytes = status.error_details().size() * 4 / 3;
  for (const char byte : status.error_message()) bytes += byte < ' ' || byte > '~' || byte == '%' ? 3 : 1;
  return bytes <= kMaxMetadata - kOtherFields;
}

// Each text of the status has at most `limit` bytes.
grpc::Status ToGrpcWithin(const absl::Status& status, size_t limit) {
  const std::string text = Shortened(status.message(), limit);
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value()) return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text);

  google::rpc::ErrorInfo info;
  info.set_reason(std::string(ReasonName(details->reason)));
  info.set_domain("berth");
  for (const auto& [name, value] : details->metadata) (*info.mutable_metadata())[name] = Shortened(value, limit);
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

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  grpc::Status converted = ToGrpcWithin(status, std::string::npos);
  for (const size_t limit : {1024, 256}) {
    if (Fits(converted)) break;
    converted = ToGrpcWithin(status, limit);
  }
  return converted;
}

// ---- refused_conversion.h ------------------------------------------------------------------------------------

attach::Refused ToRefused(const absl::Status& why, absl::Duration pause) {
  attach::Refused refused = {.code = static_cast<int32_t>(why.code()),
                             .retry_after = static_cast<uint32_t>(absl::ToInt64Milliseconds(pause))};
  if (const std::optional<ErrorDetails> details = GetErrorDetails(why)) {
    refused.reason = static_cast<int32_t>(details->reason);
  }
  const absl::string_view text = why.message().substr(0, sizeof(refused.text) - 1);
  memcpy(refused.text, text.data(), text.size());
  return refused;
}

}  // namespace berth::service
