#include <berth/error.h>

#include <array>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace berth {
namespace {

using Code = absl::StatusCode;

struct ReasonRow {
  Reason reason;
  absl::string_view name;
  Code code;
};

constexpr std::array<ReasonRow, 39> kReasons = {{
    {Reason::kInvalidField, "INVALID_FIELD", Code::kInvalidArgument},
    {Reason::kOutOfRange, "OUT_OF_RANGE", Code::kOutOfRange},
    {Reason::kBadCredentials, "BAD_CREDENTIALS", Code::kUnauthenticated},
    {Reason::kUnknownPeer, "UNKNOWN_PEER", Code::kUnauthenticated},
    {Reason::kSessionEnded, "SESSION_ENDED", Code::kFailedPrecondition},
    {Reason::kNotJoined, "NOT_JOINED", Code::kFailedPrecondition},
    {Reason::kNotFound, "NOT_FOUND", Code::kNotFound},
    {Reason::kDenied, "DENIED", Code::kPermissionDenied},
    {Reason::kNoPermit, "NO_PERMIT", Code::kResourceExhausted},
    {Reason::kOverCap, "OVER_CAP", Code::kFailedPrecondition},
    {Reason::kNestedOverHeld, "NESTED_OVER_HELD", Code::kFailedPrecondition},
    {Reason::kWaitTimedOut, "WAIT_TIMED_OUT", Code::kDeadlineExceeded},
    {Reason::kOverBudget, "OVER_BUDGET", Code::kResourceExhausted},
    {Reason::kOutOfMemory, "OUT_OF_MEMORY", Code::kResourceExhausted},
    {Reason::kStale, "STALE", Code::kFailedPrecondition},
    {Reason::kDeviceRebuilding, "DEVICE_REBUILDING", Code::kUnavailable},
    {Reason::kLimit, "LIMIT", Code::kResourceExhausted},
    {Reason::kRequestReused, "REQUEST_REUSED", Code::kInvalidArgument},
    {Reason::kRequestForgotten, "REQUEST_FORGOTTEN", Code::kAborted},
    {Reason::kCancelled, "CANCELLED", Code::kCancelled},
    {Reason::kShuttingDown, "SHUTTING_DOWN", Code::kUnavailable},
    {Reason::kDriver, "DRIVER", Code::kInternal},
    {Reason::kAdminOnly, "ADMIN_ONLY", Code::kPermissionDenied},
    {Reason::kUnsupported, "UNSUPPORTED", Code::kUnimplemented},
    {Reason::kDeviceStopped, "DEVICE_STOPPED", Code::kFailedPrecondition},
    {Reason::kBlockInUse, "BLOCK_IN_USE", Code::kUnavailable},
    {Reason::kStreamMisuse, "STREAM_MISUSE", Code::kFailedPrecondition},
    {Reason::kNameTaken, "NAME_TAKEN", Code::kAlreadyExists},
    {Reason::kBlockMapped, "BLOCK_MAPPED", Code::kFailedPrecondition},
    {Reason::kExportKind, "EXPORT_KIND", Code::kFailedPrecondition},
    {Reason::kAlreadyHeld, "ALREADY_HELD", Code::kFailedPrecondition},
    {Reason::kDeviceDraining, "DEVICE_DRAINING", Code::kFailedPrecondition},
    {Reason::kNoDevice, "NO_DEVICE", Code::kFailedPrecondition},
    {Reason::kConstraint, "CONSTRAINT", Code::kFailedPrecondition},
    {Reason::kNoRuntime, "NO_RUNTIME", Code::kFailedPrecondition},
    {Reason::kLedgerFull, "LEDGER_FULL", Code::kUnavailable},
    {Reason::kLedgerUnreadable, "LEDGER_UNREADABLE", Code::kFailedPrecondition},
    {Reason::kObserverOnlyLooks, "OBSERVER_ONLY_LOOKS", Code::kPermissionDenied},
    {Reason::kProcessStopped, "PROCESS_STOPPED", Code::kUnavailable},
}};

const ReasonRow& Row(Reason reason) { return kReasons[static_cast<size_t>(reason) - 1]; }

constexpr absl::string_view kReasonUrl = "berth/reason";
constexpr absl::string_view kRetryUrl = "berth/retry_after_ns";
constexpr absl::string_view kNamedValuePrefix = "berth/figure/";

}  // namespace

absl::string_view ReasonName(Reason reason) { return Row(reason).name; }

absl::StatusCode ReasonCode(Reason reason) { return Row(reason).code; }

std::optional<Reason> ReasonFromName(absl::string_view name) {
  for (const ReasonRow& row : kReasons) {
    if (row.name == name) return row.reason;
  }
  return std::nullopt;
}

std::optional<Reason> ReasonFromNumber(int number) {
  if (number < 1 || number > static_cast<int>(kReasons.size())) return std::nullopt;
  return static_cast<Reason>(number);
}

absl::Status Refuse(Reason reason, absl::string_view text, const std::vector<NamedValue>& named_values) {
  std::vector<std::pair<std::string, std::string>> replacements;
  for (const NamedValue& named_value : named_values)
    replacements.emplace_back(absl::StrCat("{", named_value.name, "}"), named_value.value);
  absl::Status status(ReasonCode(reason), absl::StrReplaceAll(text, replacements));
  ErrorDetails details{.reason = reason};
  for (const NamedValue& named_value : named_values) details.metadata[named_value.name] = named_value.value;
  SetErrorDetails(details, &status);
  return status;
}

absl::Status RefuseWithRetry(Reason reason, absl::Duration retry_after, absl::string_view text,
                             const std::vector<NamedValue>& named_values) {
  absl::Status status = Refuse(reason, text, named_values);
  status.SetPayload(kRetryUrl, absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(retry_after))));
  return status;
}

std::optional<ErrorDetails> GetErrorDetails(const absl::Status& status) {
  const absl::optional<absl::Cord> name = status.GetPayload(kReasonUrl);
  if (!name.has_value()) return std::nullopt;
  const std::optional<Reason> reason = ReasonFromName(std::string(*name));
  if (!reason.has_value()) return std::nullopt;
  ErrorDetails details{.reason = *reason};
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    if (absl::ConsumePrefix(&url, kNamedValuePrefix)) {
      details.metadata[std::string(url)] = std::string(value);
    } else if (int64_t ns; url == kRetryUrl && absl::SimpleAtoi(std::string(value), &ns)) {
      details.retry_after = absl::Nanoseconds(ns);
    }
  });
  return details;
}

void SetErrorDetails(const ErrorDetails& details, absl::Status* status) {
  status->SetPayload(kReasonUrl, absl::Cord(ReasonName(details.reason)));
  for (const auto& [name, value] : details.metadata) {
    status->SetPayload(absl::StrCat(kNamedValuePrefix, name), absl::Cord(value));
  }
  if (details.retry_after.has_value()) {
    status->SetPayload(kRetryUrl, absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(*details.retry_after))));
  }
}

void AddNamedValue(const NamedValue& named_value, absl::Status* status) {
  const std::string url = absl::StrCat(kNamedValuePrefix, named_value.name);
  if (!status->GetPayload(url).has_value()) status->SetPayload(url, absl::Cord(named_value.value));
}

std::optional<std::string> NamedValueOf(const absl::Status& status, absl::string_view name) {
  const absl::optional<absl::Cord> value = status.GetPayload(absl::StrCat(kNamedValuePrefix, name));
  if (!value.has_value()) return std::nullopt;
  return std::string(*value);
}

bool IsRefusal(const absl::Status& status, Reason reason) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  return details.has_value() && details->reason == reason;
}

}  // namespace berth
