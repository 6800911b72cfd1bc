#include <berth/scatter.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>
#include <berth/lazy_scope.h>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/sdk/devices/driver_absence.h"
#include "client/sdk/permits/held_permit.h"
#include "client/sdk/plans/tile_devices.h"
#include "client/sdk/plans/tile_threads.h"
#include "client/sdk/transport/session_core.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"

namespace berth {
namespace {

using internal::HeldPermit;
using internal::TileDevice;
using internal::TileDevices;
using internal::TileOutcomes;
using internal::TileStop;

ScatterReport Failed(absl::Status status) { return {.status = std::move(status)}; }

// Does nothing: the plan returns its permits, not a tile.
class HeldByPlan final : public HeldPermit::Releaser {
 public:
  absl::Status Release() override { return absl::OkStatus(); }
};

// The same error, with its tile named.
absl::Status OfTile(const absl::Status& status, size_t index, size_t count, const PlanTile& tile) {
  absl::Status named(status.code(),
                     absl::StrCat("tile ", index, " of ", count, " (device ", tile.device_uuid, ", units ",
                                  tile.begin, " to ", tile.end, "): ", status.message()));
  AddNamedValue({"tile", index}, &named);
  AddNamedValue({"tile_device", tile.device_uuid}, &named);
  AddNamedValue({"tile_begin", tile.begin}, &named);
  AddNamedValue({"tile_end", tile.end}, &named);
  // If the error comes from a nested scatter inside the tile, the named values of this scatter win.
  status.ForEachPayload([&named](absl::string_view url, const absl::Cord& value) {
    if (!named.GetPayload(url).has_value()) named.SetPayload(url, value);
  });
  return named;
}

// Returns why this process cannot use the devices if that is an absence; nothing if it is a fault.
std::optional<Absence> AbsenceIn(const absl::Status& status) {
  if (IsRefusal(status, Reason::kNotFound)) {
    return Absence{.kind = Absence::Kind::kNoDevice, .why = std::string(status.message())};
  }
  return internal::AbsenceOfDriver(status);
}

// Returns the absence if the plan was not made because no device serves.
std::optional<Absence> AbsenceOfPlan(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value() || details->reason != Reason::kConstraint) return std::nullopt;
  const auto constraint = details->metadata.find("constraint");
  if (constraint == details->metadata.end() || constraint->second != "devices") return std::nullopt;
  return Absence{.kind = Absence::Kind::kNoDevice, .why = std::string(status.message())};
}

// Returns the result without devices: the fallback's, or `status` if the absence is an error.
ScatterReport WithoutDevices(Absence absence, const absl::Status& status, const ScatterOptions& options) {
  if (options.policy == DevicePolicy::kRequired || !options.fallback) return Failed(status);
  ScatterReport report{.status = options.fallback(), .fell_back = std::move(absence)};
  report.may_be_partly_changed = !report.ok();
  return report;
}

bool OnHostMemory(const Plan& plan) {
  return std::any_of(plan.tiles().begin(), plan.tiles().end(),
                     [](const PlanTile& tile) { return tile.kind == BlockKind::kHost; });
}

// Returns the result for a plan over host memory that the options do not accept.
ScatterReport WithoutHostMemory(const ScatterOptions& options) {
  Absence absence = internal::AbsenceOnHostMemory(cuda::Driver::Get().status());
  const absl::Status status = Refuse(Reason::kUnsupported, "the plan's devices lack {capability}: {why}",
                                     {{"capability", "CUDA"}, {"why", absence.why}});
  return WithoutDevices(std::move(absence), status, options);
}

// Returns the result if it does not depend on devices; nothing otherwise.
std::optional<ScatterReport> WithoutLooking(const ScatterOptions& options) {
  if (LazyScope::Inside()) {
    return Failed(absl::FailedPreconditionError(
        "a scatter cannot start inside a lazy initialiser: its tiles may wait for that initialiser"));
  }
  if (options.policy != DevicePolicy::kOff) return std::nullopt;
  const std::string why = "the device policy is kOff";
  return WithoutDevices({.kind = Absence::Kind::kPolicyOff, .why = why},
                        absl::FailedPreconditionError(absl::StrCat(why, ", and there is no fallback")),
                        options);
}

// Runs the tiles of one plan.
class Scatter {
 public:
  Scatter(const Plan& plan, TileDevices devices, const TileFunction& function, const ScatterOptions& options)
      : plan_(plan),
        devices_(std::move(devices)),
        function_(function),
        options_(options),
        stop_(options.cancellation),
        held_permits_(plan.tiles().size(), nullptr) {}

