// ArenaHeap: an arena's chunks and the free extents in them.
//
// A free extent lies either in the common bins or in the bins of the stream on which it was freed. The extent stays in
// the stream's bins until that stream is known to have passed the free. Adjacent extents in the same bins merge. Each
// free carries the current epoch, and marks end an epoch. Once a stream has reached a mark, all its frees of that epoch
// and of earlier epochs move to the common bins. So a free costs no driver call, and one mark covers all frees before
// it.
//
// The caller places marks without holding the heap's lock: BeginMarks(), StreamProgress::Mark(), EndMark().

#ifndef CLIENT_SDK_ARENA_ARENA_HEAP_H_
#define CLIENT_SDK_ARENA_ARENA_HEAP_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <berth/arena_options.h>
#include <berth/arena_stream.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/arena/arena_bins.h"
#include "client/sdk/arena/arena_chunk.h"
#include "client/sdk/arena/arena_size_classes.h"

namespace berth::internal {

// Thread-compatible; ArenaCore guards the heap with its mutex. Owns chunks and extents.
class ArenaHeap {
 public:
  struct Use {
    ArenaStream stream;
    StreamProgress::Point point;
  };
  // A mark that the caller is to place on a stream.
  struct OpenMark {
    ArenaStream stream;
    uint64_t epoch;
  };

  // `chunk_class`: the size class of a full chunk. A larger request is served by a chunk of its own.
  ArenaHeap(ArenaSizeClasses classes, uint32_t granule_shift, uint32_t chunk_class)
      : classes_(classes), granule_shift_(granule_shift), chunk_class_(chunk_class) {}
  ArenaHeap(const ArenaHeap&) = delete;
  ArenaHeap& operator=(const ArenaHeap&) = delete;

  // Adds a chunk that is entirely free for every stream. A chunk with `whole` set serves only `size_class`.
  void AddChunk(std::unique_ptr<ArenaLease> lease, bool whole, uint32_t size_class);

  // Removes and returns the chunks that are entirely free for every stream. No reference to their extents remains.
  std::vector<std::unique_ptr<ArenaChunk>> RemoveFreeChunks();
  // Removes and returns all chunks. Requires: the heap is no longer used.
  std::vector<std::unique_ptr<ArenaChunk>> RemoveAllChunks();

  std::vector<const ArenaChunk*> chunks() const;

  // Returns an extent of `size_class` that `stream` may use, in state kCached; null where the heap has none.
  ArenaExtent* Take(uint32_t size_class, ArenaStream stream);

  // Takes back an extent that was freed on `stream`. Requires: the extent is kCached.
  void Put(ArenaExtent* extent, ArenaStream stream);
  // As Put(), but only once all `uses` are reached.
  void PutAfter(ArenaExtent* extent, ArenaStream stream, std::vector<Use> uses);

  // Begins a mark on every stream that has frees without a mark. At most kMaxMarks are open on one stream.
  std::vector<OpenMark> BeginMarks();
  // Completes a mark with its point, or cancels it where the caller could not place it.
  void EndMark(const OpenMark& mark, const absl::StatusOr<StreamProgress::Point>& point);
  // Releases the extents that `progress` reports as reached. Errors: those of `progress`; extents handled before the
  // error are released.
  absl::Status Settle(StreamProgress& progress);

  // Moves the extents freed on `stream` to the common bins, and forgets the stream. Requires: all work on it is done.
  void Forget(ArenaStream stream);

  // Whether any free extent waits for a stream.
  bool waiting() const;

  // Total bytes of all chunks.
  uint64_t leased() const { return leased_ << granule_shift_; }
  // Fills in the heap's statistics. Updates or adds an entry of `stats->streams` for each stream that the heap knows.
  void AddTo(ArenaStats* stats) const;

 private:
  // Limit of unreached marks on one stream: one placed recently, and one for the frees after it.
  static constexpr size_t kMaxMarks = 2;

  struct Stream {
    ArenaBins bins;
    // Whether the stream has frees without a mark.
    bool unmarked = false;
    struct Mark {
      uint64_t epoch;
      StreamProgress::Point point;
    };
    std::deque<Mark> marks;
  };
  struct Waiting {
    ArenaExtent* extent;
    // Stream of the free; nullopt once that stream is forgotten.
    std::optional<ArenaStream> stream;
    std::vector<Use> uses;
  };

  ArenaExtent* NewExtent(ArenaChunk* chunk, uint64_t start, uint64_t size);
  void Retire(ArenaExtent* extent);
  ArenaExtent* TakeFrom(const ArenaBins& bins, uint32_t size_class) const;
  // Cuts the part beyond `size` off `extent`, and inserts it into `bins`.
  void Cut(ArenaExtent* extent, uint64_t size, ArenaBins* bins);
  uint32_t BinOf(const ArenaExtent& extent) const;
  // Moves extents of `stream` that were freed in `epoch` or earlier to the common bins.
  void Release(Stream& stream, uint64_t epoch);
  // Inserts an extent that is in no bins, and merges it with its neighbours in `bins`.
  void Insert(ArenaExtent* extent, ArenaBins* bins, uint64_t epoch);
  // Merges `after`, which follows `extent`, into `extent`; `after` is retired.
  void Join(ArenaExtent* extent, ArenaExtent* after);
  bool IsWholeChunk(const ArenaExtent& extent) const;
  Stream& StreamOf(ArenaStream stream);
  absl::Status SettleStream(ArenaStream id, Stream& stream, StreamProgress& progress);
  absl::Status SettleWaiting(StreamProgress& progress);
  // Granules that are allocated or in the threads' caches.
  uint64_t out() const;

  const ArenaSizeClasses classes_;
  const uint32_t granule_shift_;
  const uint32_t chunk_class_;

  std::vector<std::unique_ptr<ArenaChunk>> chunks_;
  // All extents ever made, so that a mistaken free never reads freed memory. `retired_` lists the extents to reuse.
  std::deque<ArenaExtent> extents_;
  ArenaExtent* retired_ = nullptr;

  ArenaBins anyones_;
  // Held by pointer, because extents point to the bins.
  absl::flat_hash_map<ArenaStream, std::unique_ptr<Stream>> streams_;
  std::vector<Waiting> waiting_;
  // Epoch of the next frees.
  uint64_t epoch_ = 1;

  // The members leased_ to peak_out_ are in granules.
  uint64_t leased_ = 0;
  uint64_t in_streams_ = 0;
  uint64_t in_use_ = 0;
  uint64_t peak_leased_ = 0;
  uint64_t peak_out_ = 0;
  uint64_t leases_ = 0;
  uint64_t returns_ = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_ARENA_ARENA_HEAP_H_
