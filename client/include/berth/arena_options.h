// Options and statistics of an arena.

#ifndef BERTH_ARENA_OPTIONS_H_
#define BERTH_ARENA_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <berth/arena_stream.h>
#include <berth/bytes.h>
#include <berth/export_kind.h>

#include "absl/time/time.h"

namespace berth {

// How an arena rounds requests. Both policies first round to whole multiples of ArenaOptions::alignment.
enum class ArenaPolicy {
  // Exact up to eight alignments; above, to one of eight sizes in each doubling. Wastes less than one eighth of the
  // request.
  kSizeClasses,
  // To a power of two, so that buffers of about the same size are always interchangeable. Wastes less than the request.
  // Meant for a scratch arena.
  kPowerOfTwo,
};

struct ArenaOptions {
  // The device's ordinal; ignored where `device_uuid` is set.
  uint32_t device = 0;
  std::string device_uuid;
  // How the blocks are exported; as in BlockOptions.
  std::vector<ExportKind> export_kinds = {ExportKind::kFd};
  // Size of one lease: a power of two, 16 MiB to 64 GiB. Smaller where the limit or the daemon's budget leaves less. A
  // larger request gets a block of its own, which the arena caches for the next request of that size.
  Bytes chunk_bytes = MiB(128);
  // Maximum of leased bytes, free memory included. Unset: limited only by the daemon's budgets.
  std::optional<Bytes> limit;
  // Label of the blocks; also names the arena in its errors.
  std::string label = "arena";
  ArenaPolicy policy = ArenaPolicy::kSizeClasses;
  // Alignment of every allocation: a power of two, 256 to 4,096.
  Bytes alignment = Bytes(256);
  // How long an allocation that would otherwise fail waits for streams to pass the frees queued on them.
  absl::Duration stream_patience = absl::Seconds(1);
  // Reports how far streams have come. Null: CudaStreamProgress or ImmediateProgress, by the kind of memory.
  std::shared_ptr<StreamProgress> progress;
};

// A snapshot of an arena. Leased memory is live, or free in one of four ways:
// leased = live + cached + free + held + in_use. Exact while no call is in progress.
struct ArenaStats {
  struct Stream {
    ArenaStream stream = ArenaStream::kDefault;
    uint64_t allocations = 0;
    uint64_t frees = 0;
    // Bytes freed on this stream: in the threads' caches, and in chunks.
    Bytes cached;
    Bytes held;
  };

  Bytes leased;
  uint64_t chunks = 0;
  // Allocated bytes, after rounding.
  Bytes live;
  // Allocated bytes, as requested.
  Bytes live_requested;
  uint64_t live_count = 0;
  // Freed bytes in the threads' caches, reusable by the freeing stream.
  Bytes cached;
  // Free bytes in chunks, usable by any stream.
  Bytes free;
  // Freed bytes in chunks, reusable by the freeing stream; by other streams once that stream has passed the free.
  Bytes held;
  // Freed bytes that another stream may still use (UsedOn).
  Bytes in_use;
  // The largest contiguous piece of `free`.
  Bytes largest_free;
  // Highest value of `leased` so far.
  Bytes peak_leased;
  // Highest value of live + cached so far.
  Bytes peak_out;
  uint64_t allocations = 0;
  uint64_t frees = 0;
  // Allocations that missed the calling thread's cache.
  uint64_t misses = 0;
  // Allocations that failed.
  uint64_t refusals = 0;
  // Blocks leased so far.
  uint64_t leases = 0;
  // Blocks returned to the daemon so far.
  uint64_t returns = 0;
  // Known streams, by number.
  std::vector<Stream> streams;

  // Share of `free` outside its largest piece. 0 if `free` is one piece or empty.
  double fragmentation() const {
    if (free.count() == 0) return 0;
    return 1 - static_cast<double>(largest_free.count()) / static_cast<double>(free.count());
  }
};

}  // namespace berth

#endif  // BERTH_ARENA_OPTIONS_H_
