// TrackedStream: a stream of this process as the fence tracker sees it. Holds its events, its fence value, and its open
// uses of blocks that no other process maps.

#ifndef CLIENT_SDK_FENCES_TRACKED_STREAM_H_
#define CLIENT_SDK_FENCES_TRACKED_STREAM_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/sdk/fences/fence_pages.h"
#include "client/sdk/fences/stream_backend.h"
#include "client/sdk/fences/stream_fence_value.h"
#include "common/wire/fence_page.h"

namespace berth::internal {

class TrackedStream;

// The end of a launch, for other streams of the process to wait for. The end is reused once no block refers to it.
struct LaunchEnd {
  LaunchEnd(StreamKind of, TrackedStream* at) : kind(of), stream(at) {}

  const StreamKind kind;
  // Guarded by the tracker's lock. Null once the stream is closed: all its queued work has ended.
  TrackedStream* stream;
  // Number of uses and marks of blocks that refer to this end.
  uint32_t references = 0;

  // Only the launching thread accesses it until the launch is finished; then all threads may read it.
  std::unique_ptr<StreamEvent> event;
  // Number of events that the stream had recorded, including this one, and number of its launches that write.
  uint64_t place = 0;
  uint64_t writes = 0;
  std::atomic<bool> finished = false;
};

// The private members belong to the tracker.
class TrackedStream {
 public:
  // `backend` and `page` (this process's own) must outlive the stream. `last` is the slot's current value, from which
  // values continue.
  TrackedStream(StreamBackend* backend, MappedPage* page, uint32_t slot, uint64_t last)
      : backend_(*backend),
        fence_value_(page, slot, backend, last),
        values_(page->page().writable_slot(slot)),
        begun_(values_.ended.load(std::memory_order_relaxed)),
        writes_(begun_),
        seen_(begun_) {}

  StreamBackend& backend() const { return backend_; }
  StreamFenceValue& fence_value() { return fence_value_; }
  uint32_t slot() const { return fence_value_.slot(); }
  // Number of events recorded so far: the place for fence_value().Queue(). Only for the launching thread.
  uint64_t recorded() const { return recorded_.load(std::memory_order_relaxed); }

 private:
  friend class FenceTracker;
  StreamBackend& backend_;
  StreamFenceValue fence_value_;
  FenceSlot& values_;

  // Used by the launching thread only. The last recorded end, null before the first; and the number of begun, not
  // abandoned launches that write a block.
  LaunchEnd* newest_ = nullptr;
  uint64_t begun_;
  // Written by the launching thread. Number of recorded ends; number of finished launches that write a block.
  std::atomic<uint64_t> recorded_ = 0;
  std::atomic<uint64_t> writes_;

  // The members from here on are guarded by the tracker's lock.
  // All ends of the stream, and those to which nothing refers.
  std::vector<LaunchEnd*> ends_;
  std::vector<LaunchEnd*> free_;
  // Number of writes that were seen to have ended.
  uint64_t seen_;
  // Number of hand-overs that currently use the stream's events.
  uint32_t pins_ = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_FENCES_TRACKED_STREAM_H_
