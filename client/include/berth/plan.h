// Plan: a lease on how this session splits work over the node's devices. It assigns units to devices. On request it
// also holds a permit on each device and the bytes that the device's units take there. All of it is granted, or
// nothing.
//
//   absl::StatusOr<berth::Plan> plan = berth::Plan::Make(session, {.units = rows});
//   if (!plan.ok()) return plan.status();
//   absl::Status done = berth::ScatterBatched(*plan, absl::MakeSpan(data), OneTile).status();   // berth/scatter.h
//   if (plan->stale()) {
//     auto moves = plan->Replan();           // a device is lost: other devices take over its units
//     for (const berth::PlanMove& move : *moves) Bring(move.to_uuid, move.begin, move.end);
//   }

#ifndef BERTH_PLAN_H_
#define BERTH_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <berth/block.h>
#include <berth/bytes.h>
#include <berth/cancellation.h>
#include <berth/ids.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace berth {

namespace internal {
class SessionCore;
struct PlanRecord;
}  // namespace internal
namespace v1 {
class MakePlanRequest;
class Plan;
}  // namespace v1

// The source of the device weights.
enum class PlanWeights {
  // The daemon's current device score (MakePlanRequest.WeightSource in proto/berth/v1/plan.proto).
  kScore = 1,
  // PlanOptions::weights, with a meaning of the caller's choice.
  kGiven = 2,
  // PlanOptions::weights; they are the devices' bandwidth, measured by the caller (berth/bandwidth.h).
  kBandwidth = 3,
};

// Requests a permit on each device of a plan. Fields as in PermitOptions.
struct PlanPermits {
  std::string pool;
  uint64_t units = 1;
  absl::Duration max_wait = absl::InfiniteDuration();
  int32_t priority = 0;
  bool independent = false;
};

struct PlanOptions {
  // Number of units to split; at least 1.
  uint64_t units = 0;
  // Free text for display. Non-printable bytes and invalid UTF-8 become "?"; text past 128 bytes is cut off.
  std::string label;
  // UUIDs, in the order in which the devices get units. Empty: all devices of the node that this process's
  // CUDA_VISIBLE_DEVICES leaves to it, best first.
  std::vector<std::string> devices;
  PlanWeights weigh_by = PlanWeights::kScore;
  // One weight for each of `devices`; unused with kScore. A negative or NaN weight counts as 0. If all weights count as
  // 0, or their sum is not finite, every device has the same weight.
  std::vector<double> weights;
  // Bytes per unit on its device. No device gets more units than this session's remaining bytes there allow.
  Bytes bytes_per_unit;
  // Minimum units of each device that gets any; 0 for no minimum.
  uint64_t min_units = 0;
  // Maximum number of devices that get units; 0 for no limit.
  uint64_t max_devices = 0;
  // Use only devices that reach each other over NVLink.
  bool one_island = false;
  std::optional<PlanPermits> permits;
  // Reserve the bytes of each device's units: Plan::Allocate() draws from them. Requires bytes_per_unit.
  bool reserve = false;
  // Called once per revision, when the plan is no longer valid. Runs on a thread of the SDK, which waits for it: it
  // must return soon, and must not wait for an SDK call.
  std::function<void()> on_stale;
  // Ends the wait for permits. Not owned; must outlive the call. May be null.
  Cancellation* cancellation = nullptr;
};

// A contiguous range of units on one device.
struct PlanTile {
  std::string device_uuid;
  // The daemon's ordinal of the device, and the generation of the device's memory when the plan was made.
  uint32_t device = 0;
  uint64_t generation = 0;
  // The kind of the device's memory.
  BlockKind kind = BlockKind::kHost;
  uint64_t begin = 0;
  // One past the last unit.
  uint64_t end = 0;
  // Holder key of the plan's permit on this device, in which others nest; empty without permits.
  std::string holder_key;

  uint64_t units() const { return end - begin; }
};

// Units that must be moved to a device: another device had them, or their device lost its memory.
struct PlanMove {
  std::string from_uuid;
  uint64_t from_generation = 0;
  std::string to_uuid;
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t units() const { return end - begin; }
};

