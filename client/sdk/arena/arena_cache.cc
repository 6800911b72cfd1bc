#include "client/sdk/arena/arena_cache.h"

namespace berth::internal {

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
