// Shared by tests of plans: nodes with devices of given weight, and a one-line text form of a layout.

#ifndef DAEMON_CORE_TESTING_PLAN_HARNESS_H_
#define DAEMON_CORE_TESTING_PLAN_HARNESS_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/core_harness.h"

namespace berth::core {

// Returns a node with one device for each number of SMs, 8 GiB each with a budget of 4 GiB.
inline Config NodeOf(const std::vector<uint32_t>& sms, uint32_t cc_major = 7) {
  Config config = CoreHarness::DefaultConfig();
  config.devices.clear();
  for (uint32_t i = 0; i < sms.size(); ++i) {
    config.devices.push_back({.ordinal = i,
                              .uuid = absl::StrCat("DEVICE-", i),
                              .total = GiB(8),
                              .budget = GiB(4),
                              .facts = {.sm_count = sms[i], .cc_major = cc_major, .cc_minor = 0}});
  }
  return config;
}

// Returns the device and the units of each tile, such as "0:0-50 1:50-100".
inline std::string TilesOf(const PlanLayout& layout) {
  std::string text;
  for (const Tile& tile : layout.tiles) {
    absl::StrAppend(&text, text.empty() ? "" : " ", layout.devices[tile.device].ordinal, ":", tile.begin, "-",
                    tile.end);
  }
  return text;
}

}  // namespace berth::core

#endif  // DAEMON_CORE_TESTING_PLAN_HARNESS_H_
