#include "tests/support/actor/actor_arena.h"

#include <memory_resource>
#include <numeric>
#include <random>
#include <utility>

#include <berth/pmr_resource.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "tests/support/actor/actor_blocks.h"

namespace berth::testing {
namespace {

// Live allocations of a churn, and the most bytes of one allocation.
constexpr size_t kLive = 16;
constexpr uint64_t kMostChurn = 64 << 10;

// An allocation filled with bytes derived from its seed.
struct Filled {
  ArenaBuffer buffer;
  uint64_t seed;

  void Fill() const { FillPattern(buffer.data(), buffer.size().count(), seed); }
  absl::Status Check() const { return CheckPattern(buffer.data(), buffer.size().count(), seed); }
};

}  // namespace

absl::StatusOr<std::string> ActorArena::Do(const std::string& verb, const std::vector<std::string>& words) {
  if (verb == "arena") return Create(words);
  if (!absl::StartsWith(verb, "arena-")) return absl::UnimplementedError(verb);
  if (arena_ == nullptr) return absl::FailedPreconditionError("no arena");
  if (verb == "arena-allocate") return Allocate(words);
  if (verb == "arena-free") return Free(words);
  if (verb == "arena-drop") {
    arena_ = nullptr;
    return "";
  }
  if (verb == "arena-trim") {
    BERTH_ASSIGN_OR_RETURN(const Bytes bytes, arena_->Trim());
    return absl::StrCat(bytes.count());
  }
  if (verb == "arena-stats") {
    const ArenaStats stats = arena_->Stats();
    return absl::StrCat(stats.leased.count(), " ", stats.live.count(), " ", stats.cached.count(), " ",
                        stats.free.count(), " ", stats.chunks);
  }
  BERTH_ASSIGN_OR_RETURN(const uint64_t number, Number(words, 0));
  if (verb == "arena-pmr") return FillVector(number);
  BERTH_ASSIGN_OR_RETURN(const uint64_t seed, Number(words, 1));
  if (verb == "arena-churn") return Churn(number, seed);
  return absl::UnimplementedError(verb);
}

absl::StatusOr<std::string> ActorArena::Create(const std::vector<std::string>& words) {
  ArenaOptions options = {.chunk_bytes = MiB(16), .label = "arena"};
  for (const std::string& word : words) {
    const std::pair<std::string, std::string> option = absl::StrSplit(word, absl::MaxSplits('=', 1));
    uint64_t number = 0;
    if (option.first == "kind") {
      BERTH_ASSIGN_OR_RETURN(options.export_kinds, ParseKinds(option.second));
      continue;
    }
    if (!absl::SimpleAtoi(option.second, &number)) return absl::InvalidArgumentError(word);
    if (option.first == "limit") options.limit = Bytes(number);
    if (option.first == "device") options.device = static_cast<uint32_t>(number);
  }
  BERTH_ASSIGN_OR_RETURN(arena_, Arena::Create(session_, options));
  return "";
}

absl::StatusOr<std::string> ActorArena::Allocate(const std::vector<std::string>& words) {
  BERTH_ASSIGN_OR_RETURN(const uint64_t bytes, Number(words, 1));
  ArenaStream stream = ArenaStream::kDefault;
  if (words.size() > 2) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t number, Number(words, 2));
    stream = static_cast<ArenaStream>(number);
  }
  BERTH_ASSIGN_OR_RETURN(ArenaBuffer buffer, ArenaBuffer::Allocate(arena_, Bytes(bytes), stream));
  buffers_[words[0]] = std::move(buffer);
  return "";
}

absl::StatusOr<std::string> ActorArena::Free(const std::vector<std::string>& words) {
  const auto it = words.empty() ? buffers_.end() : buffers_.find(words[0]);
  if (it == buffers_.end()) return absl::NotFoundError("no such buffer");
  const absl::Status freed = it->second.Free();
  buffers_.erase(it);
  return Said(freed);
}

absl::StatusOr<std::string> ActorArena::Churn(uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Filled> live;
  for (uint64_t i = 0; i < count; ++i) {
    if (live.size() == kLive) {
      std::swap(live[random() % kLive], live.back());
      BERTH_RETURN_IF_ERROR(live.back().Check());
      live.pop_back();
    }
    BERTH_ASSIGN_OR_RETURN(ArenaBuffer buffer, ArenaBuffer::Allocate(arena_, Bytes(random() % kMostChurn + 1),
                                                                     static_cast<ArenaStream>(random() % 4)));
    live.push_back({.buffer = std::move(buffer), .seed = random()});
    live.back().Fill();
    BERTH_RETURN_IF_ERROR(FillVector(random() % kMostChurn + 1).status());
  }
  for (const Filled& filled : live) BERTH_RETURN_IF_ERROR(filled.Check());
  return "";
}

absl::StatusOr<std::string> ActorArena::FillVector(uint64_t bytes) {
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<PmrResource> resource, PmrResource::Create(arena_));
  std::pmr::vector<uint8_t> vector(resource.get());
  for (uint64_t i = 0; i < bytes; ++i) vector.push_back(1);
  return absl::StrCat(std::accumulate(vector.begin(), vector.end(), uint64_t{0}));
}

}  // namespace berth::testing
