#include "client/internal/cuda_stream.h"

#include "common/error.h"
#include "common/status_macros.h"

namespace berth::internal {

absl::Status CudaStream::CheckSupport() {
  BERTH_ASSIGN_OR_RETURN(const int supported,
                         driver_.Attribute(ordinal_, cuda::DeviceAttribute::kStreamMemoryOperations));
  if (supported != 0) return absl::OkStatus();
  return Refuse(Reason::kUnsupported,
                "this device's streams cannot wait for words in memory: no {capability}",
                {{"capability", "fences"}});
}

absl::Status CudaStream::Wait(MappedPage& page, uint32_t slot, uint64_t value) {
  BERTH_ASSIGN_OR_RETURN(const cuda::DevicePointer word, page.DeviceWord(driver_, slot));
  return driver_.WaitValue64(stream_, word, value);
}

absl::Status CudaStream::Write(MappedPage& page, uint32_t slot, uint64_t value) {
  BERTH_ASSIGN_OR_RETURN(const cuda::DevicePointer word, page.DeviceWord(driver_, slot));
  return driver_.WriteValue64(stream_, word, value);
}

absl::Status CudaStream::Enqueue(std::function<void()>) {
  return Refuse(Reason::kUnsupported, "a CUDA stream takes kernels, not {capability}",
                {{"capability", "host functions"}});
}

}  // namespace berth::internal
