// How an arena is made, and what it says of itself.

#ifndef CLIENT_ARENA_OPTIONS_H_
#define CLIENT_ARENA_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/arena_stream.h"
#include "client/export_kind.h"
#include "common/bytes.h"

namespace berth {

// How a request is rounded. Both round to whole multiples of ArenaOptions::alignment first.
enum class ArenaPolicy {
  // Up to eight alignments exactly; above, to one of eight sizes in each doubling: less than one eighth of the
  // request is wasted.
  kSizeClasses,
  // To a power of two, so that buffers of about one size are always interchangeable: less than the request is
  // wasted. A scratch arena (seeds.md B7).
  kPowerOfTwo,
};

struct ArenaOptions {
  // The device's ordinal; ignored where `device_uuid` is set.
  uint32_t device = 0;
  std::string device_uuid;
  // How the blocks are exported: as in BlockOptions.
  std::vector<ExportKind> export_kinds = {ExportKind::kFd};
  // What is leased at a time: a power of two, 16 MiB to 64 GiB. Less where the limit or the daemon's budget
  // leaves less. A request above it gets a block of its own, which is kept for the next one of its size.
  Bytes chunk_bytes = MiB(128);
  // The most that is ever leased, free memory included. None: what the daemon's budgets allow.
  std::optional<Bytes> limit;
  // Of the blocks, for those who look; also names the arena in its refusals.
  std::string label = "arena";
  ArenaPolicy policy = ArenaPolicy::kSizeClasses;
  // Of every allocation: a power of two, 256 to 4,096.
  Bytes alignment = Bytes(256);
  // How long an allocation that would be refused waits for streams to be done with what was freed on them.
  absl::Duration stream_patience = absl::Seconds(1);
  // How far streams have come. Null: by the memory's kind, CudaStreamProgress or ImmediateProgress.
  std::shared_ptr<StreamProgress> progress;
};

// One moment of an arena. What is leased is live, or free in one of four ways:
// leased = live + cached + free + held + in_use. Exact while no call is under way.
struct ArenaStats {
  struct Stream {
    ArenaStream stream = ArenaStream::kDefault;
    uint64_t allocations = 0;
    uint64_t frees = 0;
    // Freed on it: ready in the threads' caches, and in chunks.
    Bytes cached;
    Bytes held;
  };

  Bytes leased;
  uint64_t chunks = 0;
  // Allocated, as rounded and as asked for.
  Bytes live;
  Bytes live_requested;
  uint64_t live_count = 0;
  // In the threads' caches, for the stream that freed it.
  Bytes cached;
  // In chunks, for any stream.
  Bytes free;
  // In chunks, for the stream that freed it; for others once that one is done.
  Bytes held;
  // Freed, but another stream may still be using it (UsedOn).
  Bytes in_use;
  // The largest piece of `free`.
  Bytes largest_free;
  // The most that was leased; the most that was allocated or in the threads' caches.
  Bytes peak_leased;
  Bytes peak_out;
  uint64_t allocations = 0;
  uint64_t frees = 0;
  // Allocations that the calling thread's cache did not serve.
  uint64_t misses = 0;
  uint64_t refusals = 0;
  // Blocks leased so far, and given back.
  uint64_t leases = 0;
  uint64_t returns = 0;
  // Streams that are known, by number.
  std::vector<Stream> streams;

  // Of the memory that any stream may have, the share that is not in one piece: 0 where it is, or where there
  // is none.
  double fragmentation() const {
    if (free.count() == 0) return 0;
    return 1 - static_cast<double>(largest_free.count()) / static_cast<double>(free.count());
  }
};

}  // namespace berth

#endif  // CLIENT_ARENA_OPTIONS_H_
