// StreamBackend: what runs a stream's work in its order, and can write and wait for words of fence pages in between.

#ifndef CLIENT_INTERNAL_STREAM_BACKEND_H_
#define CLIENT_INTERNAL_STREAM_BACKEND_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "client/internal/fence_pages.h"

namespace berth::internal {

// Queueing is for one thread at a time; where several launch on one stream, the order is theirs to keep.
class StreamBackend {
 public:
  virtual ~StreamBackend() = default;

  // Whether it can do what follows. Asked before anything is queued. Errors: UNSUPPORTED.
  virtual absl::Status CheckSupport() = 0;
  // Queues a wait until `done` of the slot is at least `value`. `page` outlives the stream.
  virtual absl::Status Wait(MappedPage& page, uint32_t slot, uint64_t value) = 0;
  // Queues the write of `done` of a slot of this process's own page, after all that was queued before.
  virtual absl::Status Write(MappedPage& page, uint32_t slot, uint64_t value) = 0;
  // Queues a function. Errors: UNSUPPORTED where work is launched otherwise.
  virtual absl::Status Enqueue(std::function<void()> work) = 0;
  // Waits until all that was queued has run.
  virtual absl::Status Synchronize() = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_STREAM_BACKEND_H_
