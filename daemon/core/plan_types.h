// Plans: how a session splits work over devices, held as a lease. What is asked, told and answered. Plain values.

#ifndef DAEMON_CORE_PLAN_TYPES_H_
#define DAEMON_CORE_PLAN_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "common/partition.h"
#include "daemon/core/caller.h"
#include "daemon/core/device_types.h"

namespace berth::core {

// Where the weights come from: the numbers are the wire's.
enum class WeightSource {
  // common/device_score.h, of the moment.
  kScore = 1,
  // Who asks says so; or has measured the devices' bandwidth.
  kGiven = 2,
  kBandwidth = 3,
};
constexpr auto ArchivedValues(WeightSource) { return std::pair(WeightSource::kScore, WeightSource::kBandwidth); }

// Why a plan does not hold any more: the numbers are the wire's.
enum class PlanStale : uint64_t {
  kCurrent = 0,
  // A device of it is gone from the node, out of service, or being emptied.
  kDeviceDropped = 1,
  kDeviceStopped = 2,
  kDeviceDraining = 3,
  // A device's memory was lost, and with it what was there of the plan's work.
  kMemoryLost = 4,
  // A permit of it was taken away.
  kPermitRevoked = 5,
};
constexpr auto ArchivedValues(PlanStale) { return std::pair(PlanStale::kCurrent, PlanStale::kPermitRevoked); }

struct PlanRequest {
  uint64_t units = 0;
  std::string label;
  // UUIDs, in the order in which they are to have their tiles. None: all devices, that of the best score first.
  std::vector<std::string> devices;
  WeightSource source = WeightSource::kScore;
  // Of each of `devices`, but for kScore.
  std::vector<double> weights;
  // What one unit takes of its device's budget; 0 for nothing.
  Bytes bytes_per_unit;
  // As PartitionConstraints.
  uint64_t min_units = 0;
  uint64_t max_devices = 0;
  bool one_island = false;
  // A permit of this pool on each device that has units; none where empty.
  std::string pool;
  uint64_t permit_units = 1;
  // Sets each device's units' bytes aside.
  bool reserve = false;
  // Of the permits, as in AcquireRequest.
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
}

// Splits a plan's units anew over the devices that there are, moving as few as possible.
struct ReplanRequest {
  PlanId plan;
  // Weigh the devices that stay anew, too: more units move.
  bool reweigh = false;
};

// A device that was considered.
struct PlanDevice {
  // Why it has no units: the numbers are the wire's.
  enum class Left {
    // It has some.
    kNone = 0,
    kOutOfService = 1,
    // Its weight comes to less than a unit.
    kTooLight = 2,
    // A constraint left it out.
    kConstraint = 3,
  };
  friend constexpr auto ArchivedValues(Left) { return std::pair(Left::kNone, Left::kConstraint); }

  // Member by member: to zero the whole of it first takes as long as all the rest that is done for a device.
  PlanDevice() {}  // NOLINT(modernize-use-equals-default)

  uint32_t ordinal = 0;
  // The device's own: a plan of many devices copies none.
  std::shared_ptr<const std::string> uuid;
  MemoryKind kind = MemoryKind::kHost;
  // Of its memory.
  uint64_t generation = 0;
  // What a score was made of.
  uint32_t sm_count = 0;
  uint32_t cc_major = 0;
  Bytes free;
  double weight = 0;
  // Units that its budget has room for; UINT64_MAX for no limit.
  uint64_t room = UINT64_MAX;
  // What the weights alone come to, and what it was given.
  double ideal = 0;
  uint64_t units = 0;
  Left left = Left::kNone;
  // Where permits were asked.
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
          value.weight, value.room, value.ideal, value.units, value.left, value.permit, value.acquisition,
          value.holder_key);
}

// What a plan is, of one of its revisions. Never changed once it is made, so that table, answer and lists share it.
struct PlanLayout {
  PlanId id;
  // 1, and one more with every re-plan.
  uint64_t revision = 1;
  SessionId session;
  Tenant tenant;
  PlanRequest asked;
  uint32_t score_version = 0;
  // In the order of the tiles, at first.
  std::vector<PlanDevice> devices;
  // By the places of `devices`.
  std::vector<Tile> tiles;
  // Id 0 where none was asked.
  ReservationId reservation;
  absl::Time since;
  absl::Time made;
};

template <typename Archive>
void Fields(Archive& archive, PlanLayout& value) {
  archive(value.id, value.revision, value.session, value.tenant, value.asked, value.score_version,
          value.devices, value.tiles, value.reservation, value.since, value.made);
}

// One that is read is shared with nobody yet.
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
  // The device that it is about.
  uint32_t stale_device = 0;
  absl::Time stale_since;
};

// Units that another device has from now on, or the same one with other memory. Devices are places of the new layout's.
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

// Of both requests.
struct PlanResult {
  std::shared_ptr<const PlanLayout> layout;
  // Of a re-plan: from what revision, and what has moved since.
  uint64_t from_revision = 0;
  std::vector<PlanMove> moves;
};

template <typename Archive>
void Fields(Archive& archive, PlanResult& value) {
  archive(value.layout, value.from_revision, value.moves);
}

struct ReleasePlanResult {};

template <typename Archive>
void Fields(Archive&, ReleasePlanResult&) {}

// Tiles of one plan: with more it is laid out anew, one tile a device.
inline constexpr size_t kMaxTiles = 256;

}  // namespace berth::core

#endif  // DAEMON_CORE_PLAN_TYPES_H_
