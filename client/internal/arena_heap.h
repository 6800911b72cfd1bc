// ArenaHeap: an arena's chunks and what is free in them.
//
// A free extent is either anyone's or a stream's: that of the stream on which it was freed, until that one is
// known to have come past the free. Neighbours grow together where they are the same one's. Frees carry the
// epoch in which they came. Marks end an epoch, and once a stream's mark is reached, whatever was freed on it
// in that epoch or an earlier one becomes anyone's. So a free costs no driver call, and a mark covers all
// frees before it.
//
// Marks are put by the caller, who has no lock then: BeginMarks(), StreamProgress::Mark(), EndMark().

#ifndef CLIENT_INTERNAL_ARENA_HEAP_H_
#define CLIENT_INTERNAL_ARENA_HEAP_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/arena_options.h"
#include "client/arena_stream.h"
#include "client/internal/arena_bins.h"
#include "client/internal/arena_chunk.h"
#include "client/internal/arena_size_classes.h"

namespace berth::internal {

// Thread-compatible; ArenaCore guards it with its mutex. Owns chunks and extents.
class ArenaHeap {
 public:
  struct Use {
    ArenaStream stream;
    StreamProgress::Point point;
  };
  // A mark that is to be put on a stream.
  struct OpenMark {
    ArenaStream stream;
    uint64_t epoch;
  };

  // `chunk_class`: the size class of a full chunk; larger ones are served by chunks of their own.
  ArenaHeap(ArenaSizeClasses classes, uint32_t granule_shift, uint32_t chunk_class)
      : classes_(classes), granule_shift_(granule_shift), chunk_class_(chunk_class) {}
  ArenaHeap(const ArenaHeap&) = delete;
  ArenaHeap& operator=(const ArenaHeap&) = delete;

  // All of it is free for anyone. A chunk of a lease that is `whole` serves `size_class` alone.
  void AddChunk(std::unique_ptr<ArenaLease> lease, bool whole, uint32_t size_class);

  // Takes those chunks out that are free for anyone from end to end. Nothing refers to their extents then.
  std::vector<std::unique_ptr<ArenaChunk>> RemoveFreeChunks();
  // Takes all chunks out. Requires: the heap is not used any more.
  std::vector<std::unique_ptr<ArenaChunk>> RemoveAllChunks();

  std::vector<const ArenaChunk*> chunks() const;

  // Returns: an extent of `size_class`, state kCached, that `stream` may use; null where there is none.
  ArenaExtent* Take(uint32_t size_class, ArenaStream stream);

  // Takes back an extent that was freed on `stream`. Requires: it is kCached.
  void Put(ArenaExtent* extent, ArenaStream stream);
  // The same, once all `uses` are reached.
  void PutAfter(ArenaExtent* extent, ArenaStream stream, std::vector<Use> uses);

  // Begins a mark on every stream with frees that no mark covers; at most kMaxMarks are open on one.
  std::vector<OpenMark> BeginMarks();
  // Ends it with the point, or with nothing where the mark could not be put.
  void EndMark(const OpenMark& mark, const absl::StatusOr<StreamProgress::Point>& point);
  // Lets go what `progress` says is reached. Errors: its own; what came before one has been let go.
  absl::Status Settle(StreamProgress& progress);

  // Makes anyone's what was freed on `stream`, and forgets it. Requires: all work on it is done.
  void Forget(ArenaStream stream);

  // Whether anything free waits for a stream.
  bool waiting() const;

  // Bytes of all chunks.
  uint64_t leased() const { return leased_ << granule_shift_; }
  // Fills in what the heap knows; adds to `stats->streams`, or makes, the streams that it knows.
  void AddTo(ArenaStats* stats) const;

 private:
  // Marks of a stream that are not reached: one that was put lately, and one for what came after it.
  static constexpr size_t kMaxMarks = 2;

  struct Stream {
    ArenaBins bins;
    // Whether there were frees that no mark covers.
    bool unmarked = false;
    struct Mark {
      uint64_t epoch;
      StreamProgress::Point point;
    };
    std::deque<Mark> marks;
  };
  struct Waiting {
    ArenaExtent* extent;
    // On which it was freed; none once that is forgotten.
    std::optional<ArenaStream> stream;
    std::vector<Use> uses;
  };

  ArenaExtent* NewExtent(ArenaChunk* chunk, uint64_t start, uint64_t size);
  void Retire(ArenaExtent* extent);
  ArenaExtent* TakeFrom(const ArenaBins& bins, uint32_t size_class) const;
  // Cuts what is more than `size` off `extent`, and inserts it into `bins`.
  void Cut(ArenaExtent* extent, uint64_t size, ArenaBins* bins);
  uint32_t BinOf(const ArenaExtent& extent) const;
  // Moves what is in `stream`'s bins since `epoch` or before to anyone's.
  void Release(Stream& stream, uint64_t epoch);
  // Inserts an extent that is in no bins, and joins it with its neighbours there.
  void Insert(ArenaExtent* extent, ArenaBins* bins, uint64_t epoch);
  // `after` follows `extent`, and is no more.
  void Join(ArenaExtent* extent, ArenaExtent* after);
  bool IsWholeChunk(const ArenaExtent& extent) const;
  Stream& StreamOf(ArenaStream stream);
  absl::Status SettleStream(ArenaStream id, Stream& stream, StreamProgress& progress);
  absl::Status SettleWaiting(StreamProgress& progress);
  // What is out: allocated, or in the threads' caches.
  uint64_t out() const;

  const ArenaSizeClasses classes_;
  const uint32_t granule_shift_;
  const uint32_t chunk_class_;

  std::vector<std::unique_ptr<ArenaChunk>> chunks_;
  // Every extent there ever was, so that a mistaken free never reads freed memory; and those to be used again.
  std::deque<ArenaExtent> extents_;
  ArenaExtent* retired_ = nullptr;

  ArenaBins anyones_;
  // By pointer: extents point to the bins.
  absl::flat_hash_map<ArenaStream, std::unique_ptr<Stream>> streams_;
  std::vector<Waiting> waiting_;
  // Of frees from now on.
  uint64_t epoch_ = 1;

  // Granules.
  uint64_t leased_ = 0;
  uint64_t in_streams_ = 0;
  uint64_t in_use_ = 0;
  uint64_t peak_leased_ = 0;
  uint64_t peak_out_ = 0;
  uint64_t leases_ = 0;
  uint64_t returns_ = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_ARENA_HEAP_H_