// Move-only. Thread-compatible: any thread may call stale() and status() while no thread changes the plan.
class Plan {
 public:
  // Errors: CONSTRAINT (no split satisfies the options; names the constraint, the value and the limit); INVALID_FIELD;
  // NOT_FOUND (device, pool); LIMIT; with permits or bytes also those of Gang::Acquire().
  static absl::StatusOr<Plan> Make(const std::shared_ptr<Session>& session, const PlanOptions& options);

  Plan(Plan&& other) noexcept;
  Plan& operator=(Plan&& other) noexcept;
  // Releases the plan as Release() does; work that takes longer than 2 s continues in the background.
  ~Plan();

  PlanId id() const { return id_; }
  // Starts at 1; every re-plan adds 1.
  uint64_t revision() const { return revision_; }
  uint64_t units() const { return units_; }
  // In ascending order, without gaps, from 0 to units(). A device has one tile; after a re-plan possibly several.
  const std::vector<PlanTile>& tiles() const { return tiles_; }
  // The pool of the plan's permits; empty without permits.
  const std::string& pool() const { return pool_; }
  uint64_t permit_units() const { return permit_units_; }

  // Whether the plan is no longer valid: a device of the plan is out of service, draining, or lost its memory; a permit
  // of the plan was revoked; the result of a re-plan is unknown; or the session has ended. A few loads: cheap enough to
  // call at each launch.
  bool stale() const { return !Check(tiles_).ok(); }
  // As stale(), with the reason: OK, or STALE naming the reason; kUnavailable when the session is over.
  absl::Status status() const { return Check(tiles_); }
  // As status() for one tile: checks its device, and everything that concerns all tiles. A revision records only the
  // first device that leaves service or drains. For later devices, their tiles become stale when the device's memory is
  // lost.
  absl::Status CheckTile(const PlanTile& tile) const;

  struct ReplanOptions {
    // Recompute the weights of the remaining devices as well: more units move.
    bool reweigh = false;
  };
  // Splits the units again over the devices that serve now. Remaining devices keep their units, as far as the weights
  // allow. Permits and reserved bytes follow; Replan() does not wait. Returns the moves relative to the tiles() before
  // the call.
  // Errors, with the plan unchanged: CONSTRAINT; NO_PERMIT, OVER_BUDGET (retry later); NOT_FOUND after a release; those
  // of every call. After kUnavailable, kDeadlineExceeded or kCancelled the daemon may have re-planned, and other tiles
  // may use the resources of this plan's tiles. The whole plan is then stale until a later Replan() succeeds and
  // returns all moves.
  absl::StatusOr<std::vector<PlanMove>> Replan(const ReplanOptions& options);
  absl::StatusOr<std::vector<PlanMove>> Replan() { return Replan(ReplanOptions()); }

  // Allocates a block from the plan's reserved bytes on the tile's device; `options` need not name the device.
  // Errors: OVER_BUDGET of the layer "reservation"; kFailedPrecondition without reserved bytes; otherwise as
  // Block::Allocate().
  absl::StatusOr<Block> Allocate(const PlanTile& tile, BlockOptions options) const;

  // Returns the plan, with its permits and its remaining bytes. Idempotent. Errors: those of the daemon or the
  // transport; the SDK then returns the plan in the background.
  absl::Status Release();

  // For internal use by the SDK; null after Release().
  const std::shared_ptr<internal::SessionCore>& core() const { return core_; }

 private:
  Plan() = default;
  // Takes over the daemon's record of the plan.
  void Adopt(const v1::Plan& plan);
  absl::Status Check(const std::vector<PlanTile>& tiles) const;
  absl::Status CheckSession() const;
  // After OK, the re-plan with an unknown result will have no further effect.
  absl::Status ForgetDoubtful() const;

  std::shared_ptr<internal::SessionCore> core_;
  std::shared_ptr<internal::PlanRecord> record_;
  PlanId id_;
  uint64_t revision_ = 0;
  uint64_t units_ = 0;
  std::vector<PlanTile> tiles_;
  std::string pool_;
  uint64_t permit_units_ = 0;
  ReservationId reservation_;
  // Sequence number of a re-plan request whose result is unknown; 0 for none.
  uint64_t doubtful_ = 0;
};

}  // namespace berth

#endif  // BERTH_PLAN_H_
