// StreamBackend: what runs a stream's work in its order, and can put marks in between for others to wait for. Marks
// are of two kinds: events, which cost next to nothing and are this process's alone, and words of fence pages
// (common/fence_page.h), which every process can wait for.

#ifndef CLIENT_INTERNAL_STREAM_BACKEND_H_
#define CLIENT_INTERNAL_STREAM_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/internal/fence_pages.h"

namespace berth::internal {

enum class StreamKind { kHost, kCuda };

// A place in the order of a stream's work, recorded as often as one likes. Made by that stream's backend, which must
// outlive it.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
};

// Queueing is for one thread at a time; where several launch on one stream, the order is theirs to keep.
class StreamBackend {
 public:
  explicit StreamBackend(StreamKind kind) : kind_(kind) {}
  virtual ~StreamBackend() = default;
  StreamKind kind() const { return kind_; }

  // Whether it can do what follows. Asked before anything is queued. Errors: UNSUPPORTED.
  virtual absl::Status CheckSupport() = 0;

  virtual absl::StatusOr<std::unique_ptr<StreamEvent>> CreateEvent() = 0;
  // Has one of its own events stand for all that is queued by now, and for nothing else any more.
  virtual absl::Status Record(StreamEvent& event) = 0;
  // Queues a wait for what the event stands for at this moment. It is a stream's of the same kind, or this one's.
  virtual absl::Status WaitEvent(StreamEvent& event) = 0;

  // Queues a wait until `done` of the slot is at least `value`. `page` outlives the stream.
  virtual absl::Status Wait(MappedPage& page, uint32_t slot, uint64_t value) = 0;
  // Queues the write of `done` of a slot of this process's own page, after all that was queued before and
  // after what was published before.
  virtual absl::Status Write(MappedPage& page, uint32_t slot, uint64_t value) = 0;

  // What follows may be called on any thread, while another one queues work: it leaves the stream alone. But a
  // stream's Publish() and Write() are for one thread at a time.
  // Whether what one of its own events stands for has ended.
  virtual absl::StatusOr<bool> Reached(StreamEvent& event) = 0;
  // Has `done` of the slot come to `value` once what one of its own events stands for has ended, whatever was queued
  // behind that. Requires: no Write() was queued since the event was recorded.
  virtual absl::Status Publish(StreamEvent& event, MappedPage& page, uint32_t slot, uint64_t value) = 0;

  // Queues a function. Errors: UNSUPPORTED where work is launched otherwise.
  virtual absl::Status Enqueue(std::function<void()> work) = 0;
  // Waits until all that was queued has run.
  virtual absl::Status Synchronize() = 0;

 private:
  const StreamKind kind_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_STREAM_BACKEND_H_
