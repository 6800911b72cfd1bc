#include "daemon/base/partition.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include <berth/error.h>

#include "common/status_macros.h"
#include "daemon/base/repartition.h"

namespace berth {
namespace {

__extension__ using Wide = unsigned __int128;

// Scales the largest of `count` weights to [2^57, 2^58), or lower for more than the 64 devices that a node can have.
// The sum stays below 2^64, where a 128-bit division is one instruction.
int WeightBits(size_t count) { return std::min(58, 64 - static_cast<int>(std::bit_width(count - 1))); }

// Returns 0 for a negative or NaN weight.
double Clean(double weight) { return weight > 0 ? weight : 0; }

// Returns whole numbers in the proportion of the weights; all 1 if the weights carry no information.
PerDevice<uint64_t> WholeWeights(absl::Span<const PartitionDevice> devices) {
  double sum = 0;
  double largest = 0;
  for (const PartitionDevice& device : devices) {
    sum += Clean(device.weight);
    largest = std::max(largest, Clean(device.weight));
  }
  if (!std::isfinite(sum) || sum <= 0) return PerDevice<uint64_t>(devices.size(), 1);
  const int shift = WeightBits(devices.size()) - 1 - std::ilogb(largest);
  // Powers of two: the product is exact, or less than one. Split in two, because a single factor may exceed a double.
  const double first = std::ldexp(1.0, shift / 2);
  const double second = std::ldexp(1.0, shift - shift / 2);
  PerDevice<uint64_t> whole(devices.size());
  uint64_t* to = whole.data();
  // The signed conversion is one instruction.
  for (const PartitionDevice& device : devices) *to++ = static_cast<int64_t>(Clean(device.weight) * first * second);
  return whole;
}

// Indexes of the devices that are still candidates.
using Places = std::vector<size_t>;

// Splits by largest remainder; among equals first to a device that had more than its whole part, then to the earlier
// one.
std::vector<uint64_t> LargestRemainder(uint64_t units, absl::Span<const PartitionDevice> devices) {
  std::vector<uint64_t> shares(devices.size(), 0);
  if (units == 0 || devices.empty()) return shares;
  if (devices.size() == 1) {
    shares[0] = units;
    return shares;
  }
  // First each device's weight, then in its place the remainder of its division; all divisions have the same divisor.
  PerDevice<uint64_t> parts = WholeWeights(devices);
  const uint64_t sum = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
  uint64_t left = units;
  for (size_t i = 0; i < shares.size(); ++i) {
    const Wide product = Wide{units} * parts[i];
    shares[i] = static_cast<uint64_t>(product / sum);
    // The remainder is less than the divisor, so it fits into 64 bits.
    parts[i] = static_cast<uint64_t>(product) - shares[i] * sum;
    left -= shares[i];
  }
  if (left == 0) return shares;
  // The smallest remainder that gets a unit; above 0, because more than `left` devices have a remainder.
  PerDevice<uint64_t> order = parts;
  std::nth_element(order.begin(), order.begin() + (left - 1), order.end(), std::greater<>());
  const uint64_t last = order[left - 1];
  for (size_t i = 0; i < shares.size(); ++i) {
    const uint64_t more = parts[i] > last ? 1 : 0;
    shares[i] += more;
    left -= more;
  }
  for (const bool keeps : {true, false}) {
    for (size_t i = 0; i < shares.size() && left > 0; ++i) {
      if (parts[i] != last || (keeps && devices[i].had_units <= shares[i])) continue;
      ++shares[i];
      --left;
      parts[i] = 0;
    }
  }
  return shares;
}

// Splits among the devices of `places` alone.
std::vector<uint64_t> SharesAmong(uint64_t units, absl::Span<const PartitionDevice> devices, const Places& places) {
  PerDevice<PartitionDevice> among;
  for (const size_t place : places) among.push_back(devices[place]);
  return LargestRemainder(units, among);
}

// Splits among all of `places`, none below `least` or above its capacity. The other devices share what a bound takes or
// frees. The bound that moves more units is settled first, so that the other bound can still hold.
// Requires: places.size() * least <= units <= their capacity.
std::vector<uint64_t> BoundedShares(uint64_t units, absl::Span<const PartitionDevice> devices, uint64_t least,
                                    Places places) {
  std::vector<uint64_t> shares(devices.size(), 0);
  while (!places.empty()) {
    const std::vector<uint64_t> ideal = SharesAmong(units, devices, places);
    Wide over = 0;
    Wide under = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      const uint64_t most = devices[places[i]].most_units;
      if (ideal[i] > most) over += ideal[i] - most;
      if (ideal[i] < least) under += least - ideal[i];
    }
    Places open;
    uint64_t settled = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      const uint64_t most = devices[places[i]].most_units;
      const bool too_many = ideal[i] > most && over >= under;
      const bool too_few = ideal[i] < least && under >= over;
      shares[places[i]] = too_many ? most : too_few ? least : ideal[i];
      if (too_many || too_few) {
        settled += shares[places[i]];
      } else {
        open.push_back(places[i]);
      }
    }
    if (over == 0 && under == 0) break;
    places = std::move(open);
    units -= settled;
  }
  return shares;
}

