// CurrentContext: makes a context the calling thread's for as long as the object lives, for calls that are our own.
// Until its end they are no concern of a graph that the program captures meanwhile: else they would end the capture.
//
//   BERTH_ASSIGN_OR_RETURN(const CurrentContext current, CurrentContext::Enter(driver, context));

#ifndef COMMON_CUDA_CURRENT_CONTEXT_H_
#define COMMON_CUDA_CURRENT_CONTEXT_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"

namespace berth::cuda {

// Move-only; on one thread. What was current before is so again afterwards.
class CurrentContext {
 public:
  // Errors: those of `driver`, which outlives the object, with the thread as it was.
  static absl::StatusOr<CurrentContext> Enter(Driver& driver, Context context) {
    BERTH_ASSIGN_OR_RETURN(const Context before, driver.CurrentContext());
    BERTH_ASSIGN_OR_RETURN(const CaptureMode mode, driver.ExchangeCaptureMode(CaptureMode::kRelaxed));
    CurrentContext current(driver, before, mode);
    BERTH_RETURN_IF_ERROR(driver.SetCurrentContext(context));
    return current;
  }
  CurrentContext(CurrentContext&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), before_(other.before_), mode_(other.mode_) {}
  CurrentContext& operator=(CurrentContext&&) = delete;
  ~CurrentContext() {
    if (driver_ == nullptr) return;
    driver_->SetCurrentContext(before_).IgnoreError();
    driver_->ExchangeCaptureMode(mode_).IgnoreError();
  }

 private:
  CurrentContext(Driver& driver, Context before, CaptureMode mode)
      : driver_(&driver), before_(before), mode_(mode) {}

  // Null once moved from.
  Driver* driver_;
  Context before_;
  CaptureMode mode_;
};

}  // namespace berth::cuda

#endif  // COMMON_CUDA_CURRENT_CONTEXT_H_
