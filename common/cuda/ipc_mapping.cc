#include "common/cuda/ipc_mapping.h"

#include <optional>

#include <berth/error.h>

#include "absl/strings/string_view.h"
#include "common/cuda/current_context.h"
#include "common/status_macros.h"

namespace berth::cuda {
namespace {

absl::StatusOr<DevicePointer> OpenIn(Driver& driver, Context context, const IpcHandle& handle) {
  BERTH_ASSIGN_OR_RETURN(const CurrentContext current, CurrentContext::Enter(driver, context));
  absl::StatusOr<DevicePointer> pointer = driver.OpenIpcHandle(handle);
  const std::optional<ErrorDetails> details = GetErrorDetails(pointer.status());
  // CUDA_ERROR_INVALID_CONTEXT: the driver's code for this case.
  constexpr absl::string_view kInvalidContext = "201";
  if (details.has_value() && details->metadata.at("driver_code") == kInvalidContext) {
    return absl::FailedPreconditionError("the memory belongs to this process, which cannot import its own memory");
  }
  return pointer;
}

}  // namespace

absl::StatusOr<IpcMapping> IpcMapping::Open(Driver& driver, const IpcHandle& handle, int ordinal) {
  BERTH_ASSIGN_OR_RETURN(const Context context, driver.RetainPrimaryContext(ordinal));
  const absl::StatusOr<DevicePointer> pointer = OpenIn(driver, context, handle);
  if (pointer.ok()) return IpcMapping(driver, ordinal, context, *pointer);
  driver.ReleasePrimaryContext(ordinal).IgnoreError();
  return pointer.status();
}

IpcMapping::~IpcMapping() {
  if (driver_ == nullptr) return;
  {
    const absl::StatusOr<CurrentContext> current = CurrentContext::Enter(*driver_, context_);
    driver_->CloseIpcHandle(pointer_).IgnoreError();
  }
  driver_->ReleasePrimaryContext(ordinal_).IgnoreError();
}

}  // namespace berth::cuda
