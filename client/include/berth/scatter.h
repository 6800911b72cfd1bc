// ScatterBatched: runs a function over a batch of items on the devices of a plan, one thread per tile, each with its
// device current.
//
//   berth::ScatterReport report = berth::ScatterBatched(
//       plan, absl::MakeSpan(rows), [&](const berth::TileRun& tile, absl::Span<Row> mine) -> absl::Status {
//         return Factorise(tile.ordinal(), mine);     // the tile's own items, on the tile's own device
//       });
//   if (!report.ok()) return report.status();         // names the tile, its device and its units
//
// Every thread is joined in all cases. After an error the items may be partly changed: those of successful tiles are,
// and those of the failed tile may be. A caller that wants to continue on a CPU needs a copy of the original items.

#ifndef BERTH_SCATTER_H_
#define BERTH_SCATTER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <berth/cancellation.h>
#include <berth/device_policy.h>
#include <berth/plan.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace berth {

// A running tile. Thread-safe.
class TileRun {
 public:
  // For internal use by the SDK.
  TileRun(size_t index, const PlanTile& tile, int ordinal, const std::function<bool()>& cancelled)
      : index_(index), tile_(tile), ordinal_(ordinal), cancelled_(cancelled) {}

  // Index in Plan::tiles().
  size_t index() const { return index_; }
  const PlanTile& tile() const { return tile_; }
  // This process's own ordinal of the device; the device's primary context is current in the tile's thread. On host
  // devices the daemon's ordinal.
  int ordinal() const { return ordinal_; }
  // Whether the tile's result is no longer needed: the scatter was cancelled, another tile has failed, or the device
  // has changed since the plan was made. A long-running tile checks this between its steps, and returns.
  bool cancelled() const { return cancelled_(); }

 private:
  const size_t index_;
  const PlanTile& tile_;
  const int ordinal_;
  const std::function<bool()>& cancelled_;
};

// Runs one tile: units [tile().begin, tile().end). An exception counts as an error of the tile.
using TileFunction = std::function<absl::Status(const TileRun&)>;

struct ScatterOptions {
  // kAuto: use devices, or the fallback without devices. kOff: use the fallback, and probe no device. kRequired: use
  // devices; their absence is an error.
  DevicePolicy policy = DevicePolicy::kAuto;
  // Whether to accept devices made of host memory, as on test and simulated nodes. If false, the devices of a plan over
  // host memory count as absent.
  bool host_devices = false;
  // The caller's alternative without devices; runs in the caller's thread. If empty, absence is an error under every
  // policy. The fallback never runs after a tile has begun: a device that fails is a fault.
  std::function<absl::Status()> fallback;
  // Cancel the other tiles (TileRun::cancelled()) as soon as one has failed.
  bool stop_at_first_error = true;
  // Ends the scatter: no further tile starts, and running tiles are notified. Not owned; may be null.
  Cancellation* cancellation = nullptr;
};

// The result of a scatter.
struct ScatterReport {
  // OK, or the error of the first tile, by index, that failed by itself rather than because of another tile. Its text
  // names the tile's index, device and units, which are also the named values `tile`, `tile_device`, `tile_begin` and
  // `tile_end` (NamedValueOf(), berth/error.h). kCancelled if the scatter was cancelled and no tile failed by itself.
  absl::Status status;
  // The status of each tile, by index; empty if no tile was started. kCancelled for tiles that were not started, or
  // stopped because of another tile.
  std::vector<absl::Status> tiles;
  // Why the fallback ran; empty if it did not.
  std::optional<Absence> fell_back;
  // Whether items may have been changed although the scatter failed.
  bool may_be_partly_changed = false;

  bool ok() const { return status.ok(); }
};

// Runs `function` for every tile of the plan, each in its own thread. The device's primary context is current there. If
// the plan has permits, the thread holds the tile's permit, so that acquires of that pool nest in it. A tile ends when
// its function has returned and all work queued in the context has ended. The caller must not change the plan
// meanwhile.
// Errors: kFailedPrecondition if the calling thread is inside a lazy initialiser (berth/lazy_scope.h), for which the
// tiles might wait; UNSUPPORTED or NOT_FOUND, with no tile started, for a device that this process cannot use, host
// memory included (ScatterOptions::host_devices); STALE for a tile whose device was lost meanwhile, even if its
// function returned OK; the functions' own.
ScatterReport RunTiles(const Plan& plan, const TileFunction& function, const ScatterOptions& options = {});
// As above, for a plan whose creation may have failed: a failure because no device serves counts as an absence.
ScatterReport RunTiles(const absl::StatusOr<Plan>& plan, const TileFunction& function,
                       const ScatterOptions& options = {});

// As RunTiles(), over items: a tile's function gets the items of its units [begin, end) as a slice.
// Further errors: kInvalidArgument, with no tile started, if the number of items differs from the plan's units.
// `plan` is a Plan or an absl::StatusOr<Plan>.
template <typename PlanOrStatus, typename T, typename Function>
ScatterReport ScatterBatched(const PlanOrStatus& plan, absl::Span<T> items, Function function,
                             const ScatterOptions& options = {});

// ---- Details ----------------------------------------------------------------------------------------------------

namespace internal {
inline const Plan* PlanOf(const Plan& plan) { return &plan; }
inline const Plan* PlanOf(const absl::StatusOr<Plan>& plan) { return plan.ok() ? &*plan : nullptr; }
ScatterReport RefuseItems(size_t items, uint64_t units);
}  // namespace internal

template <typename PlanOrStatus, typename T, typename Function>
ScatterReport ScatterBatched(const PlanOrStatus& plan, absl::Span<T> items, Function function,
                             const ScatterOptions& options) {
  const Plan* const made = internal::PlanOf(plan);
  if (made != nullptr && options.policy != DevicePolicy::kOff && items.size() != made->units()) {
    return internal::RefuseItems(items.size(), made->units());
  }
  return RunTiles(
      plan,
      [&](const TileRun& run) -> absl::Status {
        return function(run, items.subspan(run.tile().begin, run.tile().units()));
      },
      options);
}

}  // namespace berth

#endif  // BERTH_SCATTER_H_
