// CurrentContext: makes a CUDA context the calling thread's for a while, for calls that are the SDK's own. Until its
// end such calls are no concern of a graph that the program captures meanwhile: else they would end the capture.

#ifndef CLIENT_INTERNAL_CURRENT_CONTEXT_H_
#define CLIENT_INTERNAL_CURRENT_CONTEXT_H_

#include <utility>

#include "absl/status/statusor.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"

namespace berth::internal {

// Stays in its thread. Move-only.
class CurrentContext {
 public:
  // Errors: the driver's, with the thread as it was.
  static absl::StatusOr<CurrentContext> Enter(cuda::Driver& driver, cuda::Context context) {
    BERTH_ASSIGN_OR_RETURN(const cuda::Context before, driver.CurrentContext());
    BERTH_ASSIGN_OR_RETURN(const cuda::CaptureMode mode,
                           driver.ExchangeCaptureMode(cuda::CaptureMode::kRelaxed));
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
  CurrentContext(cuda::Driver& driver, cuda::Context before, cuda::CaptureMode mode)
      : driver_(&driver), before_(before), mode_(mode) {}

  // Null once moved from.
  cuda::Driver* driver_;
  cuda::Context before_;
  cuda::CaptureMode mode_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_CURRENT_CONTEXT_H_
