// CurrentContext: a context that is the calling thread's for as long as the object lives.
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
  // Errors: those of `driver`, which outlives the object.
  static absl::StatusOr<CurrentContext> Enter(Driver& driver, Context context) {
    BERTH_ASSIGN_OR_RETURN(const Context before, driver.CurrentContext());
    BERTH_RETURN_IF_ERROR(driver.SetCurrentContext(context));
    return CurrentContext(driver, before);
  }
  CurrentContext(CurrentContext&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), before_(other.before_) {}
  CurrentContext& operator=(CurrentContext&&) = delete;
  ~CurrentContext() {
    if (driver_ != nullptr) driver_->SetCurrentContext(before_).IgnoreError();
  }

 private:
  CurrentContext(Driver& driver, Context before) : driver_(&driver), before_(before) {}
  // Null once moved from.
  Driver* driver_;
  Context before_;
};

}  // namespace berth::cuda

#endif  // COMMON_CUDA_CURRENT_CONTEXT_H_
