#include "daemon/base/repartition.h"

#include <algorithm>

namespace berth {
namespace {

// Marks a part that has no device yet.
constexpr size_t kNobody = SIZE_MAX - 1;

// A previous tile, or a part of it.
struct Part {
  size_t from = 0;
  size_t to = kNobody;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Appends the part unless it is empty.
void Append(Part part, std::vector<Part>* parts) {
  if (part.begin < part.end) parts->push_back(part);
}

}  // namespace

Repartition MoveFewest(absl::Span<const Tile> before, absl::Span<const uint64_t> shares) {
  std::vector<uint64_t> lacks(shares.begin(), shares.end());
  std::vector<Part> split;
  for (const Tile& tile : before) {
    const uint64_t keep = tile.device == kGone ? 0 : std::min(tile.units(), lacks[tile.device]);
    if (keep > 0) lacks[tile.device] -= keep;
    const uint64_t cut = tile.begin + keep;
    Append({.from = tile.device, .to = tile.device, .begin = tile.begin, .end = cut}, &split);
    Append({.from = tile.device, .begin = cut, .end = tile.end}, &split);
  }
  std::vector<Part> parts;
  // Index of the first device that may lack units.
  size_t next = 0;
  for (size_t i = 0; i < split.size(); ++i) {
    Part open = split[i];
    if (open.to != kNobody) {
      parts.push_back(open);
      continue;
    }
    const auto give = [&](size_t to, uint64_t begin, uint64_t end) {
      lacks[to] -= end - begin;
      return Part{.from = open.from, .to = to, .begin = begin, .end = end};
    };
    if (!parts.empty()) {
      const size_t left = parts.back().to;
      const uint64_t cut = open.begin + std::min(open.end - open.begin, lacks[left]);
      Append(give(left, open.begin, cut), &parts);
      open.begin = cut;
    }
    Part last;
    if (i + 1 < split.size() && split[i + 1].to != kNobody) {
      const size_t right = split[i + 1].to;
      const uint64_t cut = open.end - std::min(open.end - open.begin, lacks[right]);
      last = give(right, cut, open.end);
      open.end = cut;
    }
    while (open.begin < open.end) {
      while (lacks[next] == 0) ++next;
      const uint64_t cut = open.begin + std::min(open.end - open.begin, lacks[next]);
      parts.push_back(give(next, open.begin, cut));
      open.begin = cut;
    }
    Append(last, &parts);
  }
  Repartition result;
  for (const Part& part : parts) {
    if (!result.tiles.empty() && result.tiles.back().device == part.to) {
      result.tiles.back().end = part.end;
    } else {
      result.tiles.push_back({.device = part.to, .begin = part.begin, .end = part.end});
    }
    if (part.from == part.to) continue;
    std::vector<Move>& moves = result.moves;
    if (!moves.empty() && moves.back().from == part.from && moves.back().to == part.to &&
        moves.back().end == part.begin) {
      moves.back().end = part.end;
    } else {
      moves.push_back({.from = part.from, .to = part.to, .begin = part.begin, .end = part.end});
    }
  }
  return result;
}

}  // namespace berth
