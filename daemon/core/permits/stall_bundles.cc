// Bundles of a StallBoard: lines that need the same gauges at once.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "daemon/core/permits/stall_board.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {

std::vector<Gauge> StallBoard::GaugesOf(const Stall& stall) {
  std::vector<Gauge> gauges = {stall.gauge};
  for (const Threshold& one : stall.also) gauges.push_back(one.gauge);
  return gauges;
}

bool StallBoard::HasReached(const Thresholds& thresholds, const Thresholds& values) {
  return std::equal(thresholds.begin(), thresholds.end(), values.begin(),
                    [](uint64_t threshold, uint64_t value) { return threshold <= value; });
}

void StallBoard::File(Bundle& bundle, size_t under) {
  bundle.filed = under;
  if (under == kMixed) {
    mixed_.insert(&bundle);
  } else {
    filed_[bundle.gauges[under]].emplace(bundle.least[under], &bundle);
  }
}

void StallBoard::Unfile(Bundle& bundle) {
  const size_t under = std::exchange(bundle.filed, kUnfiled);
  if (under == kUnfiled) return;
  unfiled_.insert(&bundle);
  if (under == kMixed) {
    mixed_.erase(&bundle);
    return;
  }
  const auto filed = filed_.find(bundle.gauges[under]);
  filed->second.erase({bundle.least[under], &bundle});
  if (filed->second.empty()) filed_.erase(filed);
}

void StallBoard::EnterBundle(Class of, uint64_t ticket, const Stall& stall) {
  std::vector<Gauge> gauges = GaugesOf(stall);
  const auto [at, fresh] = bundles_.try_emplace(gauges);
  Bundle& bundle = at->second;
  if (fresh) {
    bundle.least.assign(gauges.size(), std::numeric_limits<uint64_t>::max());
    bundle.gauges = std::move(gauges);
    unfiled_.insert(&bundle);
  }
  Thresholds thresholds = {stall.threshold};
  for (const Threshold& one : stall.also) thresholds.push_back(one.threshold);
  // The gauge of a filed bundle blocks the line, too, if its threshold there is not lesser.
  if (bundle.filed == kMixed || (bundle.filed != kUnfiled && thresholds[bundle.filed] < bundle.least[bundle.filed])) {
    Unfile(bundle);
  }
  for (size_t i = 0; i < thresholds.size(); ++i) bundle.least[i] = std::min(bundle.least[i], thresholds[i]);
  const bool entered = bundle.lists[of].emplace(ticket, std::move(thresholds)).second;
  BERTH_INVARIANT(entered);
}

void StallBoard::LeaveBundle(Class of, uint64_t ticket, const Stall& stall) {
  const auto at = bundles_.find(GaugesOf(stall));
  BERTH_INVARIANT(at != bundles_.end());
  Bundle& bundle = at->second;
  const auto list = bundle.lists.find(of);
  BERTH_INVARIANT(list != bundle.lists.end() && list->second.erase(ticket) == 1);
  if (list->second.empty()) bundle.lists.erase(list);
  bundle.lines_left = true;
  if (!bundle.lists.empty()) return;
  Unfile(bundle);
  unfiled_.erase(&bundle);
  std::erase_if(reached_bundles_, [&](const ReachedBundle& reached) { return reached.bundle == &bundle; });
  bundles_.erase(at);
}

void StallBoard::LookAt(Bundle& bundle, Read read) {
  Thresholds values;
  for (const Gauge& gauge : bundle.gauges) {
    ++gauges_read_;
    values.push_back(read(/*tenant=*/0, gauge));
    if (values.back() < bundle.least[values.size() - 1]) return File(bundle, values.size() - 1);
  }
  bool reached = false;
  for (const auto& [of, list] : bundle.lists) {
    const bool any =
        std::any_of(list.begin(), list.end(), [&](const auto& line) { return HasReached(line.second, values); });
    if (any) reached_bundles_.push_back({of, &bundle, values});
    reached = reached || any;
  }
  if (reached) return;
  if (!std::exchange(bundle.lines_left, false)) return File(bundle, kMixed);
  std::fill(bundle.least.begin(), bundle.least.end(), std::numeric_limits<uint64_t>::max());
  for (const auto& [of, list] : bundle.lists) {
    for (const auto& [ticket, thresholds] : list) {
      for (size_t i = 0; i < thresholds.size(); ++i) bundle.least[i] = std::min(bundle.least[i], thresholds[i]);
    }
  }
  size_t under = 0;
  while (under < values.size() && values[under] >= bundle.least[under]) ++under;
  File(bundle, under < values.size() ? under : kMixed);
}

void StallBoard::RefreshBundles(Read read, Version version) {
  reached_bundles_.clear();
  if (bundles_.empty()) return;
  const uint64_t now = VersionOfBundles(version);
  if (std::exchange(bundles_version_, now) != now || now == kUnknown) {
    std::vector<Bundle*> changed(mixed_.begin(), mixed_.end());
    for (const auto& [gauge, filed] : filed_) {
      ++gauges_read_;
      const uint64_t value = read(/*tenant=*/0, gauge);
      for (auto it = filed.begin(); it != filed.end() && it->first <= value; ++it) changed.push_back(it->second);
    }
    for (Bundle* const bundle : changed) Unfile(*bundle);
  }
  for (Bundle* const bundle : unfiled_) LookAt(*bundle, read);
  std::erase_if(unfiled_, [](const Bundle* bundle) { return bundle->filed != kUnfiled; });
}

uint64_t StallBoard::FirstBundled(Class of, uint64_t after) const {
  uint64_t first = 0;
  for (const ReachedBundle& reached : reached_bundles_) {
    if (reached.of != of) continue;
    const auto list = reached.bundle->lists.find(of);
    if (list == reached.bundle->lists.end()) continue;
    auto line = list->second.upper_bound(after);
    while (line != list->second.end() && (first == 0 || line->first < first) &&
           !HasReached(line->second, reached.values)) {
      ++line;
    }
    if (line != list->second.end() && (first == 0 || line->first < first)) first = line->first;
  }
  return first;
}

bool StallBoard::BundlesAreCurrent(Read read, Version version) const {
  if (bundles_.empty()) return true;
  const uint64_t now = VersionOfBundles(version);
  if (now == kUnknown || bundles_version_ != now) return true;
  for (const auto& [gauges, bundle] : bundles_) {
    if (bundle.filed == kUnfiled) continue;
    Thresholds values;
    for (const Gauge& gauge : gauges) values.push_back(read(/*tenant=*/0, gauge));
    for (const auto& [of, list] : bundle.lists) {
      for (const auto& [ticket, thresholds] : list) {
        if (HasReached(thresholds, values)) return false;
      }
    }
  }
  return true;
}

}  // namespace berth::core
