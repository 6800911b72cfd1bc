// Stream: work that runs in its order, and that Berth can order among other streams', in this process and in others
// (launch_recorder.h). A CUDA stream of the caller's, or on the host a thread.
//
//   auto stream = berth::Stream::AdoptCuda(session, {.device = 0, .cuda_stream = my_stream});
//   auto host = berth::Stream::OpenHost(session);
//   host->get()->Enqueue([] { … });

#ifndef CLIENT_STREAM_H_
#define CLIENT_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session.h"

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
  // Open the device's default stream (id 0), of which a process has one. Nothing falls back to it by itself.
  // For CUDA it goes with a null `cuda_stream`.
  bool default_stream = false;
  // CUDA alone: a CUstream, which stays the caller's and must outlive the Stream.
  void* cuda_stream = nullptr;
};

// Shared by its user and the recorders on it. Thread-safe, but launches on one stream are in the order in
// which they are queued: where several threads launch on it, each keeps the others out from preflight to
// commit.
class Stream {
 public:
  // A stream of the host's: a thread of its own.
  // Errors: LIMIT, at the 17th of a device by default; STREAM_MISUSE where the default stream is open already;
  // NOT_FOUND (device); UNSUPPORTED where the device's memory cannot be tracked; as every call's else.
  static absl::StatusOr<std::shared_ptr<Stream>> OpenHost(const std::shared_ptr<Session>& session,
                                                          const StreamOptions& options = {});
  // A stream of CUDA's. Its context is current in this thread, and in every thread that launches on it.
  // Errors: as OpenHost(); UNSUPPORTED where there is no CUDA or the device cannot; DRIVER without a current context.
  static absl::StatusOr<std::shared_ptr<Stream>> AdoptCuda(const std::shared_ptr<Session>& session,
                                                           const StreamOptions& options);
  // The SDK's own.
  static absl::StatusOr<std::shared_ptr<Stream>> Open(std::shared_ptr<internal::Fences> fences,
                                                      std::unique_ptr<internal::StreamBackend> backend,
                                                      const StreamOptions& options);

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  // Waits for what was queued, which ends with writes to a page of the session's. A CUDA stream stays open. Its context
  // must outlive launches on other streams that were preflighted meanwhile.
  ~Stream();

  // Among the device's streams in this process; 0 is the default stream.
  uint32_t id() const { return id_; }
  uint32_t device() const { return device_; }

  // Queues a function on a host stream. Errors: UNSUPPORTED on a CUDA stream; kUnavailable when the session is over.
  absl::Status Enqueue(std::function<void()> work);
  // Waits until all that was queued has run. A process that has seen the end of its work so, or by closing the stream,
  // tears no block that it alone maps should it die. Errors: the driver's; kUnavailable when the session is over.
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

#endif  // CLIENT_STREAM_H_