  ScatterReport Run() {
    const std::vector<PlanTile>& tiles = plan_.tiles();
    TileOutcomes outcomes = internal::RunTileThreads(tiles.size(),
                                                     {.enter = [this](size_t tile) { return Enter(tile); },
                                                      .run = [this](size_t tile) { return RunTile(tile); },
                                                      .leave = [this](size_t tile) { return Leave(tile); },
                                                      .check = [this](size_t tile) { return Check(tile); }},
                                                     options_.stop_at_first_error, &stop_);
    ScatterReport report;
    for (size_t i = 0; i < tiles.size(); ++i) {
      absl::Status& status = outcomes.tiles[i];
      if (!status.ok()) status = OfTile(status, i, tiles.size(), tiles[i]);
    }
    const size_t failed = internal::FirstFailure(outcomes.tiles);
    if (failed < tiles.size()) report.status = outcomes.tiles[failed];
    report.tiles = std::move(outcomes.tiles);
    report.may_be_partly_changed = !report.ok() && outcomes.begun;
    return report;
  }

 private:
  const PlanTile& TileAt(size_t tile) const { return plan_.tiles()[tile]; }

  absl::Status Enter(size_t tile) {
    BERTH_RETURN_IF_ERROR(plan_.CheckTile(TileAt(tile)));
    BERTH_RETURN_IF_ERROR(devices_.Enter(tile));
    if (TileAt(tile).holder_key.empty()) return absl::OkStatus();
    // Acquires of this thread nest in the plan's permit. Otherwise they would wait for the units that the plan holds.
    held_permits_[tile] = HeldPermit::Make({.session = plan_.core().get(), .pool = plan_.pool(), .holder_key = ""},
                                           plan_.permit_units(), std::make_unique<HeldByPlan>(),
                                           /*record=*/nullptr, TileAt(tile).holder_key);
    return absl::OkStatus();
  }

  absl::Status RunTile(size_t tile) {
    const std::function<bool()> cancelled = [this, tile] {
      return stop_.stopped() || !plan_.CheckTile(TileAt(tile)).ok();
    };
    return function_(TileRun(tile, TileAt(tile), devices_.ordinal(tile), cancelled));
  }

  absl::Status Leave(size_t tile) {
    const absl::Status status = devices_.Leave(tile);
    if (held_permits_[tile] != nullptr) held_permits_[tile]->Drop().IgnoreError();
    return status;
  }

  // A result that was computed on a device that has changed meanwhile is not reliable.
  absl::Status Check(size_t tile) { return plan_.CheckTile(TileAt(tile)); }

  const Plan& plan_;
  const TileDevices devices_;
  const TileFunction& function_;
  const ScatterOptions& options_;
  TileStop stop_;
  // One for each tile's thread.
  std::vector<HeldPermit*> held_permits_;
};

absl::StatusOr<TileDevices> HoldDevices(const Plan& plan) {
  std::vector<TileDevice> devices;
  for (const PlanTile& tile : plan.tiles()) {
    devices.push_back({.cuda = tile.kind != BlockKind::kHost,
                       .uuid = tile.device_uuid,
                       .ordinal = static_cast<int>(tile.device)});
  }
  return TileDevices::Hold(std::move(devices), [] { return cuda::Driver::Get(); });
}

}  // namespace

ScatterReport RunTiles(const Plan& plan, const TileFunction& function, const ScatterOptions& options) {
  if (std::optional<ScatterReport> done = WithoutLooking(options)) return *std::move(done);
  // Checked before any tile starts, so that a refusal leaves the items unchanged.
  if (absl::Status status = plan.status(); !status.ok()) return Failed(std::move(status));
  if (!options.host_devices && OnHostMemory(plan)) return WithoutHostMemory(options);
  absl::StatusOr<TileDevices> devices = HoldDevices(plan);
  if (!devices.ok()) {
    std::optional<Absence> absence = AbsenceIn(devices.status());
    return absence.has_value() ? WithoutDevices(*std::move(absence), devices.status(), options)
                               : Failed(devices.status());
  }
  return Scatter(plan, *std::move(devices), function, options).Run();
}

ScatterReport RunTiles(const absl::StatusOr<Plan>& plan, const TileFunction& function,
                       const ScatterOptions& options) {
  if (plan.ok()) return RunTiles(*plan, function, options);
  if (std::optional<ScatterReport> done = WithoutLooking(options)) return *std::move(done);
  std::optional<Absence> absence = AbsenceOfPlan(plan.status());
  return absence.has_value() ? WithoutDevices(*std::move(absence), plan.status(), options)
                             : Failed(plan.status());
}

ScatterReport internal::RefuseItems(size_t items, uint64_t units) {
  return Failed(absl::InvalidArgumentError(
      absl::StrCat(items, " items, but the plan has ", units, " units: each unit is one item")));
}

}  // namespace berth
