#include "client/sdk/arena/arena_heap.h"

#include <algorithm>
#include <utility>

#include "client/sdk/arena/arena_cache.h"

namespace berth::internal {

void ArenaHeap::AddChunk(std::unique_ptr<ArenaLease> lease, bool whole, uint32_t size_class) {
  chunks_.push_back(std::make_unique<ArenaChunk>(std::move(lease), granule_shift_, whole));
  ArenaChunk* const chunk = chunks_.back().get();
  ArenaExtent* const extent = NewExtent(chunk, 0, chunk->granules());
  extent->size_class = size_class;
  leased_ += extent->size;
  peak_leased_ = std::max(peak_leased_, leased_);
  ++leases_;
  Insert(extent, &anyones_, 0);
}

std::vector<std::unique_ptr<ArenaChunk>> ArenaHeap::RemoveFreeChunks() {
  std::vector<ArenaExtent*> whole;
  anyones_.ForEach([&](ArenaExtent* extent) {
    if (IsWholeChunk(*extent)) whole.push_back(extent);
  });
  std::vector<std::unique_ptr<ArenaChunk>> removed;
  for (ArenaExtent* const extent : whole) {
    const auto it = std::find_if(chunks_.begin(), chunks_.end(),
                                 [&](const auto& chunk) { return chunk.get() == extent->chunk; });
    anyones_.Remove(extent);
    leased_ -= extent->size;
    ++returns_;
    Retire(extent);
    removed.push_back(std::move(*it));
    chunks_.erase(it);
  }
  return removed;
}

std::vector<std::unique_ptr<ArenaChunk>> ArenaHeap::RemoveAllChunks() { return std::move(chunks_); }

std::vector<const ArenaChunk*> ArenaHeap::chunks() const {
  std::vector<const ArenaChunk*> chunks;
  for (const auto& chunk : chunks_) chunks.push_back(chunk.get());
  return chunks;
}

ArenaExtent* ArenaHeap::Take(uint32_t size_class, ArenaStream stream) {
  ArenaExtent* extent = nullptr;
  const auto it = streams_.find(stream);
  if (it != streams_.end()) extent = TakeFrom(it->second->bins, size_class);
  if (extent == nullptr) extent = TakeFrom(anyones_, size_class);
  if (extent == nullptr) return nullptr;
  ArenaBins* const bins = extent->bins;
  const uint64_t before = bins->size();
  bins->Remove(extent);
  if (!extent->chunk->whole()) Cut(extent, classes_.Granules(size_class), bins);
  if (bins != &anyones_) in_streams_ -= before - bins->size();
  extent->size_class = size_class;
  extent->chunk->SetStart(extent->start, extent);
  extent->address_and_state.store(extent->address() | ArenaExtent::kCached, std::memory_order_release);
  peak_out_ = std::max(peak_out_, out());
  return extent;
}

ArenaExtent* ArenaHeap::TakeFrom(const ArenaBins& bins, uint32_t size_class) const {
  // A chunk larger than chunk_class_ is never cut: it serves only its own class.
  if (size_class > chunk_class_) return bins.First(size_class, size_class);
  return bins.First(size_class, chunk_class_);
}

void ArenaHeap::Cut(ArenaExtent* extent, uint64_t size, ArenaBins* bins) {
  if (extent->size == size) return;
  ArenaExtent* const rest = NewExtent(extent->chunk, extent->start + size, extent->size - size);
  rest->epoch = extent->epoch;
  rest->before = extent;
  rest->after = extent->after;
  if (rest->after != nullptr) rest->after->before = rest;
  extent->after = rest;
  extent->size = size;
  bins->Insert(rest, BinOf(*rest));
}

void ArenaHeap::Put(ArenaExtent* extent, ArenaStream stream) {
  Stream& of = StreamOf(stream);
  of.unmarked = true;
  in_streams_ += extent->size;
  Insert(extent, &of.bins, epoch_);
}

void ArenaHeap::PutAfter(ArenaExtent* extent, ArenaStream stream, std::vector<Use> uses) {
  extent->address_and_state.store(extent->address() | ArenaExtent::kFree, std::memory_order_release);
  in_use_ += extent->size;
  waiting_.push_back({extent, stream, std::move(uses)});
}

void ArenaHeap::Insert(ArenaExtent* extent, ArenaBins* bins, uint64_t epoch) {
  extent->address_and_state.store(extent->address() | ArenaExtent::kFree, std::memory_order_release);
  extent->epoch = epoch;
  if (ArenaExtent* const after = extent->after; after != nullptr && after->bins == bins) {
    bins->Remove(after);
    Join(extent, after);
  }
  if (ArenaExtent* const before = extent->before; before != nullptr && before->bins == bins) {
    bins->Remove(before);
    Join(before, extent);
    extent = before;
  }
  bins->Insert(extent, BinOf(*extent));
}

uint32_t ArenaHeap::BinOf(const ArenaExtent& extent) const {
  if (extent.chunk->whole()) return extent.size_class;
  return std::min(classes_.Floor(extent.size), chunk_class_);
}

void ArenaHeap::Join(ArenaExtent* extent, ArenaExtent* after) {
  extent->size += after->size;
  extent->epoch = std::max(extent->epoch, after->epoch);
  extent->after = after->after;
  if (extent->after != nullptr) extent->after->before = extent;
  Retire(after);
}

bool ArenaHeap::IsWholeChunk(const ArenaExtent& extent) const {
  return extent.before == nullptr && extent.after == nullptr;
}

ArenaExtent* ArenaHeap::NewExtent(ArenaChunk* chunk, uint64_t start, uint64_t size) {
  ArenaExtent* extent = retired_;
  if (extent != nullptr) {
    retired_ = extent->next;
  } else {
    extent = &extents_.emplace_back();
  }
  extent->next = nullptr;
  extent->before = nullptr;
  extent->after = nullptr;
  extent->chunk = chunk;
  extent->start = start;
  extent->size = size;
  return extent;
}

void ArenaHeap::Retire(ArenaExtent* extent) {
  extent->chunk->SetStart(extent->start, nullptr);
  extent->address_and_state.store(0, std::memory_order_release);
  extent->chunk = nullptr;
  extent->next = retired_;
  retired_ = extent;
}

ArenaHeap::Stream& ArenaHeap::StreamOf(ArenaStream stream) {
  std::unique_ptr<Stream>& slot = streams_[stream];
  if (slot == nullptr) slot = std::make_unique<Stream>();
  return *slot;
}

std::vector<ArenaHeap::OpenMark> ArenaHeap::BeginMarks() {
  std::vector<OpenMark> marks;
  for (auto& [id, stream] : streams_) {
    if (stream->bins.empty()) stream->unmarked = false;
    if (!stream->unmarked || stream->marks.size() >= kMaxMarks) continue;
    stream->unmarked = false;
    marks.push_back({id, epoch_});
  }
  if (!marks.empty()) ++epoch_;
  return marks;
}

void ArenaHeap::EndMark(const OpenMark& mark, const absl::StatusOr<StreamProgress::Point>& point) {
  const auto it = streams_.find(mark.stream);
  if (it == streams_.end()) return;
  if (point.ok()) {
    it->second->marks.push_back({mark.epoch, *point});
  } else {
    it->second->unmarked = true;
  }
}

absl::Status ArenaHeap::Settle(StreamProgress& progress) {
  absl::Status status = SettleWaiting(progress);
  for (auto& [id, stream] : streams_) status.Update(SettleStream(id, *stream, progress));
  absl::erase_if(streams_, [](const auto& entry) {
    const Stream& stream = *entry.second;
    return stream.bins.empty() && stream.marks.empty();
  });
  return status;
}

absl::Status ArenaHeap::SettleStream(ArenaStream id, Stream& stream, StreamProgress& progress) {
  uint64_t reached = 0;
  absl::Status status;
  while (!stream.marks.empty()) {
    const absl::StatusOr<bool> passed = progress.Reached(id, stream.marks.front().point);
    status = passed.status();
    if (!status.ok() || !*passed) break;
    reached = stream.marks.front().epoch;
    stream.marks.pop_front();
  }
  Release(stream, reached);
  return status;
}

void ArenaHeap::Release(Stream& stream, uint64_t epoch) {
  std::vector<ArenaExtent*> free;
  stream.bins.ForEach([&](ArenaExtent* extent) {
    if (extent->epoch <= epoch) free.push_back(extent);
  });
  for (ArenaExtent* const extent : free) {
    stream.bins.Remove(extent);
    in_streams_ -= extent->size;
    Insert(extent, &anyones_, 0);
  }
}

absl::Status ArenaHeap::SettleWaiting(StreamProgress& progress) {
  absl::Status status;
  std::vector<Waiting> still;
  for (Waiting& waiting : waiting_) {
    std::erase_if(waiting.uses, [&](const Use& use) {
      const absl::StatusOr<bool> reached = progress.Reached(use.stream, use.point);
      status.Update(reached.status());
      return reached.ok() && *reached;
    });
    if (!waiting.uses.empty()) {
      still.push_back(std::move(waiting));
      continue;
    }
    in_use_ -= waiting.extent->size;
    if (waiting.stream.has_value()) {
      Put(waiting.extent, *waiting.stream);
    } else {
      Insert(waiting.extent, &anyones_, 0);
    }
  }
  waiting_ = std::move(still);
  return status;
}

void ArenaHeap::Forget(ArenaStream stream) {
  for (Waiting& waiting : waiting_) {
    if (waiting.stream == stream) waiting.stream.reset();
    std::erase_if(waiting.uses, [&](const Use& use) { return use.stream == stream; });
  }
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  Release(*it->second, epoch_);
  streams_.erase(it);
}

bool ArenaHeap::waiting() const { return in_streams_ + in_use_ > 0; }

uint64_t ArenaHeap::out() const { return leased_ - anyones_.size() - in_streams_ - in_use_; }

void ArenaHeap::AddTo(ArenaStats* stats) const {
  const auto bytes = [&](uint64_t granules) { return Bytes(granules << granule_shift_); };
  stats->leased = bytes(leased_);
  stats->chunks = chunks_.size();
  stats->free = bytes(anyones_.size());
  stats->held = bytes(in_streams_);
  stats->in_use = bytes(in_use_);
  stats->peak_leased = bytes(peak_leased_);
  stats->peak_out = bytes(peak_out_);
  stats->leases = leases_;
  stats->returns = returns_;
  uint64_t largest = 0;
  anyones_.ForEach([&](const ArenaExtent* extent) { largest = std::max(largest, extent->size); });
  stats->largest_free = bytes(largest);
  for (const auto& [id, stream] : streams_) {
    auto it = std::find_if(stats->streams.begin(), stats->streams.end(),
                           [id = id](const ArenaStats::Stream& known) { return known.stream == id; });
    if (it == stats->streams.end()) it = stats->streams.insert(it, {.stream = id});
    it->held = bytes(stream->bins.size());
  }
}

// ---- arena_cache.h -------------------------------------------------------------------------------------------

ArenaCache::Stream* ArenaCache::FindOrAdd(ArenaStream id) {
  for (const auto& stream : streams_) {
    if (stream->id == id) return last_ = stream.get();
  }
  if (streams_.size() >= kMaxStreams) return nullptr;
  streams_.push_back(std::make_unique<Stream>(id, last_class_ + 1));
  return last_ = streams_.back().get();
}

void ArenaCache::Relieve(List& list, ArenaStream stream, std::vector<FreedExtent>* overflow) {
  if (size_ > limit_) {
    TakeAll(overflow);
  } else {
    Shorten(list, list.length / 2, stream, overflow);
  }
}

void ArenaCache::Shorten(List& list, uint64_t length, ArenaStream stream, std::vector<FreedExtent>* taken) {
  while (list.length > length) {
    ArenaExtent* const extent = list.head;
    list.head = extent->next;
    --list.length;
    size_ -= extent->size;
    taken->push_back({extent, stream});
  }
}

void ArenaCache::TakeAll(std::vector<FreedExtent>* taken) {
  for (const auto& stream : streams_) {
    for (List& list : stream->lists) Shorten(list, 0, stream->id, taken);
  }
  if (streams_.size() < kMaxStreams) return;
  last_ = nullptr;
  streams_.clear();
}

void ArenaCache::Forget(ArenaStream stream, std::vector<FreedExtent>* taken) {
  last_ = nullptr;
  std::erase_if(streams_, [&](const auto& known) {
    if (known->id != stream) return false;
    for (List& list : known->lists) Shorten(list, 0, stream, taken);
    return true;
  });
}

void ArenaCache::AddTo(ArenaStats* stats) const {
  const auto add = [](Bytes& sum, uint64_t count) { sum = Bytes(sum.count() + count); };
  add(stats->cached, size_ << granule_shift_);
  add(stats->live, live_ << granule_shift_);
  add(stats->live_requested, requested_);
  stats->allocations += allocations_;
  stats->frees += frees_;
  stats->misses += misses_;
  for (const auto& stream : streams_) {
    auto it = std::find_if(stats->streams.begin(), stats->streams.end(),
                           [&](const ArenaStats::Stream& known) { return known.stream == stream->id; });
    if (it == stats->streams.end()) it = stats->streams.insert(it, {.stream = stream->id});
    it->allocations += stream->allocations;
    it->frees += stream->frees;
    for (const List& list : stream->lists) {
      if (list.head != nullptr) {
        add(it->cached, (list.length * list.head->size) << granule_shift_);
      }
    }
  }
}

}  // namespace berth::internal
