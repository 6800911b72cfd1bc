// FencedStream: a CUDA stream of this process whose work Berth orders, with the kernels that the fence tests launch on
// it. Work is queued either directly, or as the use of a block.

#ifndef TESTS_GPU_FENCED_STREAM_H_
#define TESTS_GPU_FENCED_STREAM_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include <berth/block.h>
#include <berth/launch_recorder.h>
#include <berth/session.h>
#include <berth/stream.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/driver.h"

namespace berth::gpu {

// Thread-compatible; used by the thread that opened it, whose current context it sets. Uses device 0 of the daemon and
// of this process.
class FencedStream {
 public:
  // Errors: the driver's, NVRTC's, those of Stream::AdoptCuda().
  static absl::StatusOr<std::unique_ptr<FencedStream>> Open(const std::shared_ptr<Session>& session);
  // Opens all gates first.
  ~FencedStream();

  cuda::Driver& driver() const { return driver_; }
  cuda::Stream stream() const { return stream_; }
  const std::shared_ptr<Stream>& tracked() const { return tracked_; }

  // Blocks the stream until OpenGate() was called as often as gates were queued up to this one.
  absl::Status QueueGate();
  // As QueueGate(), with a kernel that runs until then.
  absl::Status QueueSpin();
  void OpenGate() { gate_->fetch_add(1); }
  // Writes a pattern to the whole mapping; counts the words that differ from it; writes to unmapped memory.
  absl::Status QueueFill(const Mapping& mapping, uint64_t seed);
  absl::Status QueueCheck(const Mapping& mapping, uint64_t seed);
  absl::Status QueueFault();
  // Waits for all queued work. Returns the wrong words that checks have counted since the last call.
  absl::StatusOr<uint64_t> Sync();

  // Queues `work` as one use of the block. Returns whether the block was torn before it.
  enum class Use { kRead, kWrite, kReadWrite };
  absl::StatusOr<bool> Queue(Use use, const Mapping& mapping, absl::FunctionRef<absl::Status()> work);

 private:
  FencedStream(cuda::Driver& driver) : driver_(driver) {}
  absl::Status Load();
  absl::Status Launch(cuda::Function function, uint32_t blocks, uint32_t threads, void** arguments);

  cuda::Driver& driver_;
  cuda::Module module_ = nullptr;
  cuda::Function fill_ = nullptr;
  cuda::Function check_ = nullptr;
  cuda::Function spin_ = nullptr;
  cuda::Function fault_ = nullptr;
  // Device memory: the number of wrong words.
  cuda::DevicePointer wrong_ = 0;
  uint64_t wrong_seen_ = 0;
  // A page of host memory whose first value streams wait for, its device address, and the number of queued gates.
  std::atomic<uint64_t>* gate_ = nullptr;
  cuda::DevicePointer device_gate_ = 0;
  uint64_t gates_ = 0;
  cuda::Stream stream_ = nullptr;
  std::shared_ptr<Stream> tracked_;
};

}  // namespace berth::gpu

#endif  // TESTS_GPU_FENCED_STREAM_H_
