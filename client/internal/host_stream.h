// HostStream: a stream of the host's, a thread that runs functions one after the other. Its events and words mean what
// those of CUDA streams mean, so whatever is ordered by fences can be tried without a GPU.

#ifndef CLIENT_INTERNAL_HOST_STREAM_H_
#define CLIENT_INTERNAL_HOST_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/internal/fence_pages.h"
#include "client/internal/stream_backend.h"
#include "common/mutex.h"

namespace berth::internal {

// Thread-safe.
class HostStream final : public StreamBackend {
 public:
  // `over` says that nothing is to be waited for any more: the session is over, and what has not run will not. It is
  // called on the stream's thread.
  explicit HostStream(std::function<bool()> over);
  // Waits until all that was queued has run, or the session is over.
  ~HostStream() override;

  absl::Status CheckSupport() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<StreamEvent>> CreateEvent() override;
  absl::Status Record(StreamEvent& event) override;
  absl::Status WaitEvent(StreamEvent& event) override;
  absl::Status Wait(MappedPage& page, uint32_t slot, uint64_t value) override;
  absl::Status Write(MappedPage& page, uint32_t slot, uint64_t value) override;
  absl::StatusOr<bool> Reached(StreamEvent& event) override;
  absl::Status Publish(StreamEvent& event, MappedPage& page, uint32_t slot, uint64_t value) override;
  absl::Status Enqueue(std::function<void()> work) override ABSL_LOCKS_EXCLUDED(mu_);
  // Errors: kUnavailable if the session ended first.
  absl::Status Synchronize() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run();
  // Queues a wait until `there` says so.
  absl::Status EnqueueWait(std::function<bool()> there);
  // Returns false if the session is over.
  bool Await(absl::FunctionRef<bool()> there) const;

  const std::function<bool()> over_;
  Mutex mu_;
  CondVar changed_ ABSL_GUARDED_BY(mu_);
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  // A wait was given up: nothing behind it may run.
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_HOST_STREAM_H_
