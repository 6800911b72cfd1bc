// StreamBackend runs a stream's work in order, and can place marks in the stream for others to wait for. Two kinds of
// marks exist. Events cost next to nothing and are private to this process. Fence values in fence pages
// (common/wire/fence_page.h) can be awaited by every process.

#ifndef CLIENT_SDK_FENCES_STREAM_BACKEND_H_
#define CLIENT_SDK_FENCES_STREAM_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/fences/fence_pages.h"

namespace berth::internal {

enum class StreamKind { kHost, kCuda };

// A place in the order of a stream's work. An event can be recorded any number of times. The stream's backend makes the
// event and must outlive it.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
};

// Only one thread at a time may queue. Where several threads launch on one stream, they must order their launches.
class StreamBackend {
 public:
  explicit StreamBackend(StreamKind kind) : kind_(kind) {}
  virtual ~StreamBackend() = default;
  StreamKind kind() const { return kind_; }

  // Checks that the stream supports the operations below. Called before any work is queued. Errors: UNSUPPORTED.
  virtual absl::Status CheckSupport() = 0;

  virtual absl::StatusOr<std::unique_ptr<StreamEvent>> CreateEvent() = 0;
  // Records one of the stream's own events: from now on it represents all work that is queued so far, and nothing else.
  virtual absl::Status Record(StreamEvent& event) = 0;
  // Queues a wait for the work that the event represents at this moment. The event belongs to this stream or to another
  // stream of the same kind.
  virtual absl::Status WaitEvent(StreamEvent& event) = 0;

  // Queues a wait until `done` of the slot is at least `value`. `page` must outlive the stream.
  virtual absl::Status Wait(MappedPage& page, uint32_t slot, uint64_t value) = 0;
  // Queues the write of `done` of a slot in this process's own page. The write follows all work queued before and all
  // values published before.
  virtual absl::Status Write(MappedPage& page, uint32_t slot, uint64_t value) = 0;

  // The methods from here to Publish() may run on any thread while another thread queues work, because they do not
  // touch the stream. But Publish() and Write() of one stream need one thread at a time.
  // Whether the work that one of the stream's own events represents has ended.
  virtual absl::StatusOr<bool> Reached(StreamEvent& event) = 0;
  // Raises `done` of the slot to `value` once the work that one of the stream's own events represents has ended,
  // whatever was queued after it. Requires: no Write() was queued since the event was recorded.
  virtual absl::Status Publish(StreamEvent& event, MappedPage& page, uint32_t slot, uint64_t value) = 0;

  // Queues a function. Errors: UNSUPPORTED where the stream does not run host functions.
  virtual absl::Status Enqueue(std::function<void()> work) = 0;
  // Waits until all queued work has run.
  virtual absl::Status Synchronize() = 0;

 private:
  const StreamKind kind_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_FENCES_STREAM_BACKEND_H_
