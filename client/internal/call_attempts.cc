#include "client/internal/call_attempts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/error.h"

namespace berth::internal {

std::optional<absl::Duration> CallAttempts::Failed(absl::Time now, absl::Status* status) {
  if (!absl::IsUnavailable(*status)) return std::nullopt;
  if (const std::optional<ErrorDetails> details = GetErrorDetails(*status); details.has_value()) {
    // Who was in the way of this one may be so still: waiting on is for the caller to decide.
    if (details->reason == Reason::kBlockInUse || ++refusals_ == kMaxRefusals) return std::nullopt;
    return std::max(kPause * refusals_, details->retry_after.value_or(absl::ZeroDuration()));
  }
  ++ends_;
  cleared_ = cleared_ || now - sent_ >= kSuspectFor;
  if (cleared_) return absl::ZeroDuration();
  if (++suspect_ends_ == kMaxEpochs) {
    *status = absl::UnavailableError(absl::StrCat("the daemon ended ", kMaxEpochs,
                                                  " times right after it was sent this call, which is sent no more: ",
                                                  status->message()));
    return std::nullopt;
  }
  return kPause * (suspect_ends_ - 1);
}

}  // namespace berth::internal
