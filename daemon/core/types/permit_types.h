// Permits and their pools: requests, results and views. Plain values.

#ifndef DAEMON_CORE_TYPES_PERMIT_TYPES_H_
#define DAEMON_CORE_TYPES_PERMIT_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/time/time.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/device_types.h"
#include "daemon/core/types/placement_types.h"
#include "daemon/core/types/request_traits.h"

namespace berth::core {

struct AcquireRequest {
  std::string pool;
  uint64_t units = 1;
  std::string holder_key;
  std::string label;
  // False: refuse with NO_PERMIT instead of waiting.
  bool wait = true;
  // End of the wait; InfiniteFuture waits forever.
  absl::Time deadline = absl::InfiniteFuture();
  // Grant only while fewer than this many units are out; 0 means no limit beyond the cap.
  uint64_t client_cap = 0;
  bool adoptable = false;
  bool independent = false;
  // Higher priorities are served first; kLeastPriority to kMostPriority.
  int32_t priority = 0;
  // Grant only while no other permit of the pool is out, and grant no other meanwhile.
  bool exclusive = false;
  DeviceConstraint device;
  // The process may cache the permit between its uses; ignored together with most of the options above.
  bool keep = false;
};

template <typename Archive>
void Fields(Archive& archive, AcquireRequest& value) {
  archive(value.pool, value.units, value.holder_key, value.label, value.wait, value.deadline,
          value.client_cap, value.adoptable, value.independent, value.priority, value.exclusive, value.device,
          value.keep);
}
void Payload(auto& add, const AcquireRequest& request) {
  add(request.pool, request.units, request.holder_key, request.label, request.wait, request.client_cap,
      request.adoptable, request.independent, request.priority, request.exclusive, request.keep, request.device);
}

// Requests the process's fence page, which holds the slot of its cached permit.
struct KeepPermitsRequest {};
void Payload(auto&, const KeepPermitsRequest&) {}

// Releases an acquisition if its process caches it and does not use it.
struct ReleaseIfIdleRequest {
  AcquisitionId acquisition;
};
void Payload(auto& add, const ReleaseIfIdleRequest& request) { add(request.acquisition); }

inline constexpr int32_t kLeastPriority = -10;
inline constexpr int32_t kMostPriority = 10;

// The configuration of a pool of permits.
struct PoolConfig {
  std::string name;
  // Units that may be out at once, at least 1.
  uint64_t cap = 2;
  // A waiter that has waited this long counts as one of the highest waiting priority.
  absl::Duration ageing = absl::Minutes(10);
  // Units that one tenant may have out at once; 0 means no limit beyond the cap.
  uint64_t tenant_cap = 0;
  // Share of the pool that a tenant gets among waiting tenants, by uid; 1 if there is no entry. From 1 to kMostWeight.
  std::map<uint32_t, uint32_t> weights = {};
  // A permit held for longer than these durations is reported as overdue, or revoked.
  absl::Duration hold_warning = absl::InfiniteDuration();
  absl::Duration hold_limit = absl::InfiniteDuration();
  // Units that may be out at once on each device, and on the devices with these UUIDs. `device_cap` 0 means no limit; 0
  // in `device_caps` excludes the device. With either, each permit of the pool names a device.
  uint64_t device_cap = 0;
  std::map<std::string, uint64_t> device_caps = {};
  // Units of permits without a device that may be out at once; 0 means no limit beyond the cap. The processes of such
  // permits may all use one device.
  uint64_t no_device_cap = 0;
  // A permit is reported as idle once its device has been idle for this long.
  absl::Duration idle_warning = absl::Minutes(10);
  // Whether the number of devices gives `cap` and `no_device_cap`, because no setting does. Not persisted.
  bool cap_by_devices = false;
};

template <typename Archive>
void Fields(Archive& archive, PoolConfig& value) {
  archive(value.name, value.cap, value.ageing, value.tenant_cap, value.weights, value.hold_warning,
          value.hold_limit, value.device_cap, value.device_caps, value.idle_warning);
  archive.Since(3, value.no_device_cap);
}

inline constexpr uint32_t kMostWeight = 1'000;
// Minimum of a pool's hold warning and hold limit.
inline constexpr absl::Duration kLeastHold = absl::Seconds(1);

// An operator's change of a pool; unset fields stay unchanged.
struct PoolChange {
  std::optional<uint64_t> cap;
  std::optional<uint64_t> tenant_cap;
  std::optional<absl::Duration> ageing;
  std::optional<absl::Duration> hold_warning;
  std::optional<absl::Duration> hold_limit;
  // By uid; 1 removes a weight.
  std::map<uint32_t, uint32_t> weights = {};
  std::optional<uint64_t> device_cap;
  // By device name (common/device_name.h); an empty value removes a device's own cap.
  std::map<std::string, std::optional<uint64_t>> device_caps = {};
  std::optional<absl::Duration> idle_warning;
  std::optional<uint64_t> no_device_cap;
  // The change comes from the daemon's configuration, not from an operator.
  bool configured = false;
  // An operator made the change in an earlier daemon. Like a configured change, it may name devices that are absent.
  bool stored = false;
  // Apply the other fields to the configured pool instead of the pool as changed by operators.
  bool defaults = false;
};

struct PoolView {
  // The pool's current configuration.
  PoolConfig config;
  uint64_t out = 0;
  // Units of permits without a device.
  uint64_t out_without_device = 0;
  uint64_t holders = 0;
  uint64_t waiters = 0;
  // Number of waiters among them that are skipped (WaiterView::stopped).
  uint64_t stopped = 0;
  uint64_t peak = 0;
  uint64_t granted_total = 0;
  uint64_t refused_total = 0;
  uint64_t revoked_total = 0;
  // Number of permits held past the warning.
  uint64_t overdue = 0;
  // Number of permits that their processes cache and do not use at this moment.
  uint64_t cached = 0;
  // An exclusive permit is out.
  bool exclusive = false;
  // Mean time for which permits were held, weighted towards the latest; zero before the first release.
  absl::Duration mean_hold;
};

// Use of a pool at one moment: by all tenants, and the part that a caller may see.
struct PoolUse {
  struct Counts {
    uint64_t units = 0;
    uint64_t holders = 0;
    uint64_t waiters = 0;
    friend bool operator==(const Counts&, const Counts&) = default;
  };
  std::string pool;
  uint64_t cap = 0;
  Counts all;
  Counts visible;
};

// Counts of everything that ListPermits() and ListWaiters() would list without a limit.
struct PermitCounts {
  // By name.
  std::vector<PoolUse> pools;
  // Number of visible requests that wait. A gang waits in several pools and counts once.
  uint64_t waiting_requests = 0;
};

// The device that a permit names.
struct PlacedDevice {
  uint32_t ordinal = 0;
  std::string uuid;
  MemoryKind kind = MemoryKind::kHost;
  // Generation of the device's memory at the grant.
  uint64_t generation = 0;
};

template <typename Archive>
void Fields(Archive& archive, PlacedDevice& value) {
  archive(value.ordinal, value.uuid, value.kind, value.generation);
}

struct PermitView {
  PermitId id;
  std::string pool;
  uint64_t units = 0;
  uint64_t depth = 0;
  SessionId session;
  std::string holder_key;
  std::string label;
  bool adoptable = false;
  bool exclusive = false;
  int32_t priority = 0;
  // Held past the pool's warning.
  bool overdue = false;
  // Cached by its process and not in use.
  bool cached = false;
  std::optional<PlacedDevice> device;
  Bytes declared;
  // Number of the gang with which the permit was granted; 0 if none.
  uint64_t gang = 0;
  // Time for which the permit's device has been idle while the permit was held; for a permit without a device, every
  // device. Zero if below the pool's warning or if no monitor reads the devices.
  absl::Duration idle;
  // Percent of the time since the grant in which the permit's device was busy, as far as read. For a permit without a
  // device, the busiest device counts. Empty if not read.
  std::optional<uint32_t> utilisation;
  absl::Time granted_at;
  absl::Duration waited;
  ProcessInfo process;
};

struct WaiterView {
  // Unique on the node, never reused.
  uint64_t number = 0;
  std::string pool;
  uint64_t units = 0;
  uint64_t position = 0;
  SessionId session;
  std::string holder_key;
  std::string label;
  int32_t priority = 0;
  bool exclusive = false;
  // Text form of the gang's whole request; empty for a request for one permit.
  std::string gang;
  DeviceConstraint device;
  absl::Time since;
  ProcessInfo process;
  // The waiter is skipped, because its process is stopped or has not reconnected to this broker: it is granted nothing.
  bool stopped = false;
};

// The first reason for which a waiter waits.
enum class WaitCause {
  // Too few units are free.
  kUnits = 1,
  // The free units are reserved for a waiter that has been passed too often.
  kReservedForAnother = 2,
  // An exclusive permit is out.
  kExclusiveOut = 3,
  // The request is exclusive, and other permits are out.
  kOthersOut = 4,
  // The tenant has reached the pool's per-tenant cap.
  kTenantCap = 5,
  // More units are out than the request's client cap allows.
  kClientCap = 6,
  // No suitable device has the bytes free, or none serves.
  kDevice = 7,
  // This pool has the units; another pool lacks units for the gang.
  kElsewhere = 8,
  // The bytes that the gang would reserve are not free.
  kCapacity = 9,
  // The device readings are stale, so the core grants no bytes by them.
  kOldReading = 10,
  // The tenant has reached its quota over all pools.
  kTenantQuota = 11,
  // An operator is stopping the daemon, which grants nothing meanwhile.
  kStopping = 12,
  // The request names no device, and too many permits without a device are out.
  kNoDevice = 13,
  // The waiter's process is stopped, or has not returned since the broker's restart.
  kStopped = 14,
};

// Explains one waiter's wait.
struct WaitView {
  WaiterView waiter;
  PoolView pool;
  WaitCause cause = WaitCause::kUnits;
  // For people: the capacity that each device lacks; set if the waiter waits for a device.
  std::string lacking;
  // Current holders, oldest first, at most 8; for another tenant's permits only units and times are set.
  std::vector<PermitView> holders;
  // Units that the waiter's own tenant has out.
  uint64_t tenant_out = 0;
  // Units requested by earlier waiters.
  uint64_t units_ahead = 0;
  // Number of later waiters granted while this waiter was the first.
  uint64_t passes = 0;
  // Expected time until the grant, based on past hold times. Infinite before the first release, or if the waiter does
  // not wait for permits: no suitable device serves, or an operator is stopping the daemon.
  absl::Duration estimate = absl::InfiniteDuration();
  // From this time on every permit is held for longer than the last ones were, and the estimate says nothing.
  absl::Time estimate_until = absl::InfiniteFuture();
};

struct AcquireResult {
  static constexpr size_t kResponseIndex = 0;

