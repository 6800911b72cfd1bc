// HostStream: a host stream, a thread that runs functions one after the other. HostStream's events and fence values
// have the same meaning as those of CUDA streams, so that fence ordering can be tested without a GPU.

#ifndef CLIENT_SDK_FENCES_HOST_STREAM_H_
#define CLIENT_SDK_FENCES_HOST_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/fences/fence_pages.h"
#include "client/sdk/fences/stream_backend.h"
#include "common/mutex.h"
#include "common/thread.h"

namespace berth::internal {

// Thread-safe.
class HostStream final : public StreamBackend {
 public:
  // `over` returns whether the session is over: then waits end, and work that has not run never runs. The stream's
  // thread calls it.
  // Errors: kResourceExhausted where no thread can start.
  static absl::StatusOr<std::unique_ptr<HostStream>> Start(std::function<bool()> over);
  // Waits until all queued work has run, or the session is over.
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
  explicit HostStream(std::function<bool()> over);
  void Run();
  // Queues a wait until `there` returns true.
  absl::Status EnqueueWait(std::function<bool()> there);
  // Returns false if the session is over.
  bool Await(absl::FunctionRef<bool()> there) const;

  const std::function<bool()> over_;
  Mutex mu_;
  CondVar changed_ ABSL_GUARDED_BY(mu_);
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  // A wait was aborted, so no work behind it may run.
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_FENCES_HOST_STREAM_H_
