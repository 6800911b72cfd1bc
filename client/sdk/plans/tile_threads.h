// Runs tiles, one thread each, and joins them all: the core of ScatterBatched, without plan, device or daemon.

#ifndef CLIENT_SDK_PLANS_TILE_THREADS_H_
#define CLIENT_SDK_PLANS_TILE_THREADS_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

#include <berth/cancellation.h>

#include "absl/status/status.h"

namespace berth::internal {

// Steps of a tile, run in its own thread, in this order. All but `run` may be empty.
struct TileSteps {
  // Runs before the tile. An error becomes the tile's result, and no other step runs.
  std::function<absl::Status(size_t)> enter;
  // Runs the tile; may throw.
  std::function<absl::Status(size_t)> run;
  // Runs after the tile, whatever the tile's result. An error becomes the tile's result where the tile has no error
  // yet.
  std::function<absl::Status(size_t)> leave;
  // Checks whether the tile's result counts.
  std::function<absl::Status(size_t)> check;
};

// Thread-safe. Requests that running tiles stop.
class TileStop {
 public:
  // `cancellation` may be null; otherwise it must outlive this object.
  explicit TileStop(Cancellation* cancellation)
      : cancelled_(cancellation, [this] { stopped_.store(true, std::memory_order_release); }) {}

  void Stop() { stopped_.store(true, std::memory_order_release); }
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> stopped_ = false;
  const Cancellation::Hook cancelled_;
};

struct TileOutcomes {
  // Status of each tile. A tile that `stop` prevented from starting is kCancelled.
  std::vector<absl::Status> tiles;
  // Whether any `run` was called.
  bool begun = false;
};

// Runs `count` tiles and returns when all have ended. With `stop_at_first_error` the first failed tile stops the
// others.
TileOutcomes RunTileThreads(size_t count, const TileSteps& steps, bool stop_at_first_error, TileStop* stop);

// Returns the index of the first tile with an error of its own. If there is none, returns the index of the first
// stopped tile (kCancelled). Returns `tiles.size()` where all are OK.
size_t FirstFailure(const std::vector<absl::Status>& tiles);

}  // namespace berth::internal

#endif  // CLIENT_SDK_PLANS_TILE_THREADS_H_
