#include "client/sdk/arena/arena_core.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include <berth/error.h>

#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth::internal {
namespace {

constexpr Bytes kLeastChunk = MiB(16);
constexpr Bytes kMostChunk = GiB(64);
constexpr Bytes kLeastAlignment = Bytes(256);
constexpr Bytes kMostAlignment = Bytes(4096);
// Limit for one request.
constexpr Bytes kMostBytes = GiB(64 << 10);
// Bytes that a cache miss takes from the heap at once, for smaller requests.
constexpr uint64_t kBatchBytes = 64 << 10;
constexpr uint64_t kMostInBatch = 16;
// Time that the arena's destructor waits for streams.
constexpr absl::Duration kEndPatience = absl::Seconds(2);
// Time to wait for a mark: an idle stream passes a mark within microseconds.
constexpr absl::Duration kMarkPatience = absl::Milliseconds(2);
// Interval between two checks of awaited streams.
constexpr absl::Duration kLookEvery = absl::Microseconds(50);

absl::Status CheckOption(bool good, absl::string_view field, absl::string_view value,
                         absl::string_view limit) {
  if (good) return absl::OkStatus();
  return Refuse(Reason::kInvalidField, "arena: {field} is {value}, must be {limit}",
                {{"field", field}, {"value", value}, {"limit", limit}});
}

absl::Status CheckOptions(const ArenaOptions& options) {
  const auto is_power_between = [](Bytes bytes, Bytes least, Bytes most) {
    return std::has_single_bit(bytes.count()) && bytes >= least && bytes <= most;
  };
  BERTH_RETURN_IF_ERROR(CheckOption(is_power_between(options.chunk_bytes, kLeastChunk, kMostChunk),
                                    "chunk_bytes", absl::StrCat(options.chunk_bytes.count()),
                                    "a power of two from 16 MiB to 64 GiB"));
  BERTH_RETURN_IF_ERROR(CheckOption(is_power_between(options.alignment, kLeastAlignment, kMostAlignment),
                                    "alignment", absl::StrCat(options.alignment.count()),
                                    "a power of two from 256 to 4096"));
  return CheckOption(!options.limit.has_value() || *options.limit >= kArenaLeaseUnit, "limit",
                     absl::StrCat(options.limit.value_or(Bytes()).count()), "2 MiB or more");
}

// Numbers threads in the order of their first call: the first kShards threads share no shard.
uint32_t ThreadNumber() {
  static std::atomic<uint32_t> next = 0;
  constinit static thread_local uint32_t number = 0;
  if (number == 0) [[unlikely]]
    number = next.fetch_add(1, std::memory_order_relaxed) + 1;
  return number - 1;
}

bool WantsMemory(const absl::Status& status) {
  return IsRefusal(status, Reason::kOverBudget) || IsRefusal(status, Reason::kOutOfMemory);
}

// Holds a lease until the end of the process.
void HoldForever(std::unique_ptr<ArenaLease> lease) {
  static Mutex mu(absl::kConstInit);
  static auto* const leases = new std::vector<std::unique_ptr<ArenaLease>>;
  MutexLock lock(&mu);
  leases->push_back(std::move(lease));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ArenaCore>> ArenaCore::Create(std::shared_ptr<ArenaSource> source,
                                                             const ArenaOptions& options) {
  BERTH_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<ArenaCore> core(new ArenaCore(std::move(source), options));
  // Used until the source knows the kind of its memory.
  if (core->progress_ == nullptr) core->progress_ = std::make_shared<ImmediateProgress>();
  {
    MutexLock growth(&core->growth_mu_);
    BERTH_ASSIGN_OR_RETURN(ArenaExtent* const first, core->Grow(0, ArenaStream::kDefault));
    MutexLock lock(&core->mu_);
    core->heap_.Put(first, ArenaStream::kDefault);
    core->heap_.Forget(ArenaStream::kDefault);
  }
  if (options.progress == nullptr) {
    BERTH_ASSIGN_OR_RETURN(core->progress_, core->source_->MakeProgress());
  }
  return core;
}

ArenaCore::ArenaCore(std::shared_ptr<ArenaSource> source, const ArenaOptions& options)
    : source_(std::move(source)),
      label_(options.label),
      classes_(options.policy),
      granule_shift_(std::countr_zero(options.alignment.count())),
      chunk_class_(classes_.Ceil(options.chunk_bytes.count() >> granule_shift_)),
      limit_(options.limit.value_or(Bytes(UINT64_MAX)).count()),
      stream_patience_(options.stream_patience),
      made_at_fork_depth_(fork_depth.load(std::memory_order_relaxed)),
      progress_(options.progress),
      heap_(classes_, granule_shift_, chunk_class_),
      table_(std::make_unique<ArenaChunkTable>()),
      shards_([this] {
        std::vector<std::unique_ptr<Shard>> shards;
        for (uint32_t i = 0; i < kShards; ++i) {
          shards.push_back(std::make_unique<Shard>(ArenaCache(classes_, granule_shift_, chunk_class_)));
        }
        return shards;
      }()) {
  MutexLock lock(&mu_);
  PublishChunks();
}

ArenaCore::~ArenaCore() {
  if (CheckNotForked().ok()) {
    AwaitStreams(SteadyNow() + kEndPatience);
    GiveBack();
  }
  // Without the lock, because a thread of the parent may have held it at the fork.
  for (const auto& chunk : heap_.RemoveAllChunks()) HoldForever(chunk->TakeLease());
}

absl::Status ArenaCore::ForkedError() const {
  return absl::FailedPreconditionError(absl::StrCat("this process was forked after the creation of arena ", label_,
                                                    ": call exec before using the arena"));
}

ArenaCore::Shard& ArenaCore::MyShard() const { return *shards_[ThreadNumber() % kShards]; }

absl::StatusOr<void*> ArenaCore::Allocate(Bytes bytes, ArenaStream stream) {
  BERTH_RETURN_IF_ERROR(CheckNotForked());
  if (bytes.count() == 0) {
    return Refuse(Reason::kInvalidField, "arena {arena}: {field} is {value}, the least is {limit}",
                  {{"arena", label_}, {"field", "bytes"}, {"value", 0}, {"limit", 1}});
  }
  if (bytes > kMostBytes) {
    return Refuse(
        Reason::kOutOfRange, "arena {arena}: {field} is {value}, limit {limit}",
        {{"arena", label_}, {"field", "bytes"}, {"value", bytes.count()}, {"limit", kMostBytes.count()}});
  }
  const uint32_t size_class = classes_.Ceil(((bytes.count() - 1) >> granule_shift_) + 1);
  Shard& shard = MyShard();
  ArenaExtent* extent;
  {
    SpinLockHolder lock(&shard.mu);
    extent = shard.cache.Pop(stream, size_class);
    if (extent != nullptr) [[likely]]
      shard.cache.CountAllocation(stream, *extent, bytes.count(), /*hit=*/true);
  }
  if (extent == nullptr) [[unlikely]] {
    BERTH_ASSIGN_OR_RETURN(extent, Obtain(size_class, stream));
    SpinLockHolder lock(&shard.mu);
    shard.cache.CountAllocation(stream, *extent, bytes.count(), /*hit=*/false);
  }
  const uintptr_t address = extent->address();
  extent->requested = bytes.count();
  const absl::Status usable = extent->chunk->lease().Check();
  extent->address_and_state.store(address | ArenaExtent::kLive, std::memory_order_release);
  if (!usable.ok()) [[unlikely]] {
    Free(reinterpret_cast<void*>(address), stream).IgnoreError();
    return usable;
  }
  return reinterpret_cast<void*>(address);
}

absl::Status ArenaCore::Free(void* pointer, ArenaStream stream) {
  BERTH_RETURN_IF_ERROR(CheckNotForked());
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  std::vector<FreedExtent> overflow;
  Shard& shard = MyShard();
  {
    SpinLockHolder lock(&shard.mu);
    const ArenaChunk* const chunk = shard.table->Find(address);
    ArenaExtent* const extent = chunk == nullptr ? nullptr : chunk->StartingAt(address);
    uintptr_t live = address | ArenaExtent::kLive;
    if (extent == nullptr || !extent->address_and_state.compare_exchange_strong(
                                 live, address | ArenaExtent::kCached, std::memory_order_acq_rel)) [[unlikely]] {
      overflow.push_back({nullptr, stream});
    } else {
      shard.cache.CountFree(stream, *extent);
      shard.cache.Push(extent, stream, &overflow);
    }
  }
  if (overflow.empty()) [[likely]]
    return absl::OkStatus();
  if (overflow.front().extent == nullptr) return FreeShared(address, stream);
  PutInHeap(overflow);
  return absl::OkStatus();
}

absl::StatusOr<ArenaExtent*> ArenaCore::FindLive(uintptr_t address) const {
  const ArenaChunk* const chunk = table_->Find(address);
  if (chunk == nullptr) {
    return Refuse(Reason::kNotFound, "arena {arena}: {kind} {id} does not belong to it",
                  {{"arena", label_}, {"kind", "address"}, {"id", absl::StrCat("0x", absl::Hex(address))}});
  }
  ArenaExtent* const extent = chunk->StartingAt(address);
  if (extent != nullptr) {
    const uintptr_t address_and_state = extent->address_and_state.load(std::memory_order_acquire);
    if (address_and_state == (address | ArenaExtent::kLive) || address_and_state == (address | ArenaExtent::kShared))
      return extent;
  }
  return Stale(address);
}

absl::Status ArenaCore::Stale(uintptr_t address) const {
  return Refuse(Reason::kStale, "arena {arena}: address {block}: {why}",
                {{"arena", label_},
                 {"block", absl::StrCat("0x", absl::Hex(address))},
                 {"why", "not the start of a live allocation; it may have been freed before"}});
}

absl::Status ArenaCore::FreeShared(uintptr_t address, ArenaStream stream) {
  MutexLock marking(&marks_mu_);
  ArenaExtent* extent;
  std::vector<ArenaStream> streams;
  {
    MutexLock lock(&mu_);
    BERTH_ASSIGN_OR_RETURN(extent, FindLive(address));
    uintptr_t shared = address | ArenaExtent::kShared;
    if (!extent->address_and_state.compare_exchange_strong(shared, address | ArenaExtent::kCached))
      return Stale(address);
    streams = uses_[extent];
  }
  std::vector<ArenaHeap::Use> uses;
  absl::Status status;
  for (const ArenaStream used_on : streams) {
    if (used_on == stream) continue;
    const absl::StatusOr<StreamProgress::Point> point = progress_->Mark(used_on);
    status.Update(point.status());
    if (point.ok()) uses.push_back({used_on, *point});
  }
  MutexLock lock(&mu_);
  if (!status.ok()) {
    // No state has changed, so the caller can free the extent again.
    extent->address_and_state.store(address | ArenaExtent::kShared, std::memory_order_release);
    return status;
  }
  uses_.erase(extent);
  {
    Shard& shard = MyShard();
    SpinLockHolder lock_shard(&shard.mu);
    shard.cache.CountFree(stream, *extent);
  }
  heap_.PutAfter(extent, stream, std::move(uses));
  return absl::OkStatus();
}

absl::Status ArenaCore::UsedOn(void* pointer, ArenaStream stream) {
  BERTH_RETURN_IF_ERROR(CheckNotForked());
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  MutexLock lock(&mu_);
  BERTH_ASSIGN_OR_RETURN(ArenaExtent* const extent, FindLive(address));
  uintptr_t live = address | ArenaExtent::kLive;
  extent->address_and_state.compare_exchange_strong(live, address | ArenaExtent::kShared);
  std::vector<ArenaStream>& streams = uses_[extent];
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  return absl::OkStatus();
}

void ArenaCore::ForgetStream(ArenaStream stream) {
  if (!CheckNotForked().ok()) return;
  MutexLock marking(&marks_mu_);
  MutexLock lock(&mu_);
  std::vector<FreedExtent> taken;
  for (const auto& shard : shards_) {
    SpinLockHolder lock_shard(&shard->mu);
    shard->cache.Forget(stream, &taken);
  }
  for (const FreedExtent& freed : taken) heap_.Put(freed.extent, freed.stream);
  heap_.Forget(stream);
  for (auto& [extent, streams] : uses_) std::erase(streams, stream);
  progress_->Forget(stream);
}

absl::StatusOr<ArenaExtent*> ArenaCore::Obtain(uint32_t size_class, ArenaStream stream) {
  if (ArenaExtent* const extent = TakeFromHeap(size_class, stream)) return extent;
  MutexLock growth(&growth_mu_);
  if (ArenaExtent* const extent = TakeFromHeap(size_class, stream)) return extent;
  BERTH_RETURN_IF_ERROR(Sweep());
  if (ArenaExtent* const extent = TakeFromHeap(size_class, stream)) return extent;
  absl::StatusOr<ArenaExtent*> extent = Grow(size_class, stream);
  if (!extent.ok()) {
    MutexLock lock(&mu_);
    ++refusals_;
  }
  return extent;
}

ArenaExtent* ArenaCore::TakeFromHeap(uint32_t size_class, ArenaStream stream) {
  const uint64_t bytes = classes_.Granules(size_class) << granule_shift_;
  const uint64_t count = std::clamp(kBatchBytes / bytes, uint64_t{1}, kMostInBatch);
  ArenaExtent* first;
  std::vector<FreedExtent> more;
  {
    MutexLock lock(&mu_);
    first = heap_.Take(size_class, stream);
    while (first != nullptr && more.size() + 1 < count) {
      ArenaExtent* const extent = heap_.Take(size_class, stream);
      if (extent == nullptr) break;
      more.push_back({extent, stream});
    }
  }
  if (!more.empty()) StashInCache(more);
  return first;
}

void ArenaCore::StashInCache(const std::vector<FreedExtent>& extents) {
  std::vector<FreedExtent> overflow;
  Shard& shard = MyShard();
  {
    SpinLockHolder lock(&shard.mu);
    for (const FreedExtent& freed : extents) shard.cache.Push(freed.extent, freed.stream, &overflow);
  }
  if (!overflow.empty()) PutInHeap(overflow);
}

void ArenaCore::PutInHeap(const std::vector<FreedExtent>& extents) {
  MutexLock lock(&mu_);
  for (const FreedExtent& freed : extents) heap_.Put(freed.extent, freed.stream);
}

absl::StatusOr<ArenaExtent*> ArenaCore::Grow(uint32_t size_class, ArenaStream stream) {
  absl::StatusOr<ArenaExtent*> extent = LeaseFor(size_class, stream, LeaseSize::kChunk);
  if (!WantsMemory(extent.status())) return extent;
  if (GiveBack() > Bytes()) extent = LeaseFor(size_class, stream, LeaseSize::kChunk);
  if (WantsMemory(extent.status())) extent = LeaseFor(size_class, stream, LeaseSize::kLeast);
  if (!WantsMemory(extent.status())) return extent;
  if (ArenaExtent* const found = AwaitExtent(size_class, stream, SteadyNow() + stream_patience_)) {
    return found;
  }
  if (GiveBack() > Bytes()) extent = LeaseFor(size_class, stream, LeaseSize::kLeast);
  return extent;
}

absl::StatusOr<ArenaExtent*> ArenaCore::LeaseFor(uint32_t size_class, ArenaStream stream, LeaseSize size) {
  const bool whole = size_class > chunk_class_;
  const uint64_t unit = kArenaLeaseUnit.count();
  const Bytes least = *Bytes(classes_.Granules(size_class) << granule_shift_).RoundUp(kArenaLeaseUnit);
  Bytes leased;
  {
    MutexLock lock(&mu_);
    leased = Bytes(heap_.leased());
  }
  const Bytes remaining = SaturatingSub(Bytes(limit_), leased);
  if (least > remaining) return OverLimit(least, leased);
  Bytes bytes = least;
  if (!whole && size == LeaseSize::kChunk) {
    const Bytes chunk = Bytes(classes_.Granules(chunk_class_) << granule_shift_);
    bytes = std::min(chunk, Bytes(remaining.count() / unit * unit));
  }
  BERTH_ASSIGN_OR_RETURN(std::unique_ptr<ArenaLease> lease, source_->Lease(bytes));
  // The daemon may round the size up further than the arena knows.
  if (lease->bytes() > remaining) return OverLimit(lease->bytes(), leased);
  MutexLock lock(&mu_);
  heap_.AddChunk(std::move(lease), whole, size_class);
  PublishChunks();
  return heap_.Take(size_class, stream);
}

ArenaExtent* ArenaCore::AwaitExtent(uint32_t size_class, ArenaStream stream, absl::Time deadline) {
  while (true) {
    if (!Sweep().ok()) return nullptr;
    {
      MutexLock lock(&mu_);
      ArenaExtent* const extent = heap_.Take(size_class, stream);
      if (extent != nullptr || !heap_.waiting()) return extent;
    }
    if (SteadyNow() >= deadline) return nullptr;
    absl::SleepFor(kLookEvery);
  }
}

absl::Status ArenaCore::OverLimit(Bytes requested, Bytes current) const {
  return Refuse(Reason::kOverBudget,
                "{layer} {arena}: requested {requested} bytes, current {current}, remaining {remaining}, "
                "limit {limit}",
                {{"layer", "arena"},
                 {"arena", label_},
                 {"requested", requested.count()},
                 {"current", current.count()},
                 {"remaining", SaturatingSub(Bytes(limit_), current).count()},
                 {"limit", limit_}});
}

absl::Status ArenaCore::Sweep() {
  MutexLock marking(&marks_mu_);
  std::vector<ArenaHeap::OpenMark> marks;
  {
    MutexLock lock(&mu_);
    CollectCaches();
    marks = heap_.BeginMarks();
  }
  absl::Status status;
  for (const ArenaHeap::OpenMark& mark : marks) {
    const absl::StatusOr<StreamProgress::Point> point = progress_->Mark(mark.stream);
    status.Update(point.status());
    MutexLock lock(&mu_);
    heap_.EndMark(mark, point);
  }
  MutexLock lock(&mu_);
  status.Update(heap_.Settle(*progress_));
  return status;
}

void ArenaCore::CollectCaches() {
  std::vector<FreedExtent> taken;
  for (const auto& shard : shards_) {
    SpinLockHolder lock(&shard->mu);
    shard->cache.TakeAll(&taken);
  }
  for (const FreedExtent& freed : taken) heap_.Put(freed.extent, freed.stream);
}

void ArenaCore::PublishChunks() {
  auto table = std::make_unique<const ArenaChunkTable>(heap_.chunks());
  for (const auto& shard : shards_) {
    SpinLockHolder lock(&shard->mu);
    shard->table = table.get();
  }
  table_ = std::move(table);
}

Bytes ArenaCore::GiveBack() {
  std::vector<std::unique_ptr<ArenaChunk>> chunks;
  {
    MutexLock lock(&mu_);
    chunks = heap_.RemoveFreeChunks();
    if (!chunks.empty()) PublishChunks();
  }
  uint64_t bytes = 0;
  for (const auto& chunk : chunks) bytes += chunk->bytes();
  // The leases end here, with calls to the daemon and without a lock.
  chunks.clear();
  return Bytes(bytes);
}

void ArenaCore::AwaitStreams(absl::Time deadline) {
  // The heap has no extent of the largest class, so the call takes none.
  AwaitExtent(ArenaSizeClasses::kCount - 1, ArenaStream::kDefault, deadline);
}

absl::StatusOr<Bytes> ArenaCore::Trim() {
  BERTH_RETURN_IF_ERROR(CheckNotForked());
  BERTH_RETURN_IF_ERROR(Sweep());
  AwaitStreams(SteadyNow() + kMarkPatience);
  return GiveBack();
}

ArenaStats ArenaCore::Stats() const {
  ArenaStats stats;
  if (!CheckNotForked().ok()) return stats;
  {
    MutexLock lock(&mu_);
    for (const auto& shard : shards_) {
      SpinLockHolder lock_shard(&shard->mu);
      shard->cache.AddTo(&stats);
    }
    heap_.AddTo(&stats);
    stats.refusals = refusals_;
  }
  stats.live_count = stats.allocations - stats.frees;
  std::sort(stats.streams.begin(), stats.streams.end(),
            [](const ArenaStats::Stream& a, const ArenaStats::Stream& b) { return a.stream < b.stream; });
  return stats;
}

}  // namespace berth::internal
