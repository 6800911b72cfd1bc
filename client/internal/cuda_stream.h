// CudaStream: a CUDA stream of the caller's, as far as fences go. The driver queues everything; nothing is owned but
// events, and a stream at the side that turns them into words.

#ifndef CLIENT_INTERNAL_CUDA_STREAM_H_
#define CLIENT_INTERNAL_CUDA_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/internal/fence_pages.h"
#include "client/internal/stream_backend.h"
#include "common/cuda/driver.h"

namespace berth::internal {

// What queues work wants the stream's context current in its thread, as every launch does; the rest makes it so.
class CudaStream final : public StreamBackend {
 public:
  // `context` is the stream's, `ordinal` CUDA's of its device in this process.
  CudaStream(cuda::Driver& driver, cuda::Stream stream, cuda::Context context, int ordinal)
      : StreamBackend(StreamKind::kCuda),
        driver_(driver),
        stream_(stream),
        context_(context),
        ordinal_(ordinal) {}
  // Waits for what was published.
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
  // Waits for events and writes words; null until something is published. Its event stands for the last word.
  cuda::Stream side_ = nullptr;
  std::unique_ptr<StreamEvent> side_event_;
  // The stream's next own word has to wait for the side's last.
  bool published_ = false;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_CUDA_STREAM_H_
