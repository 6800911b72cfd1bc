// Permits and their pools: what is asked, what is told and what is answered. Plain values.

#ifndef DAEMON_CORE_PERMIT_TYPES_H_
#define DAEMON_CORE_PERMIT_TYPES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "daemon/core/caller.h"
#include "daemon/core/device_types.h"
#include "daemon/core/placement_types.h"

namespace berth::core {

struct AcquireRequest {
  std::string pool;
  uint64_t units = 1;
  std::string holder_key;
  std::string label;
  // False: refuse with NO_PERMIT rather than wait.
  bool wait = true;
  // When waiting ends; InfiniteFuture for never.
  absl::Time deadline = absl::InfiniteFuture();
  // Grant only while fewer than this many units are out; 0 is no limit beyond the cap.
  uint64_t client_cap = 0;
  bool adoptable = false;
  bool independent = false;
  // Higher goes first; kLeastPriority to kMostPriority.
  int32_t priority = 0;
  // While nobody else has a permit of the pool, and nobody else gets one.
  bool exclusive = false;
  DeviceWish device;
  // The process may keep it between its uses; has no effect beside most of the above.
  bool keep = false;
};

template <typename Archive>
void Fields(Archive& archive, AcquireRequest& value) {
  archive(value.pool, value.units, value.holder_key, value.label, value.wait, value.deadline,
          value.client_cap, value.adoptable, value.independent, value.priority, value.exclusive, value.device,
          value.keep);
}

// The process wants its page, for the word of a permit that it keeps.
struct KeepPermitsRequest {};

// Gives an acquisition back if its process keeps it and does not use it.
struct ReleaseIfIdleRequest {
  AcquisitionId acquisition;
};

inline constexpr int32_t kLeastPriority = -10;
inline constexpr int32_t kMostPriority = 10;

// A pool of permits, as it is configured.
struct PoolConfig {
  std::string name;
  // Units that may be out at once, at least 1.
  uint64_t cap = 2;
  // Who has waited so long is served as one of the highest priority that waits.
  absl::Duration ageing = absl::Minutes(10);
  // Units that one tenant may have out at once; 0 is no limit but the cap.
  uint64_t tenant_cap = 0;
  // What a tenant gets of the pool beside others that wait, by uid; 1 where there is none. From 1 to kMostWeight.
  std::map<uint32_t, uint32_t> weights = {};
  // A permit held for so long is shown as overdue, or revoked.
  absl::Duration hold_warning = absl::InfiniteDuration();
  absl::Duration hold_limit = absl::InfiniteDuration();
  // Units that may be out at once on each device, and on those of these UUIDs; 0 is no limit, and none at all. With
  // either, each permit of the pool names a device.
  uint64_t device_cap = 0;
  std::map<std::string, uint64_t> device_caps = {};
  // A permit is shown as idle when its device has been at nothing for so long.
  absl::Duration idle_warning = absl::Minutes(10);
};

template <typename Archive>
void Fields(Archive& archive, PoolConfig& value) {
  archive(value.name, value.cap, value.ageing, value.tenant_cap, value.weights, value.hold_warning,
          value.hold_limit, value.device_cap, value.device_caps, value.idle_warning);
}

inline constexpr uint32_t kMostWeight = 1'000;
// Of a pool's hold warning and limit.
inline constexpr absl::Duration kLeastHold = absl::Seconds(1);

// What an operator changes of a pool; what is not set stays.
struct PoolChange {
  std::optional<uint64_t> cap;
  std::optional<uint64_t> tenant_cap;
  std::optional<absl::Duration> ageing;
  std::optional<absl::Duration> hold_warning;
  std::optional<absl::Duration> hold_limit;
  // By uid; 1 takes a weight away.
  std::map<uint32_t, uint32_t> weights = {};
  std::optional<uint64_t> device_cap;
  // By UUID; nothing takes a device's own cap away.
  std::map<std::string, std::optional<uint64_t>> device_caps = {};
  std::optional<absl::Duration> idle_warning;
  // Not by hand: the daemon's configuration says so.
  bool configured = false;
};

struct PoolView {
  // As it is now.
  PoolConfig config;
  uint64_t out = 0;
  uint64_t holders = 0;
  uint64_t waiters = 0;
  uint64_t peak = 0;
  uint64_t granted_total = 0;
  uint64_t refused_total = 0;
  uint64_t revoked_total = 0;
  // Permits held past the warning.
  uint64_t overdue = 0;
  // Permits that their processes keep and do not use, at this moment.
  uint64_t kept = 0;
  // The one permit that is out keeps the others out.
  bool exclusive = false;
  // For how long permits were held, the latest counting most; zero while none has come back.
  absl::Duration mean_hold;
};

// The device that a permit names.
struct PlacedDevice {
  uint32_t ordinal = 0;
  std::string uuid;
  MemoryKind kind = MemoryKind::kHost;
  // Of its memory, at the grant.
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
  // Its process keeps it and does not use it.
  bool kept = false;
  std::optional<PlacedDevice> device;
  Bytes declared;
  // Of the gang that it was granted in; 0 for none.
  uint64_t gang = 0;
  // For how long its device, or for one that names none every device, has been at nothing while it was held; zero for
  // less than the pool's warning, and where nobody reads that.
  absl::Duration idle;
  // Percent of the time since the grant in which its device, or for one that names none the busiest, was at something,
  // as far as that was read; nothing where it was not.
  std::optional<uint32_t> utilisation;
  absl::Time granted_at;
  absl::Duration waited;
  ProcessInfo process;
};

struct WaiterView {
  // Node-wide, never reused.
  uint64_t number = 0;
  std::string pool;
  uint64_t units = 0;
  uint64_t position = 0;
  SessionId session;
  std::string holder_key;
  std::string label;
  int32_t priority = 0;
  bool exclusive = false;
  // All that its gang asks; empty for one that asks for one permit.
  std::string gang;
  DeviceWish device;
  absl::Time since;
  ProcessInfo process;
};

// What a waiter waits for, first of all.
enum class WaitCause {
  // Too few units are free.
  kUnits = 1,
  // What is free is kept for one that has been passed too often.
  kKeptForAnother = 2,
  // One permit is out that shuts all others out.
  kExclusiveOut = 3,
  // It wants the pool for itself, and others have permits.
  kOthersOut = 4,
  // Its tenant has all that a tenant may have.
  kTenantCap = 5,
  // More are out than its own environment allows.
  kClientCap = 6,
  // No device that it would take has the bytes free, or serves.
  kDevice = 7,
  // The pool has what it asks here; another pool has not what its gang asks there.
  kElsewhere = 8,
  // The bytes that its gang would reserve are not free.
  kRoom = 9,
  // The device's figures are old: nobody is let in to bytes by them.
  kOldReading = 10,
  // Its tenant has all that it may have over all pools.
  kTenantQuota = 11,
};

// Why somebody waits.
struct WaitView {
  WaiterView waiter;
  PoolView pool;
  WaitCause cause = WaitCause::kUnits;
  // What each device lacks, for people, where one is what it waits for.
  std::string lacking;
  // Who has permits, oldest first, at most 8; of another tenant's only units and times.
  std::vector<PermitView> holders;
  // Units that its own tenant has out.
  uint64_t tenant_out = 0;
  // Units asked by those before it.
  uint64_t units_ahead = 0;
  // How often somebody was granted past it while it was the first.
  uint64_t passes = 0;
  // Until it is granted if permits are held as long as they were; infinite where none has come back yet.
  absl::Duration estimate = absl::InfiniteDuration();
};

struct AcquireResult {
  AcquisitionId acquisition;
  PermitId permit;
  bool nested = false;
  // The process may keep it between its uses.
  bool kept = false;
  // Of the permit.
  std::optional<PlacedDevice> device;
  uint64_t epoch = 0;
};

template <typename Archive>
void Fields(Archive& archive, AcquireResult& value) {
  archive(value.acquisition, value.permit, value.nested, value.kept, value.device, value.epoch);
}

struct ReleaseResult {
  bool returned = false;
};

template <typename Archive>
void Fields(Archive& archive, ReleaseResult& value) {
  archive(value.returned);
}

struct KeepPermitsResult {};

template <typename Archive>
void Fields(Archive&, KeepPermitsResult&) {}

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMIT_TYPES_H_
