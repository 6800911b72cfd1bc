// ScatterBatched: runs a function over a batch of items on the devices of a plan, one thread for each tile, each with
// its device current.
//
//   berth::ScatterReport report = berth::ScatterBatched(
//       plan, absl::MakeSpan(rows), [&](const berth::TileRun& tile, absl::Span<Row> mine) -> absl::Status {
//         return Factorise(tile.ordinal(), mine);     // the tile's own items, on the tile's own device
//       });
//   if (!report.ok()) return report.status();         // names the tile, its device and its units
//
// Every thread is joined, whatever happens. After an error the items may be partly changed: those of the tiles that
// ended well are, and those of the tile that failed may be. Who wants to go on with a CPU needs the items as they
// were before.

#ifndef CLIENT_SCATTER_H_
#define CLIENT_SCATTER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cancellation.h"
#include "client/device_policy.h"
#include "client/plan.h"

namespace berth {

// One tile while it runs. Thread-safe.
class TileRun {
 public:
  // The SDK's own.
  TileRun(size_t index, const PlanTile& tile, int ordinal, const std::function<bool()>& cancelled)
      : index_(index), tile_(tile), ordinal_(ordinal), cancelled_(cancelled) {}

  // Its place in Plan::tiles().
  size_t index() const { return index_; }
  const PlanTile& tile() const { return tile_; }
  // This process's own ordinal of the device, whose primary context is current in the tile's thread; on host devices
  // the daemon's ordinal.
  int ordinal() const { return ordinal_; }
  // Whether nobody waits for the tile any more: the scatter was cancelled, another tile has failed, or the device is
  // not what it was when the plan was made. A tile that takes long looks at it between its steps, and returns.
  bool cancelled() const { return cancelled_(); }

 private:
  const size_t index_;
  const PlanTile& tile_;
  const int ordinal_;
  const std::function<bool()>& cancelled_;
};

// Runs one tile: units [tile().begin, tile().end). An exception is an error of the tile's.
using TileFunction = std::function<absl::Status(const TileRun&)>;

struct ScatterOptions {
  // kAuto: devices, or the fallback where there are none; kOff: the fallback, and no device is looked at; kRequired:
  // devices, and their absence is an error.
  DevicePolicy policy = DevicePolicy::kAuto;
  // Whether devices that stand for host memory will do, as tests and simulated nodes have them. Without this a plan
  // over them is one whose devices are absent.
  bool host_devices = false;
  // What the caller does instead, in its own thread. Without it absence is an error under every policy. It never
  // follows on a tile that has begun: a device that fails is a fault.
  std::function<absl::Status()> fallback;
  // Has the other tiles told (TileRun::cancelled()) as soon as one has failed.
  bool stop_at_first_error = true;
  // Ends the scatter: no tile is begun any more, those that run are told. Not owned; may be null.
  Cancellation* cancellation = nullptr;
};

// What came of a scatter.
struct ScatterReport {
  // OK; or the error of the first tile by its index that has one of its own, and not only stopped because of
  // another's: with the index, the device and the units of the tile in its text and as the figures `tile`,
  // `tile_device`, `tile_begin` and `tile_end` (FigureOf(), common/error.h). kCancelled where the scatter was cancelled
  // and no tile failed by itself.
  absl::Status status;
  // Of each tile, by its place; empty where none was begun. kCancelled for those that were not begun, or stopped
  // because of another one.
  std::vector<absl::Status> tiles;
  // Why the fallback was run, where it was.
  std::optional<Absence> fell_back;
  // Whether items may have been changed although the scatter failed.
  bool may_be_partly_changed = false;

  bool ok() const { return status.ok(); }
};

// Runs `function` for every tile of the plan, each in a thread of its own: with the device's primary context current,
// and, where the plan has permits, holding the tile's, so that acquires of that pool inside nest in it. A tile has
// ended when its function has returned and all that it queued in the context has ended. Whoever mutates the plan
// meanwhile breaks it.
// Errors: kFailedPrecondition where the calling thread is inside a lazy initialiser (client/lazy_scope.h): its tiles
// might wait for that; UNSUPPORTED or NOT_FOUND, with nothing begun, for a device that this process cannot use, host
// memory among them (ScatterOptions::host_devices); STALE for a tile whose device was lost meanwhile, even where its
// function returned OK; the functions' own.
ScatterReport RunTiles(const Plan& plan, const TileFunction& function, const ScatterOptions& options = {});
// The same for a plan that may not have come about: where that is because no device serves, it is an absence.
ScatterReport RunTiles(const absl::StatusOr<Plan>& plan, const TileFunction& function,
                       const ScatterOptions& options = {});

// The same over items: those of units [begin, end) are the tile's own, as a slice.
// Errors besides: kInvalidArgument, with nothing begun, where there are not as many items as the plan has units.
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

#endif  // CLIENT_SCATTER_H_
