// Plans: how a session splits work over devices, held as a lease. Requests, results and views. Plain values.

#ifndef DAEMON_CORE_TYPES_PLAN_TYPES_H_
#define DAEMON_CORE_TYPES_PLAN_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/time/time.h"
#include "daemon/base/partition.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/device_types.h"
#include "daemon/core/types/placement_types.h"
#include "daemon/core/types/request_traits.h"

namespace berth::core {

// Source of the weights. Values match the wire.
enum class WeightSource {
  // Current score of each device (common/device_score.h).
  kScore = 1,
  // kGiven: the client sets the weights. kBandwidth: the client has measured the devices' bandwidth.
  kGiven = 2,
  kBandwidth = 3,
};
constexpr auto ArchivedValues(WeightSource) { return std::pair(WeightSource::kScore, WeightSource::kBandwidth); }

// Why a plan is stale. Values match the wire.
enum class PlanStale : uint64_t {
  kCurrent = 0,
  // A device of the plan is gone from the node, out of service, or draining.
  kDeviceDropped = 1,
  kDeviceStopped = 2,
  kDeviceDraining = 3,
  // A device's memory was lost, including the plan's data there.
  kMemoryLost = 4,
  // A permit of the plan was revoked.
  kPermitRevoked = 5,
};
constexpr auto ArchivedValues(PlanStale) { return std::pair(PlanStale::kCurrent, PlanStale::kPermitRevoked); }

struct PlanRequest {
  uint64_t units = 0;
  std::string label;
  // UUIDs, in the order of their tiles. Empty: all devices, best score first.
  std::vector<std::string> devices;
  // As in DeviceConstraint: only these devices are considered.
  std::vector<std::string> among = {};
  std::optional<std::string> visible = std::nullopt;
  WeightSource source = WeightSource::kScore;
  // One weight for each of `devices`; unused for kScore.
  std::vector<double> weights;
  // Bytes of the device's budget that one unit takes; 0 for none.
  Bytes bytes_per_unit;
  // As in PartitionConstraints.
  uint64_t min_units = 0;
  uint64_t max_devices = 0;
  bool one_island = false;
  // Pool of a permit to acquire on each device that has units; empty for no permits.
  std::string pool;
  uint64_t permit_units = 1;
  // Reserves the bytes of each device's units.
  bool reserve = false;
  // Options of the permits, as in AcquireRequest.
  bool wait = true;
  absl::Time deadline = absl::InfiniteFuture();
  uint64_t client_cap = 0;
  bool independent = false;
  int32_t priority = 0;
};

template <typename Archive>
void Fields(Archive& archive, PlanRequest& value) {
  archive(value.units, value.label, value.devices, value.source, value.weights, value.bytes_per_unit,
          value.min_units, value.max_devices, value.one_island, value.pool, value.permit_units, value.reserve,
          value.wait, value.deadline, value.client_cap, value.independent, value.priority);
  archive.Since(3, value.among);
}
void Payload(auto& add, const PlanRequest& request) {
  add(request.units, request.label, request.devices.size(), request.devices, request.source, request.weights.size(),
      request.weights);
  AddBounds(add, request.among, request.visible);
  add(request.bytes_per_unit, request.min_units, request.max_devices, request.one_island, request.pool,
      request.permit_units, request.reserve, request.wait, request.client_cap, request.independent, request.priority);
}

// Splits a plan's units again over the available devices, moving as few units as possible.
struct ReplanRequest {
  PlanId plan;
  // Weigh the remaining devices again, too; more units move.
  bool reweigh = false;
};
void Payload(auto& add, const ReplanRequest& request) { add(request.plan, request.reweigh); }

// A device that the plan considered.
struct PlanDevice {
  // Why the device has no units. Values match the wire.
  enum class Left {
    // The device has units.
    kNone = 0,
    kOutOfService = 1,
    // The device's weight amounts to less than one unit.
    kTooLight = 2,
    // A constraint excluded the device.
    kConstraint = 3,
  };
  friend constexpr auto ArchivedValues(Left) { return std::pair(Left::kNone, Left::kConstraint); }

  // Initialises member by member: zeroing the whole object first would take as long as all other work per device.
  PlanDevice() {}  // NOLINT(modernize-use-equals-default)

