// ArenaCore: the arena above a memory source.
//
// Memory passes through three layers. Each layer is slower and less often used than the one before:
// - a cache, chosen by the calling thread;
// - the heap, under one lock;
// - the source, which leases another chunk.
// A request that a cache or the heap cannot serve goes to the next layer. Freed memory returns to a layer only as far
// as its stream's progress allows.

#ifndef CLIENT_SDK_ARENA_ARENA_CORE_H_
#define CLIENT_SDK_ARENA_ARENA_CORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/arena_options.h>
#include <berth/arena_stream.h>
#include <berth/bytes.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/sdk/arena/arena_cache.h"
#include "client/sdk/arena/arena_chunk.h"
#include "client/sdk/arena/arena_heap.h"
#include "client/sdk/arena/arena_size_classes.h"
#include "client/sdk/arena/arena_source.h"
#include "client/sdk/permits/spin_lock.h"
#include "client/sdk/transport/fork_guard.h"
#include "common/mutex.h"

namespace berth::internal {

// Thread-safe. Methods and errors: those of Arena.
class ArenaCore {
 public:
  // Leases the first chunk. Leases that must not end sooner may use `source` until the process ends.
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
  // More than the number of threads that are likely to allocate at once: two threads that share a shard wait for each
  // other.
  static constexpr uint32_t kShards = 32;

  // Occupies cache lines of its own.
  struct alignas(128) Shard {
    explicit Shard(ArenaCache cache) : cache(std::move(cache)) {}
    SpinLock mu;
    ArenaCache cache ABSL_GUARDED_BY(mu);
    // The core's current chunk table. The core replaces it under every shard's lock.
    const ArenaChunkTable* table ABSL_GUARDED_BY(mu) = nullptr;
  };

  enum class LeaseSize {
    // A full chunk, or as much of one as the limit leaves.
    kChunk,
    // The smallest size that holds the request.
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

  // Slow path of Allocate(), when the thread's cache has no extent.
  absl::StatusOr<ArenaExtent*> Obtain(uint32_t size_class, ArenaStream stream) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes an extent from the heap; null where the heap has none. For small classes also moves further extents to the
  // thread's cache.
  ArenaExtent* TakeFromHeap(uint32_t size_class, ArenaStream stream) ABSL_LOCKS_EXCLUDED(mu_);
  void StashInCache(const std::vector<FreedExtent>& extents) ABSL_LOCKS_EXCLUDED(mu_);
  void PutInHeap(const std::vector<FreedExtent>& extents) ABSL_LOCKS_EXCLUDED(mu_);

  // Leases a chunk for an extent and takes the extent. Before a failure, gives free chunks back and waits for
  // streams.
  absl::StatusOr<ArenaExtent*> Grow(uint32_t size_class, ArenaStream stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(growth_mu_);
  absl::StatusOr<ArenaExtent*> LeaseFor(uint32_t size_class, ArenaStream stream, LeaseSize size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(growth_mu_);
  // Waits until the heap has an extent, no free extent waits for a stream, or the deadline passes. Null where the heap
  // has no extent.
  ArenaExtent* AwaitExtent(uint32_t size_class, ArenaStream stream, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until no free extent waits for a stream, or until the deadline.
  void AwaitStreams(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OverLimit(Bytes requested, Bytes current) const;

  // Moves free extents up as far as possible: from the caches to the heap, from a stream to the common bins.
  absl::Status Sweep() ABSL_LOCKS_EXCLUDED(mu_, marks_mu_);
  // Gives back all chunks that are entirely free. Returns their bytes.
  Bytes GiveBack() ABSL_LOCKS_EXCLUDED(mu_);
  // Publishes the heap's chunks to all shards, and waits until no thread reads the previous chunk table.
  void PublishChunks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CollectCaches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Frees an extent that other streams use too. Rejects an address that is no allocation.
  absl::Status FreeShared(uintptr_t address, ArenaStream stream) ABSL_LOCKS_EXCLUDED(mu_, marks_mu_);
  // Returns the live extent at `address`. Errors: NOT_FOUND, STALE.
  absl::StatusOr<ArenaExtent*> FindLive(uintptr_t address) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Status Stale(uintptr_t address) const;

  const std::shared_ptr<ArenaSource> source_;
  const std::string label_;
  const ArenaSizeClasses classes_;
  const uint32_t granule_shift_;
  // Size class of a full chunk.
  const uint32_t chunk_class_;
  const uint64_t limit_;
  const absl::Duration stream_patience_;
  const uint32_t made_at_fork_depth_;
  // Set once, before the core is published to callers.
  std::shared_ptr<StreamProgress> progress_;

  // Lock order: growth_mu_, marks_mu_, mu_, a shard's lock.
  // Held while a chunk is leased, so that several threads that need a chunk lease only one.
  Mutex growth_mu_ ABSL_ACQUIRED_BEFORE(marks_mu_);
  // Held while marks are placed, so that no stream is forgotten meanwhile.
  Mutex marks_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable Mutex mu_;
  ArenaHeap heap_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<const ArenaChunkTable> table_ ABSL_GUARDED_BY(mu_);
  // The further streams of each kShared extent.
  absl::flat_hash_map<const ArenaExtent*, std::vector<ArenaStream>> uses_ ABSL_GUARDED_BY(mu_);
  uint64_t refusals_ ABSL_GUARDED_BY(mu_) = 0;

  const std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_ARENA_ARENA_CORE_H_
