#include "client/sdk/memory/registered_memory.h"

#include "common/cuda/current_context.h"
#include "common/status_macros.h"

namespace berth::internal {

absl::StatusOr<RegisteredMemory> RegisteredMemory::Register(cuda::Driver& driver, void* address, Bytes bytes,
                                                            bool read_only) {
  BERTH_ASSIGN_OR_RETURN(const int ordinal, driver.CurrentDevice());
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver.RetainPrimaryContext(ordinal));
  RegisteredMemory memory(driver, context, ordinal);
  BERTH_ASSIGN_OR_RETURN(const cuda::CurrentContext current, cuda::CurrentContext::Enter(driver, context));
  BERTH_ASSIGN_OR_RETURN(memory.at_, driver.RegisterHostMemory(address, bytes, read_only));
  memory.address_ = address;
  return memory;
}

RegisteredMemory::~RegisteredMemory() {
  if (driver_ == nullptr) return;
  if (address_ != nullptr) {
    const absl::StatusOr<cuda::CurrentContext> current = cuda::CurrentContext::Enter(*driver_, context_);
    driver_->UnregisterHostMemory(address_).IgnoreError();
  }
  driver_->ReleasePrimaryContext(ordinal_).IgnoreError();
}

}  // namespace berth::internal