  uint32_t ordinal = 0;
  // Shared with the device, so that plans of many devices copy no strings.
  std::shared_ptr<const std::string> uuid;
  MemoryKind kind = MemoryKind::kHost;
  // Generation of the device's memory.
  uint64_t generation = 0;
  // Inputs of the score.
  uint32_t sm_count = 0;
  uint32_t cc_major = 0;
  Bytes free;
  double weight = 0;
  // Units that fit into its budget; UINT64_MAX for no limit.
  uint64_t capacity = UINT64_MAX;
  // Units by weight alone, and units assigned.
  double ideal = 0;
  uint64_t units = 0;
  Left left = Left::kNone;
  // Set if permits were requested.
  PermitId permit;
  AcquisitionId acquisition;
  std::string holder_key;
};

template <typename Archive>
void Fields(Archive& archive, PlanDevice& value) {
  archive(value.ordinal);
  if constexpr (Archive::kReads) {
    std::string uuid;
    archive(uuid);
    value.uuid = std::make_shared<const std::string>(std::move(uuid));
  } else {
    archive(*value.uuid);
  }
  archive(value.kind, value.generation, value.sm_count, value.cc_major, value.free,
          value.weight, value.capacity, value.ideal, value.units, value.left, value.permit, value.acquisition,
          value.holder_key);
}

// One revision of a plan. Immutable, so that the table, answers and lists share it.
struct PlanLayout {
  PlanId id;
  // 1, incremented by every re-plan.
  uint64_t revision = 1;
  SessionId session;
  Tenant tenant;
  PlanRequest asked;
  uint32_t score_version = 0;
  // Initially in the order of the tiles.
  std::vector<PlanDevice> devices;
  // Tiles refer to devices by their index in `devices`.
  std::vector<Tile> tiles;
  // Id 0 if no reservation was requested.
  ReservationId reservation;
  absl::Time since;
  absl::Time made;
};

template <typename Archive>
void Fields(Archive& archive, PlanLayout& value) {
  archive(value.id, value.revision, value.session, value.tenant, value.asked, value.score_version,
          value.devices, value.tiles, value.reservation, value.since, value.made);
}

// A restored layout is not shared yet.
template <typename Archive>
void Fields(Archive& archive, std::shared_ptr<const PlanLayout>& value) {
  if constexpr (Archive::kReads) {
    auto layout = std::make_shared<PlanLayout>();
    archive(*layout);
    value = std::move(layout);
  } else {
    archive(*value);
  }
}

struct PlanView {
  std::shared_ptr<const PlanLayout> layout;
  PlanStale stale = PlanStale::kCurrent;
  // The device that made the plan stale.
  uint32_t stale_device = 0;
  absl::Time stale_since;
};

// Units that move to another device, or to new memory of the same device. Devices are indexes into the new layout.
struct PlanMove {
  size_t from = 0;
  uint64_t from_generation = 0;
  size_t to = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

template <typename Archive>
void Fields(Archive& archive, PlanMove& value) {
  archive(value.from, value.from_generation, value.to, value.begin, value.end);
}

// Result of PlanRequest and ReplanRequest.
struct PlanResult {
  static constexpr size_t kResponseIndex = 19;

  std::shared_ptr<const PlanLayout> layout;
  // For a re-plan: the revision that it replaces, and the moves since.
  uint64_t from_revision = 0;
  std::vector<PlanMove> moves;
};

template <typename Archive>
void Fields(Archive& archive, PlanResult& value) {
  archive(value.layout, value.from_revision, value.moves);
}
bool Undo(const UndoStep& undo, const PlanResult& result);

struct ReleasePlanResult {
  static constexpr size_t kResponseIndex = 20;
};

template <typename Archive>
void Fields(Archive&, ReleasePlanResult&) {}
inline bool Undo(const UndoStep&, const ReleasePlanResult&) { return false; }

// Limit of the tiles of one plan. A plan with more is laid out again, with one tile for each device.
inline constexpr size_t kMaxTiles = 256;

// ---- Kinds of requests (request_traits.h) ----------------------------------------------------------------

template <>
struct RequestTraits<PlanRequest> {
  using Result = PlanResult;
  static constexpr uint64_t kKind = 19;
};
template <>
struct RequestTraits<ReplanRequest> {
  using Result = PlanResult;
  static constexpr uint64_t kKind = 20;
};
// Releases the plan.
template <>
struct RequestTraits<PlanId> {
  using Result = ReleasePlanResult;
  static constexpr uint64_t kKind = 21;
};

using PlanResults = ResultList<PlanResult, ReleasePlanResult>;

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_PLAN_TYPES_H_
