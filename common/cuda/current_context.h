// CurrentContext: makes a context current on the calling thread while the object lives, for Berth's own driver calls.
// Meanwhile those calls do not affect a graph that the program captures; otherwise they would end the capture.
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

// Move-only; bound to one thread. Restores the previous context when destroyed.
class CurrentContext {
 public:
  // Errors: those of `driver`, with the thread unchanged. `driver` must outlive the object.
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
