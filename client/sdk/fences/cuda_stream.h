// CudaStream: adapts a caller's CUDA stream to fences. The driver queues all work. The object owns only events, and a
// side stream that converts events to fence values.

#ifndef CLIENT_SDK_FENCES_CUDA_STREAM_H_
#define CLIENT_SDK_FENCES_CUDA_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/fences/fence_pages.h"
#include "client/sdk/fences/stream_backend.h"
#include "common/cuda/driver.h"

namespace berth::internal {

// Methods that queue work require the stream's context to be current in the calling thread, as every launch does. The
// other methods make the context current.
class CudaStream final : public StreamBackend {
 public:
  // `context` is the stream's context; `ordinal` is CUDA's ordinal of its device in this process.
  CudaStream(cuda::Driver& driver, cuda::Stream stream, cuda::Context context, int ordinal)
      : StreamBackend(StreamKind::kCuda),
        driver_(driver),
        stream_(stream),
        context_(context),
        ordinal_(ordinal) {}
  // Waits for published values.
  ~CudaStream() override;

  absl::Status CheckSupport() override;
  absl::StatusOr<std::unique_ptr<StreamEvent>> CreateEvent() override;
  absl::Status Record(StreamEvent& event) override;
  absl::Status WaitEvent(StreamEvent& event) override;
  absl::Status Wait(MappedPage& page, uint32_t slot, uint64_t value) override;
  absl::Status Write(MappedPage& page, uint32_t slot, uint64_t value) override;
  absl::StatusOr<bool> Reached(StreamEvent& event) override;
  absl::Status Publish(StreamEvent& event, MappedPage& page, uint32_t slot, uint64_t value) override;
  absl::Status Enqueue(std::function<void()> work) override;
  absl::Status Synchronize() override { return driver_.SynchronizeStream(stream_); }

 private:
  absl::Status OpenSide();

  cuda::Driver& driver_;
  const cuda::Stream stream_;
  const cuda::Context context_;
  const int ordinal_;
  // Waits for events and writes fence values; null until the first Publish(). `side_event_` represents the last value.
  cuda::Stream side_ = nullptr;
  std::unique_ptr<StreamEvent> side_event_;
  // Whether the stream's next own value must wait for the side stream's last value.
  bool published_ = false;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_FENCES_CUDA_STREAM_H_
