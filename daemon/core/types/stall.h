// Stall: what blocks a waiter, as a gauge and a threshold. While all gauges of its stalls are below their thresholds,
// the waiter's verdict cannot improve, so it need not be judged. Plain values.

#ifndef DAEMON_CORE_TYPES_STALL_H_
#define DAEMON_CORE_TYPES_STALL_H_

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"

namespace berth::core {

// A value that decides, identified by kind and object. It is read on demand: changes need no notification.
struct Gauge {
  // Values count up from 0: kKinds of them.
  enum class Kind : uint8_t {
    // Always 0.
    kNever,
    // `of` a pool: rises as fewer of its units are out.
    kUnits,
    // `of` a pool: its units that are out; the maximum value while an exclusive permit is out.
    kOut,
    // `of` a pool: units that the tenant may still have in it.
    kTenantUnits,
    // `of` a pool: units still available to permits without a device.
    kUnitsWithoutDevice,
    // Units that the tenant may still have over all pools.
    kQuota,
    // The best value among the devices in the bit mask `which`, now and after the release of all permits. A device has
    // value 0 while it does not serve, 1 while its free bytes are unknown, else its free bytes plus 2.
    kDeviceNow,
    kDeviceEver,
    // `of` a pool's DeviceShares: units that still fit on the device with ordinal `which`.
    kDeviceShare,
    // `of` a pool: 1 while it is held for no waiter.
    kHeld,
    // `of` a budget: its free bytes (kBytes); 1 while they are reserved for no request (kReserved).
    kBytes,
    kReserved,
  };
  static constexpr size_t kKinds = static_cast<size_t>(Kind::kReserved) + 1;

  Kind kind = Kind::kNever;
  const void* of = nullptr;
  uint64_t which = 0;
  friend auto operator<=>(const Gauge&, const Gauge&) = default;

  // Returns whether each tenant has its own value.
  bool per_tenant() const { return kind == Kind::kTenantUnits || kind == Kind::kQuota; }
};

struct Threshold {
  Gauge gauge;
  uint64_t threshold = 0;
};
struct Stall {
  Gauge gauge;
  uint64_t threshold = 0;
  // Further gauges of other objects. The stall ends when all gauges have reached their thresholds at once. With
  // further gauges, none is per_tenant(), and each is a kBytes or kReserved.
  std::vector<Threshold> also = {};

  // Returns whether a gauge is below its threshold.
  bool Blocks(absl::FunctionRef<uint64_t(const Gauge&)> read) const {
    return read(gauge) < threshold ||
           std::any_of(also.begin(), also.end(), [&](const Threshold& one) { return read(one.gauge) < one.threshold; });
  }
};
// Empty: nothing is known, and the waiter is judged each time.
using Stalls = absl::InlinedVector<Stall, 1>;

// Returns the stall that ends when all gauges have reached their thresholds at once. Requires: `needs` is not empty.
inline Stall StallOfAll(std::vector<Threshold> needs) {
  const Threshold first = needs.front();
  needs.erase(needs.begin());
  return {.gauge = first.gauge, .threshold = first.threshold, .also = std::move(needs)};
}

// Returns the stall of a waiter whose verdict never changes.
inline Stalls StalledForGood() { return {{.gauge = {}, .threshold = 1}}; }

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_STALL_H_
