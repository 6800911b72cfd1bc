// CudaStreamProgress: how far CUDA streams have come, by words that they write themselves: a mark is one more
// for the stream to write (about 1 us), and to look at it is to read host memory, without the driver.

#ifndef CLIENT_ARENA_CUDA_PROGRESS_H_
#define CLIENT_ARENA_CUDA_PROGRESS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/arena_stream.h"
#include "client/internal/registered_memory.h"
#include "common/cuda/driver.h"
#include "common/mutex.h"

namespace berth {

// Thread-safe. An ArenaStream is the CUstream's value. Mark() is called with the stream's context current.
class CudaStreamProgress : public StreamProgress {
 public:
  // Streams that are known at once, by a Mark() and until Forget().
  static constexpr size_t kMaxStreams = 4096;

  // Requires: a context of the device is current; `driver` outlives this. Errors: those of the driver.
  static absl::StatusOr<std::shared_ptr<CudaStreamProgress>> Create(cuda::Driver& driver);
  CudaStreamProgress(const CudaStreamProgress&) = delete;
  CudaStreamProgress& operator=(const CudaStreamProgress&) = delete;
  // Leaves the words where they are, to the end of the process, if a stream may still write one.
  ~CudaStreamProgress() override;

  // Errors: LIMIT past kMaxStreams; those of the driver.
  absl::StatusOr<Point> Mark(ArenaStream stream) override ABSL_LOCKS_EXCLUDED(mu_);
  // Errors: NOT_FOUND for a stream that was never marked.
  absl::StatusOr<bool> Reached(ArenaStream stream, Point point) override ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(ArenaStream stream) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A stream's word, or that of the next one to need it. It only rises, over all streams that have it in turn.
  struct Slot {
    size_t index = 0;
    // The last value that a stream was told to write.
    uint64_t last = 0;
  };

  CudaStreamProgress(cuda::Driver& driver, uint64_t* words, internal::RegisteredMemory registered)
      : driver_(driver), words_(words), registered_(std::move(registered)) {}
  uint64_t Read(const Slot& slot) const;

  cuda::Driver& driver_;
  uint64_t* const words_;
  // Where the streams see them, in any context; nothing once a stream may write one for ever.
  std::optional<internal::RegisteredMemory> registered_;

  Mutex mu_;
  absl::flat_hash_map<ArenaStream, Slot> slots_ ABSL_GUARDED_BY(mu_);
  // Of streams that were forgotten.
  std::vector<Slot> unused_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // CLIENT_ARENA_CUDA_PROGRESS_H_
