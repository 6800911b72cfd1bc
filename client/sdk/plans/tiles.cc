// Devices and threads of a plan's tiles.

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/devices/device_choice.h"
#include "client/sdk/plans/tile_devices.h"
#include "client/sdk/plans/tile_threads.h"
#include "common/status_macros.h"
#include "common/thread.h"

namespace berth::internal {
namespace {

// Runs one step and converts an exception to a status.
absl::Status Guarded(const std::function<absl::Status(size_t)>& step, size_t tile) {
  if (!step) return absl::OkStatus();
  try {
    return step(tile);
  } catch (const std::exception& thrown) {
    return absl::InternalError(absl::StrCat("threw an exception: ", thrown.what()));
  } catch (...) {
    return absl::InternalError("threw an exception that is not a std::exception");
  }
}

absl::Status RunOne(const TileSteps& steps, size_t tile, const TileStop& stop, std::atomic<bool>* begun) {
  if (stop.stopped()) return absl::CancelledError("not started: the scatter was stopped");
  if (absl::Status status = Guarded(steps.enter, tile); !status.ok()) return status;
  begun->store(true, std::memory_order_relaxed);
  absl::Status status = Guarded(steps.run, tile);
  status.Update(Guarded(steps.leave, tile));
  if (status.ok()) status = Guarded(steps.check, tile);
  return status;
}

}  // namespace

// ---- tile_devices.h ------------------------------------------------------------------------------------------

absl::StatusOr<TileDevices> TileDevices::Hold(std::vector<TileDevice> devices, const GetDriver& get_driver) {
  TileDevices held(std::move(devices));
  for (TileDevice& device : held.devices_) {
    if (!device.cuda) continue;
    if (held.driver_ == nullptr) {
      BERTH_ASSIGN_OR_RETURN(held.driver_, get_driver());
    }
    BERTH_ASSIGN_OR_RETURN(device.ordinal, ChooseDevice(*held.driver_, device.uuid, /*wanted=*/""));
    if (held.contexts_.contains(device.ordinal)) continue;
    BERTH_ASSIGN_OR_RETURN(held.contexts_[device.ordinal],
                           held.driver_->RetainPrimaryContext(device.ordinal));
  }
  return held;
}

TileDevices::TileDevices(TileDevices&& other) noexcept
    : driver_(other.driver_),
      devices_(std::move(other.devices_)),
      contexts_(std::exchange(other.contexts_, {})) {}

TileDevices::~TileDevices() {
  for (const auto& [ordinal, context] : contexts_) driver_->ReleasePrimaryContext(ordinal).IgnoreError();
}

absl::Status TileDevices::Enter(size_t tile) const {
  const TileDevice& device = devices_[tile];
  if (!device.cuda) return absl::OkStatus();
  return driver_->SetCurrentContext(contexts_.at(device.ordinal));
}

absl::Status TileDevices::Leave(size_t tile) const {
  if (!devices_[tile].cuda) return absl::OkStatus();
  absl::Status status = driver_->SynchronizeContext();
  status.Update(driver_->SetCurrentContext(nullptr));
  return status;
}

// ---- tile_threads.h ------------------------------------------------------------------------------------------

TileOutcomes RunTileThreads(size_t count, const TileSteps& steps, bool stop_at_first_error, TileStop* stop) {
  TileOutcomes outcomes{.tiles = std::vector<absl::Status>(count)};
  std::atomic<bool> begun = false;
  const auto run = [&](size_t tile) {
    outcomes.tiles[tile] = RunOne(steps, tile, *stop, &begun);
    if (!outcomes.tiles[tile].ok() && stop_at_first_error) stop->Stop();
  };
  std::vector<Thread> threads;
  threads.reserve(count);
  for (size_t tile = 0; tile < count; ++tile) {
    absl::StatusOr<Thread> thread = Thread::Start("it", [&run, tile] { run(tile); });
    if (thread.ok()) {
      threads.push_back(*std::move(thread));
    } else {
      outcomes.tiles[tile] = thread.status();
      if (stop_at_first_error) stop->Stop();
    }
  }
  for (Thread& thread : threads) thread.join();
  outcomes.begun = begun.load(std::memory_order_relaxed);
  return outcomes;
}

size_t FirstFailure(const std::vector<absl::Status>& tiles) {
  size_t stopped = tiles.size();
  for (size_t tile = 0; tile < tiles.size(); ++tile) {
    if (tiles[tile].ok()) continue;
    if (!absl::IsCancelled(tiles[tile])) return tile;
    if (stopped == tiles.size()) stopped = tile;
  }
  return stopped;
}

}  // namespace berth::internal
