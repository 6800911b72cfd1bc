#include "client/sdk/transport/call_attempts.h"

#include <algorithm>

#include <berth/error.h>

#include "absl/strings/str_cat.h"

namespace berth::internal {

std::optional<absl::Duration> CallAttempts::Failed(absl::Time now, absl::Status* status) {
  if (!absl::IsUnavailable(*status)) return std::nullopt;
  if (const std::optional<ErrorDetails> details = GetErrorDetails(*status); details.has_value()) {
    // The wait continues in the same place, however often the process is stopped.
    if (details->reason == Reason::kProcessStopped) return absl::ZeroDuration();
    // The use that blocked this call may still be open: the caller decides whether to wait longer.
    if (details->reason == Reason::kBlockInUse || ++refusals_ == kMaxRefusals) return std::nullopt;
    return std::max(kPause * refusals_, details->retry_after.value_or(absl::ZeroDuration()));
  }
  ++ends_;
  cleared_ = cleared_ || now - sent_ >= kSuspectFor;
  if (cleared_) return absl::ZeroDuration();
  if (++suspect_ends_ == kMaxEpochs) {
    *status = absl::UnavailableError(
        absl::StrCat("the daemon ended ", kMaxEpochs,
                     " times right after it received this call, which is not retried again: ", status->message()));
    return std::nullopt;
  }
  return kPause * (suspect_ends_ - 1);
}

}  // namespace berth::internal
