// Stream: work that runs in order, and that Berth can order relative to other streams, in this process and in others
// (launch_recorder.h). A CUDA stream owned by the caller, or a thread on a host device.
//
//   auto stream = berth::Stream::AdoptCuda(session, {.device = 0, .cuda_stream = my_stream});
//   auto host = berth::Stream::OpenHost(session);
//   host->get()->Enqueue([] { … });

#ifndef BERTH_STREAM_H_
#define BERTH_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>

#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace berth {

namespace internal {
struct Fences;
struct OpenedStream;
class StreamBackend;
class TrackedStream;
}  // namespace internal

struct StreamOptions {
  // The device's ordinal at the daemon.
  uint32_t device = 0;
  // Open the device's default stream (id 0); a process has one per device. Never used implicitly. For CUDA requires a
  // null `cuda_stream`.
  bool default_stream = false;
  // CUDA only: a CUstream. The caller owns it; it must outlive the Stream.
  void* cuda_stream = nullptr;
};

// Shared by its user and the recorders on it. Thread-safe. Launches on one stream run in the order in which they are
// queued: if several threads launch on it, each must exclude the others from preflight to commit.
class Stream {
 public:
  // Opens a host stream with its own thread.
  // Errors: LIMIT, by default at the 17th stream of a device; STREAM_MISUSE if the default stream is already open;
  // NOT_FOUND (device); UNSUPPORTED if the device's memory cannot be tracked; otherwise as every call.
  static absl::StatusOr<std::shared_ptr<Stream>> OpenHost(const std::shared_ptr<Session>& session,
                                                          const StreamOptions& options = {});
  // Adopts a CUDA stream. Requires: its context is current in this thread, and in every thread that launches on it.
  // Errors: as OpenHost(); UNSUPPORTED without CUDA or if the device lacks support; DRIVER without a current context.
  static absl::StatusOr<std::shared_ptr<Stream>> AdoptCuda(const std::shared_ptr<Session>& session,
                                                           const StreamOptions& options);
  // For internal use by the SDK.
  static absl::StatusOr<std::shared_ptr<Stream>> Open(std::shared_ptr<internal::Fences> fences,
                                                      std::unique_ptr<internal::StreamBackend> backend,
                                                      const StreamOptions& options);

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  // Waits for the queued work, whose last step writes to a page of the session. A CUDA stream stays open. Its context
  // must outlive launches on other streams that were preflighted meanwhile.
  ~Stream();

  // Identifies the stream among the device's streams in this process; 0 is the default stream.
  uint32_t id() const { return id_; }
  uint32_t device() const { return device_; }

  // Queues a function on a host stream. Errors: UNSUPPORTED on a CUDA stream; kUnavailable when the session is over.
  absl::Status Enqueue(std::function<void()> work);
  // Waits until all queued work has run. After Synchronize() or the destructor, the death of this process tears no
  // block that this process alone maps. Errors: the driver's; kUnavailable when the session is over.
  absl::Status Synchronize();

 private:
  friend class LaunchRecorder;
  Stream(std::shared_ptr<internal::Fences> fences, std::unique_ptr<internal::StreamBackend> backend,
         uint32_t device, const internal::OpenedStream& opened);

  const std::shared_ptr<internal::Fences> fences_;
  const std::unique_ptr<internal::StreamBackend> backend_;
  const uint32_t device_;
  const uint32_t id_;
  const std::unique_ptr<internal::TrackedStream> tracked_;
};

}  // namespace berth

#endif  // BERTH_STREAM_H_
