// CudaStreamProgress: measures how far CUDA streams have come, by values that the streams themselves write to host
// memory. A mark queues one more write on the stream (about 1 us). A check reads host memory, without the driver.

#ifndef BERTH_ARENA_CUDA_PROGRESS_H_
#define BERTH_ARENA_CUDA_PROGRESS_H_

#include <cstddef>
#include <memory>

#include <berth/arena_stream.h>

#include "absl/status/statusor.h"

namespace berth {

namespace cuda {
class Driver;
}  // namespace cuda

// Thread-safe. An ArenaStream is the CUstream's value. Mark() requires that the stream's context is current.
class CudaStreamProgress : public StreamProgress {
 public:
  // Maximum number of streams known at once. A stream is known from its first Mark() until Forget().
  static constexpr size_t kMaxStreams = 4096;

  // Requires: a context of the device is current; `driver` outlives this. Errors: those of the driver.
  static absl::StatusOr<std::shared_ptr<CudaStreamProgress>> Create(cuda::Driver& driver);
  CudaStreamProgress(const CudaStreamProgress&) = delete;
  CudaStreamProgress& operator=(const CudaStreamProgress&) = delete;
  // Leaves the memory mapped until the process ends, if a stream may still write to it.
  ~CudaStreamProgress() override;

  // Errors: LIMIT past kMaxStreams; those of the driver.
  absl::StatusOr<Point> Mark(ArenaStream stream) override;
  // Errors: NOT_FOUND for a stream that was never marked.
  absl::StatusOr<bool> Reached(ArenaStream stream, Point point) override;
  void Forget(ArenaStream stream) override;

 private:
  struct State;
  explicit CudaStreamProgress(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace berth

#endif  // BERTH_ARENA_CUDA_PROGRESS_H_
