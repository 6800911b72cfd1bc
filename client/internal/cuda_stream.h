// CudaStream: a CUDA stream of the caller's, as far as fences go. The driver queues everything; nothing is owned.

#ifndef CLIENT_INTERNAL_CUDA_STREAM_H_
#define CLIENT_INTERNAL_CUDA_STREAM_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "client/internal/fence_pages.h"
#include "client/internal/stream_backend.h"
#include "common/cuda/driver.h"

namespace berth::internal {

// Every method wants the stream's context current in its thread, as every launch does.
class CudaStream final : public StreamBackend {
 public:
  // `ordinal` is CUDA's of the stream's device in this process.
  CudaStream(cuda::Driver& driver, cuda::Stream stream, int ordinal)
      : driver_(driver), stream_(stream), ordinal_(ordinal) {}

  absl::Status CheckSupport() override;
  absl::Status Wait(MappedPage& page, uint32_t slot, uint64_t value) override;
  absl::Status Write(MappedPage& page, uint32_t slot, uint64_t value) override;
  absl::Status Enqueue(std::function<void()> work) override;
  absl::Status Synchronize() override { return driver_.SynchronizeStream(stream_); }

 private:
  cuda::Driver& driver_;
  const cuda::Stream stream_;
  const int ordinal_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_CUDA_STREAM_H_
