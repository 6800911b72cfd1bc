// TrackedStream: a stream of this process as the fence tracker sees it: its events, its word, and what it has under way
// at blocks that no other process maps.

#ifndef CLIENT_INTERNAL_TRACKED_STREAM_H_
#define CLIENT_INTERNAL_TRACKED_STREAM_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/internal/fence_pages.h"
#include "client/internal/stream_backend.h"
#include "client/internal/stream_word.h"
#include "common/fence_page.h"

namespace berth::internal {

class TrackedStream;

// The end of a launch, for other streams of the process to wait for. An event is used again once no block refers to it.
struct LaunchEnd {
  LaunchEnd(StreamKind of, TrackedStream* at) : kind(of), stream(at) {}

  const StreamKind kind;
  // The tracker's, under its lock. Null once the stream is closed: all that it had queued has ended.
  TrackedStream* stream;
  // Uses and marks of blocks.
  uint32_t references = 0;

  // Of who launches until the launch is finished, from then on everybody's to read.
  std::unique_ptr<StreamEvent> event;
  // How many events the stream had recorded with this one, and how many writes it had made.
  uint64_t place = 0;
  uint64_t writes = 0;
  std::atomic<bool> finished = false;
};

// What is private is the tracker's.
class TrackedStream {
 public:
  // `backend` and `page`, this process's own, must outlive the stream. `last` is where the slot's values go on from.
  TrackedStream(StreamBackend* backend, MappedPage* page, uint32_t slot, uint64_t last)
      : backend_(*backend),
        word_(page, slot, backend, last),
        words_(page->page().writable_slot(slot)),
        begun_(words_.ended.load(std::memory_order_relaxed)),
        writes_(begun_),
        seen_(begun_) {}

  StreamBackend& backend() const { return backend_; }
  StreamWord& word() { return word_; }
  uint32_t slot() const { return word_.slot(); }
  // Events recorded so far: the place for word().Queue(). For the thread that launches.
  uint64_t recorded() const { return recorded_.load(std::memory_order_relaxed); }

 private:
  friend class FenceTracker;
  StreamBackend& backend_;
  StreamWord word_;
  FenceSlot& words_;

  // Of the thread that launches. The last end that was recorded, null before the first; launches that write a block,
  // begun and not abandoned.
  LaunchEnd* newest_ = nullptr;
  uint64_t begun_;
  // Written by that thread. Ends recorded; launches that write a block, finished.
  std::atomic<uint64_t> recorded_ = 0;
  std::atomic<uint64_t> writes_;

  // What follows goes by the tracker's lock.
  // All of its ends, and those of them that nobody refers to.
  std::vector<LaunchEnd*> ends_;
  std::vector<LaunchEnd*> free_;
  // Writes that were seen to have ended.
  uint64_t seen_;
  // Hand-overs that are at work on its events.
  uint32_t pins_ = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_TRACKED_STREAM_H_
