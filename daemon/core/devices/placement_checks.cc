// Whether a request for devices can ever be granted.

#include <algorithm>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "daemon/core/devices/placement.h"

namespace berth::core {

absl::Status Placement::Check(absl::string_view pool, const Ask& ask) const {
  const DeviceConstraint& constraint = ask.constraint;
  BERTH_RETURN_IF_ERROR(CheckConstraint(constraint));
  const Device* largest = nullptr;
  uint64_t most_units = 0;
  for (const auto& [ordinal, device] : devices_) {
    if (!Suits(device, constraint) || device.state.dropped) continue;
    const uint64_t cap = ask.shares == nullptr ? UINT64_MAX : ask.shares->CapOf(device.facts.uuid);
    most_units = std::max(most_units, cap);
    // The largest device that may have the units.
    if (largest == nullptr || (ask.units <= cap && CapacityOf(*largest) < CapacityOf(device))) largest = &device;
  }
  const std::string name = constraint.pick == DevicePick::kNamed ? constraint.uuid : "of any kind";
  if (ask.units > most_units) {
    return Refuse(Reason::kOverCap,
                  "permit pool {pool}: asked {asked} units on device {device}, whose cap is {cap}: request at most "
                  "{cap}, or have the pool's device_cap raised",
                  {{"pool", pool}, {"asked", ask.units}, {"device", name}, {"cap", most_units}});
  }
  if (const Bytes need = NeedOf(*largest, constraint); need > CapacityOf(*largest)) {
    return Refuse(Reason::kOverCap,
                  "permit pool {pool}: asked {asked} bytes of a device, the most is {cap}: declare fewer bytes",
                  {{"pool", pool}, {"asked", need.count()}, {"cap", CapacityOf(*largest).count()}});
  }
  const Load alone;
  const bool serves = absl::c_any_of(devices_, [&](const auto& each) {
    return JudgeUnaided(each.first, each.second, ask, alone) == Verdict::kFits;
  });
  return serves ? absl::OkStatus() : RefuseAway(pool, {ask});
}

absl::Status Placement::CheckAll(absl::string_view pool, const std::vector<Ask>& asks,
                                 const BytesByDevice& besides) const {
  const auto unaided = [this](uint32_t ordinal, const Device& device, const Ask& ask, const Load& load) {
    return JudgeUnaided(ordinal, device, ask, load);
  };
  if (Assign(asks, besides, unaided).verdict == Verdict::kFits) return absl::OkStatus();
  const auto empty = [this](uint32_t ordinal, const Device& device, const Ask& ask, const Load& load) {
    return JudgeEmpty(ordinal, device, ask, load);
  };
  if (Assign(asks, besides, empty).verdict == Verdict::kFits) return RefuseAway(pool, asks);
  const auto there = [](const auto& entry) { return !entry.second.state.dropped; };
  const auto asked = [&](const auto& entry) {
    return there(entry) && absl::c_any_of(asks, [&](const Ask& ask) { return Asks(entry.second, ask.constraint); });
  };
  const uint64_t of_node = absl::c_count_if(devices_, there);
  if (const uint64_t left = absl::c_count_if(devices_, asked); left < of_node && left < asks.size()) {
    return Refuse(
        Reason::kOverCap,
        "permit pool {pool}: asked {asked} devices together, but the named devices and CUDA_VISIBLE_DEVICES leave "
        "{cap} of the node's {there}: request fewer, or allow more",
        {{"pool", pool}, {"asked", asks.size()}, {"cap", left}, {"there", of_node}});
  }
  return Refuse(
      Reason::kOverCap,
      "permit pool {pool}: asked {asked} devices together, but too few of the node's {cap} could hold the bytes and "
      "units even when empty: request fewer devices, or less of each",
      {{"pool", pool}, {"asked", asks.size()}, {"cap", of_node}});
}

Placement::Verdict Placement::JudgeUnaided(uint32_t ordinal, const Device& device, const Ask& ask,
                                           const Load& load) const {
  if (AwayFor(device, ask.constraint) != Away::kNot) return Verdict::kSkipped;
  return JudgeEmpty(ordinal, device, ask, load);
}

absl::Status Placement::RefuseAway(absl::string_view pool, const std::vector<Ask>& asks) const {
  const Load alone;
  std::string named, why;
  size_t missing = 0;
  bool all_drained = true;
  for (const auto& [ordinal, device] : devices_) {
    const auto misses = [&, ordinal = ordinal, &device = device](const Ask& ask) {
      return AwayFor(device, ask.constraint) != Away::kNot &&
             JudgeEmpty(ordinal, device, ask, alone) == Verdict::kFits;
    };
    const auto ask = absl::c_find_if(asks, misses);
    if (ask == asks.end()) continue;
    const bool drained = AwayFor(device, ask->constraint) == Away::kDrained;
    all_drained = all_drained && drained;
    if (++missing > kNamedDevices) continue;
    absl::StrAppend(&named, named.empty() ? "" : ", ", ordinal);
    absl::StrAppend(&why, why.empty() ? "" : "; ", "device ", ordinal, " is ",
                    drained ? absl::StrCat("being drained: ", device.state.draining)
                            : absl::StrCat("out of service: ", device.state.stopped));
  }
  if (missing > kNamedDevices) absl::StrAppend(&why, "; and ", missing - kNamedDevices, " more");
  return Refuse(all_drained ? Reason::kDeviceDraining : Reason::kDeviceStopped,
                "permit pool {pool}: the request needs more than the devices that serve: {why}; request fewer devices "
                "or less of each, wait with wait_for_device, or have a device returned by `berth device enable` or "
                "`berth device undrain`",
                {{"pool", pool}, {"device", named}, {"why", why}});
}

bool Placement::AllServe(const std::vector<Ask>& asks, const BytesByDevice& besides) const {
  return Assign(asks, besides, [this](uint32_t ordinal, const Device& device, const Ask& ask, const Load& load) {
           return device.state.in_service ? JudgeEmpty(ordinal, device, ask, load) : Verdict::kSkipped;
         }).verdict == Verdict::kFits;
}

}  // namespace berth::core
