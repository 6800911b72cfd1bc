// StreamWord: the word that a stream raises for other processes to wait for, and the one place where its next value
// is taken: values come to pass in the order in which they are taken.
//
// There are two ways to a value. Queue() has the stream itself write it, behind all that is queued. Publish() has it
// come with an event that the stream recorded a while ago, and leaves the stream alone. `place` counts the events that
// a stream has recorded, from 1.

#ifndef CLIENT_INTERNAL_STREAM_WORD_H_
#define CLIENT_INTERNAL_STREAM_WORD_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "client/internal/fence_pages.h"
#include "client/internal/stream_backend.h"
#include "common/mutex.h"

namespace berth::internal {

// Thread-safe, as far as the stream is: Queue() queues.
class StreamWord {
 public:
  // `page` is this process's own; it and `stream` must outlive this. `last` is where the slot's values go on from.
  StreamWord(MappedPage* page, uint32_t slot, StreamBackend* stream, uint64_t last)
      : page_(*page), slot_(slot), stream_(*stream), last_(last) {}

  uint32_t slot() const { return slot_; }
  MappedPage& page() const { return page_; }

  // Returns the value that the word has once all that is queued on the stream has ended; events up to `place` have
  // been recorded. Errors: the driver's, and the value is not taken.
  absl::StatusOr<uint64_t> Queue(uint64_t place) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the value that the word has once what the event stands for has ended: a new one, or one under way that
  // comes no sooner. Errors: the driver's; the value may come to pass all the same.
  absl::StatusOr<uint64_t> Publish(StreamEvent& event, uint64_t place) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  MappedPage& page_;
  const uint32_t slot_;
  StreamBackend& stream_;

  Mutex mu_;
  // The last value that was taken, and the place that it is not before.
  uint64_t last_ ABSL_GUARDED_BY(mu_);
  uint64_t place_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_STREAM_WORD_H_