  AcquisitionId acquisition;
  PermitId permit;
  bool nested = false;
  // The process may cache the permit between its uses.
  bool cached = false;
  // The permit's device.
  std::optional<PlacedDevice> device;
  uint64_t epoch = 0;
  // For a nested acquisition that requested a device: number of others like it in the permit. Not persisted.
  uint64_t device_sharers = 0;
};

template <typename Archive>
void Fields(Archive& archive, AcquireResult& value) {
  archive(value.acquisition, value.permit, value.nested, value.cached, value.device, value.epoch);
}
bool Undo(const UndoStep& undo, const AcquireResult& result);

struct ReleaseResult {
  static constexpr size_t kResponseIndex = 1;

  bool returned = false;
};

template <typename Archive>
void Fields(Archive& archive, ReleaseResult& value) {
  archive(value.returned);
}
inline bool Undo(const UndoStep&, const ReleaseResult&) { return false; }

struct KeepPermitsResult {
  static constexpr size_t kResponseIndex = 18;
};

template <typename Archive>
void Fields(Archive&, KeepPermitsResult&) {}
inline bool Undo(const UndoStep&, const KeepPermitsResult&) { return false; }

// ---- Kinds of requests (request_traits.h) ----------------------------------------------------------------

template <>
struct RequestTraits<AcquireRequest> {
  using Result = AcquireResult;
  static constexpr uint64_t kKind = 1;
};
// Releases the acquisition.
template <>
struct RequestTraits<AcquisitionId> {
  using Result = ReleaseResult;
  static constexpr uint64_t kKind = 2;
};
template <>
struct RequestTraits<KeepPermitsRequest> {
  using Result = KeepPermitsResult;
  static constexpr uint64_t kKind = 17;
};
template <>
struct RequestTraits<ReleaseIfIdleRequest> {
  using Result = ReleaseResult;
  static constexpr uint64_t kKind = 18;
};

using PermitResults = ResultList<AcquireResult, ReleaseResult, KeepPermitsResult>;

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_PERMIT_TYPES_H_
