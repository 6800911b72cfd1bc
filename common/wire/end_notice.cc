#include <berth/end_notice.h>

#include "absl/strings/str_cat.h"

namespace berth {

bool FreesUnits(EndReason reason) {
  switch (reason) {
    case EndReason::kSessionEnded:
    case EndReason::kEndedByOwnProcess:
    case EndReason::kLifelineClosed:
    case EndReason::kChannelBroken:
      return false;
    default:
      return true;
  }
}

std::string Describe(const EndNotice& end) {
  const std::string an_operator = absl::StrCat("an operator (uid ", end.uid, ")");
  switch (end.reason) {
    case EndReason::kUnknown:
      return "the daemon ended it without a reason";
    case EndReason::kRevoked:
      return absl::StrCat(an_operator, " revoked it");
    case EndReason::kHoldLimit:
      return "held longer than the pool's hold limit";
    case EndReason::kSessionEnded:
      return absl::StrCat(an_operator, " ended its session");
    case EndReason::kEndedByOwnProcess:
      return "another process of its session ended the session";
    case EndReason::kLifelineClosed:
      return "no process holds the lifeline of its session";
    case EndReason::kStopped:
      return absl::StrCat(an_operator, " stopped the daemon and ended all leases");
    case EndReason::kReset:
      return absl::StrCat(an_operator, " reset the daemon");
    case EndReason::kStateLost:
      return "the daemon lost the file descriptors of its session";
    case EndReason::kNotResumed:
      return "the daemon no longer knows its session";
    case EndReason::kChannelBroken:
      return "the side channel between its process and the daemon broke";
    case EndReason::kMemoryLost:
      return "its device or its context worker lost its memory";
  }
  return absl::StrCat("the daemon ended it for reason ", static_cast<uint32_t>(end.reason));
}

}  // namespace berth
