#include "tests/chaos/overlap.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace berth::testing {

absl::StatusOr<std::vector<Holding>> HoldingsOf(const std::vector<HistoryEvent>& events, int64_t last_alive) {
  std::map<uint64_t, Holding> open;
  std::vector<Holding> holdings;
  for (const HistoryEvent& event : events) {
    if (event.kind == HistoryEvent::Kind::kGranted) {
      open[event.holding] = {.pool = event.pool, .units = event.units, .from = event.at, .until = last_alive};
      continue;
    }
    const auto at = open.find(event.holding);
    if (event.kind != HistoryEvent::Kind::kReleasing || at == open.end() || event.at < at->second.from) {
      return absl::DataLossError(absl::StrCat("holding ", event.holding, " is released at ", event.at,
                                              ", when it was not held"));
    }
    at->second.until = event.at;
    holdings.push_back(at->second);
    open.erase(at);
  }
  for (const auto& [number, holding] : open) holdings.push_back(holding);
  // What was granted after the last look at a process says nothing.
  std::erase_if(holdings, [](const Holding& holding) { return holding.until <= holding.from; });
  return holdings;
}

uint64_t GreatestOverlap(const std::vector<Holding>& holdings, uint32_t pool) {
  // When, and by how much the count changes then; what ends at a moment is gone at that moment.
  std::vector<std::pair<int64_t, int64_t>> changes;
  for (const Holding& holding : holdings) {
    if (holding.pool != pool) continue;
    changes.emplace_back(holding.from, static_cast<int64_t>(holding.units));
    changes.emplace_back(holding.until, -static_cast<int64_t>(holding.units));
  }
  std::sort(changes.begin(), changes.end());
  int64_t out = 0;
  int64_t most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, out += change);
  return static_cast<uint64_t>(most);
}

}  // namespace berth::testing
