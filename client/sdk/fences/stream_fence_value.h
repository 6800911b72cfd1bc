// StreamFenceValue: the fence value that a stream raises for other processes to wait for. StreamFenceValue alone takes
// each next value; values are reached in the order in which they are taken.
//
// Two ways lead to a value. Queue(): the stream itself writes the value, after all queued work. Publish(): the value
// follows an event that the stream recorded earlier, and the stream itself is not touched. `place` counts the events
// that a stream has recorded, from 1.

#ifndef CLIENT_SDK_FENCES_STREAM_FENCE_VALUE_H_
#define CLIENT_SDK_FENCES_STREAM_FENCE_VALUE_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "client/sdk/fences/fence_pages.h"
#include "client/sdk/fences/stream_backend.h"
#include "common/mutex.h"

namespace berth::internal {

// Thread-safe, as far as the stream is: Queue() queues work on it.
class StreamFenceValue {
 public:
  // `page` is this process's own. `page` and `stream` must outlive this object. `last` is the slot's current value,
  // from which values continue.
  StreamFenceValue(MappedPage* page, uint32_t slot, StreamBackend* stream, uint64_t last)
      : page_(*page), slot_(slot), stream_(*stream), last_(last) {}

  uint32_t slot() const { return slot_; }
  MappedPage& page() const { return page_; }

  // Returns the value that is reached once all work queued on the stream has ended. Events up to `place` have been
  // recorded. Errors: the driver's; then the value is not taken.
  absl::StatusOr<uint64_t> Queue(uint64_t place) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the value that is reached once the work that the event represents has ended. The result is a new value, or
  // a value under way that is not reached earlier. Errors: the driver's; the value may be reached all the same.
  absl::StatusOr<uint64_t> Publish(StreamEvent& event, uint64_t place) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  MappedPage& page_;
  const uint32_t slot_;
  StreamBackend& stream_;

  Mutex mu_;
  // The last value taken, and the place of the latest event that it covers.
  uint64_t last_ ABSL_GUARDED_BY(mu_);
  uint64_t place_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_FENCES_STREAM_FENCE_VALUE_H_
