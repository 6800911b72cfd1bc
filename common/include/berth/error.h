// Refusals: an absl::Status that names the object, the value and the limit, in its text for people and in its payloads
// for programs. The text is generated from the values, so the two cannot differ. On the wire a refusal is
// google.rpc.ErrorInfo (and RetryInfo); daemon/service and client convert, one direction each.

#ifndef BERTH_ERROR_H_
#define BERTH_ERROR_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace berth {

// Reason of a refusal. The names are those of berth.v1.ErrorReason without the prefix (a test verifies the match).
// proto/berth/v1/errors.proto defines each reason's meaning, status code and retry advice.
enum class Reason {
  kInvalidField = 1,
  kOutOfRange,
  kBadCredentials,
  kUnknownPeer,
  kSessionEnded,
  kNotJoined,
  kNotFound,
  kDenied,
  kNoPermit,
  kOverCap,
  kNestedOverHeld,
  kWaitTimedOut,
  kOverBudget,
  kOutOfMemory,
  kStale,
  kDeviceRebuilding,
  kLimit,
  kRequestReused,
  kRequestForgotten,
  kCancelled,
  kShuttingDown,
  kDriver,
  kAdminOnly,
  kUnsupported,
  kDeviceStopped,
  kBlockInUse,
  kStreamMisuse,
  kNameTaken,
  kBlockMapped,
  kExportKind,
  kAlreadyHeld,
  kDeviceDraining,
  kNoDevice,
  kConstraint,
  kNoRuntime,
  kLedgerFull,
  kLedgerUnreadable,
  kObserverOnlyLooks,
  kProcessStopped,
};

// Returns the name, such as "OVER_BUDGET" for kOverBudget.
absl::string_view ReasonName(Reason reason);
// Returns the reason of that name, or nothing for an unknown name.
std::optional<Reason> ReasonFromName(absl::string_view name);
// Returns the reason of that number, as wire structs between processes contain it; nothing for an unknown number.
std::optional<Reason> ReasonFromNumber(int number);
// Returns the canonical status code of the reason.
absl::StatusCode ReasonCode(Reason reason);

// A named value of a refusal.
struct NamedValue {
  NamedValue(absl::string_view name, const absl::AlphaNum& value) : name(name), value(value.Piece()) {}
  std::string name;
  std::string value;
};

// Makes a refusal: every `{name}` in `text` is replaced by that named value's value.
// Use: Refuse(Reason::kOverCap, "permit pool {pool}: asked {asked}, cap {cap}",
//             {{"pool", name}, {"asked", units}, {"cap", cap}});
absl::Status Refuse(Reason reason, absl::string_view text, const std::vector<NamedValue>& named_values = {});

// Like Refuse(), with the least time to wait before a retry can succeed.
absl::Status RefuseWithRetry(Reason reason, absl::Duration retry_after, absl::string_view text,
                             const std::vector<NamedValue>& named_values = {});

// The payload of a refusal, for programs.
struct ErrorDetails {
  Reason reason;
  std::map<std::string, std::string> metadata;
  std::optional<absl::Duration> retry_after;
};

// Returns nothing for a status that Refuse() did not make.
std::optional<ErrorDetails> GetErrorDetails(const absl::Status& status);

// Attaches `details` to `status` as Refuse() does; used by the side that received them over the wire.
void SetErrorDetails(const ErrorDetails& details, absl::Status* status);

// Adds a named value to any status that is not OK. The text is unchanged; an existing named value of that name is
// unchanged.
void AddNamedValue(const NamedValue& named_value, absl::Status* status);
// Returns the named value of that name, or nothing. Works for any status, also one that Refuse() did not make.
std::optional<std::string> NamedValueOf(const absl::Status& status, absl::string_view name);

// Returns whether `status` is a refusal for `reason`.
bool IsRefusal(const absl::Status& status, Reason reason);

}  // namespace berth

#endif  // BERTH_ERROR_H_
