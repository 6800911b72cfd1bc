// Stalls of constraints that no device satisfies now.

#include <algorithm>

#include "daemon/core/devices/placement.h"

namespace berth::core {
namespace {

// Levels as in LevelOf(): kNoBytes for a device with a stale reading. Byte counts are shifted by kLevels, above the two
// levels of a device without bytes to grant.
constexpr uint64_t kNoBytes = 1;
constexpr uint64_t kLevels = 2;

uint64_t LevelFor(Bytes bytes) {
  return bytes == Bytes() ? kNoBytes : bytes.count() + std::min(kLevels, UINT64_MAX - bytes.count());
}

uint64_t BitOf(uint32_t ordinal) { return uint64_t{1} << ordinal; }

}  // namespace

uint64_t Placement::LevelOf(const Device& device, Verdict goal) {
  if (!device.state.in_service) return 0;
  if (!device.fresh) return kNoBytes;
  const Bytes free = goal == Verdict::kFits ? FreeOf(device) : FreeWithoutPermits(device);
  return free.count() + std::min(kLevels, UINT64_MAX - free.count());
}

Stalls Placement::WhyNot(const Ask& ask, Verdict goal) const {
  const Gauge::Kind kind = goal == Verdict::kFits ? Gauge::Kind::kDeviceNow : Gauge::Kind::kDeviceEver;
  Stalls each;
  // One stall for all suitable devices, if all lack the same.
  Stall together = {.gauge = {.kind = kind}};
  bool alike = true;
  const Load alone;
  for (const auto& [ordinal, device] : devices_) {
    if (!Suits(device, ask.constraint)) continue;
    if (Judge(ordinal, device, ask, alone) <= goal) return {};
    const uint64_t threshold = LevelFor(NeedOf(device, ask.constraint));
    if (LevelOf(device, goal) < threshold) {
      alike = alike && (together.threshold == 0 || together.threshold == threshold);
      together.threshold = threshold;
      together.gauge.which |= BitOf(ordinal);
      each.push_back({.gauge = {.kind = kind, .which = BitOf(ordinal)}, .threshold = threshold});
      continue;
    }
    if (ask.shares == nullptr) return {};
    alike = false;
    // Units above the device's cap never become available.
    if (goal != Verdict::kFits || ask.units > ask.shares->CapOf(device.facts.uuid)) continue;
    each.push_back({.gauge = {.kind = Gauge::Kind::kDeviceShare, .of = ask.shares, .which = ordinal},
                    .threshold = ask.units});
  }
  if (each.empty()) return StalledForGood();
  // Lists of devices may differ from waiter to waiter. Filed by device, they add no gauges.
  return alike && ask.constraint.among.empty() ? Stalls{together} : each;
}

Stalls Placement::WhyNotAll(const std::vector<Ask>& asks, Verdict goal) const {
  const Gauge::Kind kind = goal == Verdict::kFits ? Gauge::Kind::kDeviceNow : Gauge::Kind::kDeviceEver;
  Stalls stalls;
  const auto rises = [&](const Gauge& gauge) {
    if (const uint64_t value = Read(gauge); value < UINT64_MAX) stalls.push_back({gauge, value + 1});
  };
  for (const auto& [ordinal, device] : devices_) {
    std::set<const DeviceShares*> shares;
    bool suits = false;
    for (const Ask& ask : asks) {
      if (!Suits(device, ask.constraint)) continue;
      suits = true;
      if (goal == Verdict::kFits && ask.shares != nullptr && ask.shares->per_device()) shares.insert(ask.shares);
    }
    if (suits) rises({.kind = kind, .which = BitOf(ordinal)});
    for (const DeviceShares* const of : shares) {
      rises({.kind = Gauge::Kind::kDeviceShare, .of = of, .which = ordinal});
    }
  }
  return stalls.empty() ? StalledForGood() : stalls;
}

uint64_t Placement::Read(const Gauge& gauge) const {
  if (gauge.kind == Gauge::Kind::kDeviceShare) {
    const auto* const shares = static_cast<const DeviceShares*>(gauge.of);
    const uint32_t ordinal = static_cast<uint32_t>(gauge.which);
    const uint64_t cap = shares->CapOf(At(ordinal).facts.uuid);
    return cap - std::min(cap, shares->OutOn(ordinal));
  }
  const Verdict goal = gauge.kind == Gauge::Kind::kDeviceNow ? Verdict::kFits : Verdict::kWaits;
  uint64_t best = 0;
  for (uint64_t left = gauge.which; left != 0; left &= left - 1) {
    best = std::max(best, LevelOf(At(static_cast<uint32_t>(__builtin_ctzll(left))), goal));
  }
  return best;
}

}  // namespace berth::core
