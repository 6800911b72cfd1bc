// ArenaCore: the arena above whatever its memory comes from.
//
// Three layers, each slower and rarer than the one before: a cache, one of several by the calling thread; the
// heap, under one lock; the source, which leases another chunk. What a cache or the heap refuses goes down,
// what is freed comes up only as far as its stream allows.

#ifndef CLIENT_INTERNAL_ARENA_CORE_H_
#define CLIENT_INTERNAL_ARENA_CORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/arena_options.h"
#include "client/arena_stream.h"
#include "client/internal/arena_cache.h"
#include "client/internal/arena_chunk.h"
#include "client/internal/arena_heap.h"
#include "client/internal/arena_lock.h"
#include "client/internal/arena_size_classes.h"
#include "client/internal/arena_source.h"
#include "client/internal/fork_guard.h"
#include "common/bytes.h"
#include "common/mutex.h"

namespace berth::internal {

// Thread-safe. Methods and errors: those of Arena.
class ArenaCore {
 public:
  // Leases the first chunk. `source` may be used until the process ends, by leases that must not end sooner.
  static absl::StatusOr<std::unique_ptr<ArenaCore>> Create(std::shared_ptr<ArenaSource> source,
                                                           const ArenaOptions& options);
  ArenaCore(const ArenaCore&) = delete;
  ArenaCore& operator=(const ArenaCore&) = delete;
  ~ArenaCore();

  absl::StatusOr<void*> Allocate(Bytes bytes, ArenaStream stream) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Free(void* pointer, ArenaStream stream) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status UsedOn(void* pointer, ArenaStream stream) ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetStream(ArenaStream stream) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Bytes> Trim() ABSL_LOCKS_EXCLUDED(mu_);
  ArenaStats Stats() const ABSL_LOCKS_EXCLUDED(mu_);
  Bytes alignment() const { return Bytes(uint64_t{1} << granule_shift_); }

 private:
  // More than threads that are likely to allocate at once: two that share a shard wait for each other.
  static constexpr uint32_t kShards = 32;

  // On cache lines of its own.
  struct alignas(128) Shard {
    explicit Shard(ArenaCache cache) : cache(std::move(cache)) {}
    ArenaLock mu;
    ArenaCache cache ABSL_GUARDED_BY(mu);
    // The core's, of this moment: it is replaced under every shard's lock.
    const ArenaChunkTable* table ABSL_GUARDED_BY(mu) = nullptr;
  };

  enum class LeaseSize {
    // A chunk, or as much of one as the limit leaves.
    kChunk,
    // What holds the request.
    kLeast,
  };

  ArenaCore(std::shared_ptr<ArenaSource> source, const ArenaOptions& options);

  absl::Status CheckNotForked() const {
    if (fork_depth.load(std::memory_order_relaxed) == made_at_fork_depth_) [[likely]]
      return absl::OkStatus();
    return ForkedError();
  }
  absl::Status ForkedError() const;
  Shard& MyShard() const;

  // What Allocate() does when the thread's cache has nothing.
  absl::StatusOr<ArenaExtent*> Obtain(uint32_t size_class, ArenaStream stream) ABSL_LOCKS_EXCLUDED(mu_);
  // From the heap, null where it has none; of small ones some more, for the thread's cache.
  ArenaExtent* TakeFromHeap(uint32_t size_class, ArenaStream stream) ABSL_LOCKS_EXCLUDED(mu_);
  void StashInCache(const std::vector<FreedExtent>& extents) ABSL_LOCKS_EXCLUDED(mu_);
  void PutInHeap(const std::vector<FreedExtent>& extents) ABSL_LOCKS_EXCLUDED(mu_);

  // Leases a chunk for an extent and takes it; before it gives up, gives back what is free and waits for
  // streams.
  absl::StatusOr<ArenaExtent*> Grow(uint32_t size_class, ArenaStream stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(growth_mu_);
  absl::StatusOr<ArenaExtent*> LeaseFor(uint32_t size_class, ArenaStream stream, LeaseSize size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(growth_mu_);
  // Waits until the heap has an extent, nothing waits for a stream any more, or the deadline. Null where the
  // heap has none.
  ArenaExtent* AwaitExtent(uint32_t size_class, ArenaStream stream, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until nothing waits for a stream any more, or the deadline.
  void AwaitStreams(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OverLimit(Bytes requested, Bytes current) const;

  // Brings what is free as far up as it can go: the caches' to the heap, a stream's to anyone's.
  absl::Status Sweep() ABSL_LOCKS_EXCLUDED(mu_, marks_mu_);
  // Gives back those chunks that are free from end to end. Returns their bytes.
  Bytes GiveBack() ABSL_LOCKS_EXCLUDED(mu_);
  // Shows all shards the heap's chunks, and waits until no thread looks at those of before.
  void PublishChunks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CollectCaches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The free of what other streams use too, or of what is no allocation.
  absl::Status FreeShared(uintptr_t address, ArenaStream stream) ABSL_LOCKS_EXCLUDED(mu_, marks_mu_);
  // What is live at `address`. Errors: NOT_FOUND, STALE.
  absl::StatusOr<ArenaExtent*> FindLive(uintptr_t address) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Status Stale(uintptr_t address) const;

  const std::shared_ptr<ArenaSource> source_;
  const std::string label_;
  const ArenaSizeClasses classes_;
  const uint32_t granule_shift_;
  // Of a full chunk.
  const uint32_t chunk_class_;
  const uint64_t limit_;
  const absl::Duration stream_patience_;
  const uint32_t made_at_fork_depth_;
  // Set once, before the core is anybody's.
  std::shared_ptr<StreamProgress> progress_;

  // Locked in this order: growth_mu_, marks_mu_, mu_, a shard's.
  // Held while a chunk is leased, so that threads that all need one lease one.
  Mutex growth_mu_ ABSL_ACQUIRED_BEFORE(marks_mu_);
  // Held while marks are put, so that no stream is forgotten meanwhile.
  Mutex marks_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable Mutex mu_;
  ArenaHeap heap_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<const ArenaChunkTable> table_ ABSL_GUARDED_BY(mu_);
  // The further streams of extents that are kShared.
  absl::flat_hash_map<const ArenaExtent*, std::vector<ArenaStream>> uses_ ABSL_GUARDED_BY(mu_);
  uint64_t refusals_ ABSL_GUARDED_BY(mu_) = 0;

  const std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_ARENA_CORE_H_
