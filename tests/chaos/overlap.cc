#include "tests/chaos/overlap.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace berth::testing {

absl::StatusOr<std::vector<HeldInterval>> HeldIntervalsOf(const std::vector<HistoryEvent>& events, int64_t last_alive) {
  std::map<uint64_t, HeldInterval> open;
  std::vector<HeldInterval> intervals;
  for (const HistoryEvent& event : events) {
    if (event.kind == HistoryEvent::Kind::kGranted) {
      open[event.interval] = {.pool = event.pool, .units = event.units, .from = event.at, .until = last_alive};
      continue;
    }
    const auto at = open.find(event.interval);
    if (event.kind != HistoryEvent::Kind::kReleasing || at == open.end() || event.at < at->second.from) {
      return absl::DataLossError(absl::StrCat("interval ", event.interval, " is released at ", event.at,
                                              ", when it was not held"));
    }
    at->second.until = event.at;
    intervals.push_back(at->second);
    open.erase(at);
  }
  for (const auto& [number, interval] : open) intervals.push_back(interval);
  // A grant after the last sight of a process proves nothing.
  std::erase_if(intervals, [](const HeldInterval& interval) { return interval.until <= interval.from; });
  return intervals;
}

uint64_t GreatestOverlap(const std::vector<HeldInterval>& intervals, uint32_t pool) {
  // Times, and the change of the count at each; an interval no longer counts at the time of its end.
  std::vector<std::pair<int64_t, int64_t>> changes;
  for (const HeldInterval& interval : intervals) {
    if (interval.pool != pool) continue;
    changes.emplace_back(interval.from, static_cast<int64_t>(interval.units));
    changes.emplace_back(interval.until, -static_cast<int64_t>(interval.units));
  }
  std::sort(changes.begin(), changes.end());
  int64_t out = 0;
  int64_t most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, out += change);
  return static_cast<uint64_t>(most);
}

}  // namespace berth::testing
