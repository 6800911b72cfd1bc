// Refusals: an absl::Status that names the thing, the figure and the limit, in its text for people and in its payloads
// for programs. The text is made from the figures, so that the two cannot differ. On the wire a refusal is
// google.rpc.ErrorInfo (and RetryInfo); daemon/service and client convert, one way each.

#ifndef COMMON_ERROR_H_
#define COMMON_ERROR_H_

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

// Why. The names are those of berth.v1.ErrorReason without the prefix (a test holds them together); what each means,
// with its status code and retry advice, stands in proto/berth/v1/errors.proto.
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
};

// "OVER_BUDGET" for kOverBudget.
absl::string_view ReasonName(Reason reason);
// Returns nothing for a name that is no reason's.
std::optional<Reason> ReasonFromName(absl::string_view name);
// The same for a reason's number, as structs between processes carry it.
std::optional<Reason> ReasonFromNumber(int number);
// The canonical code that goes with the reason.
absl::StatusCode ReasonCode(Reason reason);

// One named figure of a refusal.
struct Figure {
  Figure(absl::string_view name, const absl::AlphaNum& value) : name(name), value(value.Piece()) {}
  std::string name;
  std::string value;
};

// Makes a refusal: every `{name}` in `text` is replaced by that figure's value.
// Use: Refuse(Reason::kOverCap, "permit pool {pool}: asked {asked}, cap {cap}",
//             {{"pool", name}, {"asked", units}, {"cap", cap}});
absl::Status Refuse(Reason reason, absl::string_view text, const std::vector<Figure>& figures = {});

// The same with the least time to wait before a retry can help.
absl::Status RefuseWithRetry(Reason reason, absl::Duration retry_after, absl::string_view text,
                             const std::vector<Figure>& figures = {});

// What a refusal says to programs.
struct ErrorDetails {
  Reason reason;
  std::map<std::string, std::string> metadata;
  std::optional<absl::Duration> retry_after;
};

// Returns nothing for a status that Refuse() did not make.
std::optional<ErrorDetails> GetErrorDetails(const absl::Status& status);

// Puts `details` on `status`, as Refuse() would have: for the side that received them over the wire.
void SetErrorDetails(const ErrorDetails& details, absl::Status* status);

// Adds a figure to any status that is not OK, its text as it was; one of that name stays as it is.
void AddFigure(const Figure& figure, absl::Status* status);
// The figure of that name, also of a status that is no refusal.
std::optional<std::string> FigureOf(const absl::Status& status, absl::string_view name);

// Returns whether `status` is a refusal for `reason`.
bool IsRefusal(const absl::Status& status, Reason reason);

}  // namespace berth

#endif  // COMMON_ERROR_H_