Wide CapacityOf(absl::Span<const PartitionDevice> devices, const Places& places) {
  Wide capacity = 0;
  for (const size_t place : places) capacity += devices[place].most_units;
  return capacity;
}

uint64_t Narrow(Wide wide) { return wide > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(wide); }

absl::Status CannotHold(absl::string_view constraint, absl::string_view what, uint64_t value,
                        uint64_t limit) {
  return Refuse(Reason::kConstraint, "constraint {constraint} cannot hold: {what}: {value}, limit {limit}",
                {{"constraint", constraint}, {"what", what}, {"value", value}, {"limit", limit}});
}

// Returns the fewest devices that hold all units, by largest capacity. Errors: why no choice of devices can.
absl::StatusOr<Places> FreestThatHold(uint64_t units, absl::Span<const PartitionDevice> devices,
                                      Places places, const PartitionConstraints& constraints) {
  std::stable_sort(places.begin(), places.end(),
                   [&](size_t a, size_t b) { return devices[a].most_units > devices[b].most_units; });
  Places chosen;
  Wide capacity = 0;
  for (const size_t place : places) {
    if (capacity >= units) break;
    chosen.push_back(place);
    capacity += devices[place].most_units;
  }
  if (capacity < units) {
    // Including the devices below min_units, the capacity may suffice.
    Places all(devices.size());
    std::iota(all.begin(), all.end(), size_t{0});
    if (CapacityOf(devices, all) >= units) {
      return CannotHold("min_units", "units requested, without devices that have capacity for fewer than min_units",
                        units, Narrow(capacity));
    }
    return CannotHold("room", "units requested above the devices' capacity", units, Narrow(capacity));
  }
  const uint64_t most = constraints.max_devices == 0 ? UINT64_MAX : constraints.max_devices;
  if (chosen.size() > most) {
    return CannotHold("max_devices", "devices needed for the capacity", chosen.size(), most);
  }
  if (const Wide needed = Wide{chosen.size()} * constraints.min_units; needed > units) {
    return CannotHold("min_units", "units that the fewest possible devices need", Narrow(needed), units);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// Returns the index of least weight in `narrow`, among equals the last, without which the others of `places` still hold
// all units; nothing if there is none.
std::optional<size_t> LeastSpared(uint64_t units, absl::Span<const PartitionDevice> devices,
                                  const Places& places, const Places& narrow) {
  const Wide capacity = CapacityOf(devices, places);
  std::optional<size_t> least;
  for (const size_t place : narrow) {
    if (capacity - devices[place].most_units < units) continue;
    if (!least.has_value() || Clean(devices[place].weight) <= Clean(devices[*least].weight)) least = place;
  }
  return least;
}

// Returns the shares of the devices of `places`, ignoring islands.
absl::StatusOr<std::vector<uint64_t>> SharesOf(uint64_t units, absl::Span<const PartitionDevice> devices,
                                               Places places, const PartitionConstraints& constraints) {
  const uint64_t least = constraints.min_units;
  std::erase_if(places,
                [&](size_t place) { return devices[place].most_units < std::max<uint64_t>(least, 1); });
  BERTH_ASSIGN_OR_RETURN(const Places freest, FreestThatHold(units, devices, places, constraints));
  const uint64_t most = constraints.max_devices == 0 ? UINT64_MAX : constraints.max_devices;
  while (true) {
    std::optional<size_t> spared;
    if (places.size() <= most) {
      std::vector<uint64_t> shares = BoundedShares(units, devices, 0, places);
      Places narrow;
      std::copy_if(places.begin(), places.end(), std::back_inserter(narrow),
                   [&](size_t place) { return shares[place] < least; });
      if (narrow.empty()) return shares;
      spared = LeastSpared(units, devices, places, narrow);
      // The capacity of each of them is needed: the other devices give it the missing units, if possible.
      if (!spared.has_value() && Wide{places.size()} * least <= units) {
        return BoundedShares(units, devices, least, places);
      }
    }
    if (!spared.has_value()) spared = LeastSpared(units, devices, places, places);
    if (!spared.has_value()) return BoundedShares(units, devices, least, freest);
    std::erase(places, *spared);
  }
}

// Returns the indexes of each island, in the order of its first device; a device without an island is alone.
std::vector<Places> IslandsOf(absl::Span<const PartitionDevice> devices) {
  std::vector<Places> islands;
  std::map<uint32_t, size_t> known;
  for (size_t place = 0; place < devices.size(); ++place) {
    const std::optional<uint32_t>& island = devices[place].island;
    if (island.has_value()) {
      const auto [at, fresh] = known.emplace(*island, islands.size());
      if (!fresh) {
        islands[at->second].push_back(place);
        continue;
      }
    }
    islands.push_back({place});
  }
  return islands;
}

absl::StatusOr<std::vector<uint64_t>> SharesOfOneIsland(uint64_t units,
                                                        absl::Span<const PartitionDevice> devices,
                                                        const PartitionConstraints& constraints) {
  std::optional<std::vector<uint64_t>> best;
  double best_weight = 0;
  Wide most_capacity = 0;
  for (const Places& island : IslandsOf(devices)) {
    most_capacity = std::max(most_capacity, CapacityOf(devices, island));
    absl::StatusOr<std::vector<uint64_t>> shares = SharesOf(units, devices, island, constraints);
    if (!shares.ok()) continue;
    double weight = 0;
    for (size_t i = 0; i < devices.size(); ++i) weight += (*shares)[i] > 0 ? Clean(devices[i].weight) : 0;
    if (best.has_value() && !(weight > best_weight)) continue;
    best = *std::move(shares);
    best_weight = weight;
  }
  if (best.has_value()) return *std::move(best);
  Places all(devices.size());
  std::iota(all.begin(), all.end(), size_t{0});
  // If all devices together cannot hold the units either, report that reason.
  BERTH_RETURN_IF_ERROR(SharesOf(units, devices, all, constraints).status());
  return CannotHold("one_island", "units requested above the capacity of every island", units, Narrow(most_capacity));
}

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

std::vector<uint64_t> BalancedShares(uint64_t units, absl::Span<const double> weights) {
  PerDevice<PartitionDevice> devices;
  for (const double weight : weights) devices.push_back({.weight = weight});
  return LargestRemainder(units, devices);
}

std::vector<Tile> LayOut(absl::Span<const uint64_t> shares) {
  std::vector<Tile> tiles(shares.size());
  Tile* tile = tiles.data();
  uint64_t begin = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] == 0) continue;
    *tile++ = {.device = i, .begin = begin, .end = begin + shares[i]};
    begin += shares[i];
  }
  tiles.resize(tile - tiles.data());
  return tiles;
}

std::vector<Tile> BalancedPartition(uint64_t units, absl::Span<const double> weights) {
  return LayOut(BalancedShares(units, weights));
}

absl::StatusOr<std::vector<uint64_t>> ConstrainedShares(uint64_t units,
                                                        absl::Span<const PartitionDevice> devices,
                                                        const PartitionConstraints& constraints) {
  if (units == 0) return std::vector<uint64_t>(devices.size(), 0);
  if (devices.empty()) return CannotHold("devices", "devices to split units over", 0, 1);
  if (constraints.one_island) return SharesOfOneIsland(units, devices, constraints);
  bool simple = constraints.min_units <= 1 && constraints.max_devices == 0;
  for (const PartitionDevice& device : devices) simple &= device.most_units >= units;
  if (simple) return LargestRemainder(units, devices);
  Places all(devices.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return SharesOf(units, devices, std::move(all), constraints);
}

// ---- repartition.h -------------------------------------------------------------------------------------------

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
