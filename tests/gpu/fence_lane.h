// FenceLane: a CUDA stream of this process's that Berth orders, with the kernels that tests of fences launch on it.
// Work is queued as it is, or as the use of a block.

#ifndef TESTS_GPU_FENCE_LANE_H_
#define TESTS_GPU_FENCE_LANE_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/block.h"
#include "client/launch_recorder.h"
#include "client/session.h"
#include "client/stream.h"
#include "common/cuda/driver.h"

namespace berth::gpu {

// Thread-compatible; used by the thread that opened it, whose current context it sets. Device 0, at the daemon
// and here.
class FenceLane {
 public:
  // Errors: the driver's, NVRTC's, those of Stream::AdoptCuda().
  static absl::StatusOr<std::unique_ptr<FenceLane>> Open(const std::shared_ptr<Session>& session);
  // Opens all gates first.
  ~FenceLane();

  cuda::Driver& driver() const { return driver_; }
  cuda::Stream stream() const { return stream_; }
  const std::shared_ptr<Stream>& tracked() const { return tracked_; }

  // Holds the stream up until as many OpenGate() have been called as gates were queued up to this one.
  absl::Status QueueGate();
  // The same by a kernel, which runs until then.
  absl::Status QueueSpin();
  void OpenGate() { gate_->fetch_add(1); }
  // Writes a pattern over all of the mapping; counts the words that are not of it; writes where nothing is.
  absl::Status QueueFill(const Mapping& mapping, uint64_t seed);
  absl::Status QueueCheck(const Mapping& mapping, uint64_t seed);
  absl::Status QueueFault();
  // What was queued has run. Returns the wrong words that checks have counted since the last call.
  absl::StatusOr<uint64_t> Sync();

  // Queues `work` as one use of the block. Returns whether the block was torn before it.
  enum class Use { kRead, kWrite, kReadWrite };
  absl::StatusOr<bool> Queue(Use use, const Mapping& mapping, absl::FunctionRef<absl::Status()> work);

 private:
  FenceLane(cuda::Driver& driver) : driver_(driver) {}
  absl::Status Load();
  absl::Status Launch(cuda::Function function, uint32_t blocks, uint32_t threads, void** arguments);

  cuda::Driver& driver_;
  cuda::Module module_ = nullptr;
  cuda::Function fill_ = nullptr;
  cuda::Function check_ = nullptr;
  cuda::Function spin_ = nullptr;
  cuda::Function fault_ = nullptr;
  // Device memory: the wrong words.
  cuda::DevicePointer wrong_ = 0;
  uint64_t wrong_seen_ = 0;
  // A page of host memory, where streams find its first word, and how many gates were queued.
  std::atomic<uint64_t>* gate_ = nullptr;
  cuda::DevicePointer device_gate_ = 0;
  uint64_t gates_ = 0;
  cuda::Stream stream_ = nullptr;
  std::shared_ptr<Stream> tracked_;
};

}  // namespace berth::gpu

#endif  // TESTS_GPU_FENCE_LANE_H_
