#include "daemon/core/types/ring_shares.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace berth::core {
namespace {

struct Holder {
  uint64_t holds = 0;
  uint64_t weight = 1;
  uint64_t limit = 0;
};

uint64_t WeightOf(RingPart part) { return part == RingPart::kUsers ? 2 : 1; }

// Weighted max-min fairness: serves the holders with the least per weight first, so that each leaves to the later ones
// what it does not need.
void Divide(uint64_t total, std::vector<Holder*> holders) {
  // Holdings are far below 2^60, weights are 1 or 2.
  std::stable_sort(holders.begin(), holders.end(), [](const Holder* a, const Holder* b) {
    return a->holds * b->weight < b->holds * a->weight;
  });
  uint64_t weights = 0;
  for (const Holder* const holder : holders) weights += holder->weight;
  for (Holder* const holder : holders) {
    // Rounds down; the remainder reaches the later holders, and the last one gets all that is left.
    const uint64_t share = total / weights * holder->weight + total % weights * holder->weight / weights;
    holder->limit = std::min(holder->holds, share);
    total -= holder->limit;
    weights -= holder->weight;
  }
}

}  // namespace

std::map<RingKey, uint64_t> LimitRing(uint64_t total, const std::map<RingKey, uint64_t>& held) {
  std::map<RingPart, Holder> parts;
  for (const auto& [key, holds] : held) {
    Holder& part = parts[key.part];
    part.holds += holds;
    part.weight = WeightOf(key.part);
  }
  std::vector<Holder*> all;
  for (auto& [part, holder] : parts) all.push_back(&holder);
  Divide(total, std::move(all));

  std::map<RingKey, Holder> holders;
  std::map<RingPart, std::vector<Holder*>> by_part;
  for (const auto& [key, holds] : held) {
    Holder& holder = holders[key] = {.holds = holds};
    by_part[key.part].push_back(&holder);
  }
  for (auto& [part, accounts] : by_part) Divide(parts.at(part).limit, std::move(accounts));
  std::map<RingKey, uint64_t> limits;
  for (const auto& [key, holder] : holders) limits[key] = holder.limit;
  return limits;
}

bool RingPlaces::Take(const RingKey& key) {
  if (taken_ >= places_) return false;
  if (key.part != RingPart::kOperators) {
    const auto own = taken_by_.find(key.account);
    if ((own == taken_by_.end() ? 0 : own->second) >= places_ / 2) return false;
    ++taken_by_[key.account];
  }
  ++taken_;
  return true;
}

void RingPlaces::Return(const RingKey& key) {
  --taken_;
  if (key.part == RingPart::kOperators) return;
  const auto own = taken_by_.find(key.account);
  if (--own->second == 0) taken_by_.erase(own);
}

}  // namespace berth::core
