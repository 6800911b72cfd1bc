// Plan: how this session splits work over the node's devices, held as a lease: which device does which units, with,
// where they are asked for, a permit on each and the bytes that its units take there, all or nothing.
//
//   absl::StatusOr<berth::Plan> plan = berth::Plan::Make(session, {.units = rows});
//   if (!plan.ok()) return plan.status();
//   absl::Status done = berth::ScatterBatched(*plan, absl::MakeSpan(data), OneTile).status();   // client/scatter.h
//   if (plan->stale()) {
//     auto moves = plan->Replan();           // a device went: its units are others' now
//     for (const berth::PlanMove& move : *moves) Bring(move.to_uuid, move.begin, move.end);
//   }

#ifndef CLIENT_PLAN_H_
#define CLIENT_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/block.h"
#include "client/cancellation.h"
#include "client/session.h"
#include "common/bytes.h"
#include "common/ids.h"

namespace berth {

namespace internal {
class SessionCore;
struct PlanRecord;
}  // namespace internal
namespace v1 {
class MakePlanRequest;
class Plan;
}  // namespace v1

// Where the weights of a plan's devices come from.
enum class PlanWeights {
  // The daemon's score of the moment (common/device_score.h).
  kScore = 1,
  // PlanOptions::weights, of whatever meaning.
  kGiven = 2,
  // The same, and they are the devices' bandwidth, as the caller measured it (client/bandwidth.h).
  kBandwidth = 3,
};

// A permit on each device of a plan. As in PermitOptions.
struct PlanPermits {
  std::string pool;
  uint64_t units = 1;
  absl::Duration max_wait = absl::InfiniteDuration();
  int32_t priority = 0;
  bool independent = false;
};

struct PlanOptions {
  // What is split: at least 1.
  uint64_t units = 0;
  // Free text for those who look, at most 128 bytes, printable.
  std::string label;
  // UUIDs, in the order in which they are to have their units; none: all of the node, the best first.
  std::vector<std::string> devices;
  PlanWeights weigh_by = PlanWeights::kScore;
  // One of each of `devices`, but for kScore. What is negative or no number counts as 0; where all do, or their sum
  // is not finite, every device counts the same.
  std::vector<double> weights;
  // What a unit takes there: no device gets more units than this session may still have bytes of it.
  Bytes bytes_per_unit;
  // Of each device that gets any, and how many devices may; 0 is no limit.
  uint64_t min_units = 0;
  uint64_t max_devices = 0;
  // Only devices that reach each other over NVLink.
  bool one_island = false;
  std::optional<PlanPermits> permits;
  // Set each device's units' bytes aside: Plan::Allocate() draws from them. Wants bytes_per_unit.
  bool reserve = false;
  // Called when the plan does not hold any more, once for each revision, on a thread of the SDK's, which waits for
  // it: it must return soon, and not wait for a call of the SDK's.
  std::function<void()> on_stale;
  // Ends the wait for permits. Not owned; must outlive the call. May be null.
  Cancellation* cancellation = nullptr;
};

// Units of one device, one after the other.
struct PlanTile {
  std::string device_uuid;
  // The daemon's ordinal of it, and the generation of its memory when the plan was made.
  uint32_t device = 0;
  uint64_t generation = 0;
  // What its memory is made of.
  BlockKind kind = BlockKind::kHost;
  uint64_t begin = 0;
  // After the last one.
  uint64_t end = 0;
  // Of the plan's permit there, under which others nest; empty for none.
  std::string holder_key;

  uint64_t units() const { return end - begin; }
};

// Units that have to be brought to a device, because another one had them, or because its memory was lost.
struct PlanMove {
  std::string from_uuid;
  uint64_t from_generation = 0;
  std::string to_uuid;
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t units() const { return end - begin; }
};

// Move-only. Thread-compatible: stale() and status() may be asked from any thread while nobody changes it.
class Plan {
 public:
  // Errors: CONSTRAINT (no split keeps what was asked: says which constraint, the figure and the limit);
  // INVALID_FIELD; NOT_FOUND (device, pool); LIMIT; as Gang::Acquire() where permits or bytes are asked.
  static absl::StatusOr<Plan> Make(const std::shared_ptr<Session>& session, const PlanOptions& options);

  Plan(Plan&& other) noexcept;
  Plan& operator=(Plan&& other) noexcept;
  // Gives back as Release() does; what that takes longer than 2 s is done in the background.
  ~Plan();

  PlanId id() const { return id_; }
  // 1, and one more with every re-plan.
  uint64_t revision() const { return revision_; }
  uint64_t units() const { return units_; }
  // One after the other from 0 to units(). A device has one; after a re-plan perhaps several.
  const std::vector<PlanTile>& tiles() const { return tiles_; }
  // The pool of its permits; empty for none.
  const std::string& pool() const { return pool_; }
  uint64_t permit_units() const { return permit_units_; }

  // Whether it does not hold any more: a device of it is out of service, being emptied, or lost its memory; a permit
  // of it was taken away; what came of a re-plan is not known; or the session is over. A few loads: cheap enough for
  // each launch.
  bool stale() const { return !Check(tiles_).ok(); }
  // The same with the reason: OK or STALE naming it; kUnavailable when the session is over.
  absl::Status status() const { return Check(tiles_); }
  // The same of one tile: of its device, and of what concerns all tiles. A revision is told of the first device that
  // goes out of service or is being emptied; of those that follow, tiles hear when their memory is lost.
  absl::Status CheckTile(const PlanTile& tile) const;

  struct ReplanOptions {
    // Weigh the devices that stay anew as well: more units move.
    bool reweigh = false;
  };
  // Splits the units anew over the devices that serve now: devices that stay keep what they have, as far as the
  // weights go. Permits and reserved bytes follow; nothing is waited for. Returns what has moved since tiles() was as
  // it is.
  // Errors, with the plan as it was: CONSTRAINT; NO_PERMIT, OVER_BUDGET (try again later); NOT_FOUND once it was
  // released; those of every call. After kUnavailable, kDeadlineExceeded or kCancelled it may have been re-planned at
  // the daemon, and what its tiles had there may be others': it is stale, all of it, until another call has said what
  // there is, which returns what has moved in all.
  absl::StatusOr<std::vector<PlanMove>> Replan(const ReplanOptions& options);
  absl::StatusOr<std::vector<PlanMove>> Replan() { return Replan(ReplanOptions()); }

  // Draws a block of the plan's reserved bytes on the tile's device, which `options` need not name.
  // Errors: OVER_BUDGET of the layer "reservation"; kFailedPrecondition where none were reserved; as
  // Block::Allocate().
  absl::StatusOr<Block> Allocate(const PlanTile& tile, BlockOptions options) const;

  // Gives the plan back, with its permits and what is left of its bytes. Idempotent. Errors: what the daemon or the
  // transport said; it is given back in the background all the same.
  absl::Status Release();

  // The SDK's own: null once released.
  const std::shared_ptr<internal::SessionCore>& core() const { return core_; }

 private:
  Plan() = default;
  // Takes over what the daemon says of it.
  void Adopt(const v1::Plan& plan);
  absl::Status Check(const std::vector<PlanTile>& tiles) const;
  absl::Status CheckSession() const;
  // Once this is OK the doubtful re-plan will do nothing any more that it has not done.
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
  // The request for a re-plan of which the daemon has not said what came of it; 0 for none.
  uint64_t doubtful_ = 0;
};

}  // namespace berth

#endif  // CLIENT_PLAN_H_
