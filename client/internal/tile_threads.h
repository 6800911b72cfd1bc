// Runs tiles, one thread each, and joins them all: what ScatterBatched does, without plan, device or daemon.

#ifndef CLIENT_INTERNAL_TILE_THREADS_H_
#define CLIENT_INTERNAL_TILE_THREADS_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "client/cancellation.h"

namespace berth::internal {

// What is done for a tile, in its own thread, in this order. All but `run` may be empty.
struct TileSteps {
  // Before it. An error is the tile's, and nothing else is done for it.
  std::function<absl::Status(size_t)> enter;
  // The tile itself; may throw.
  std::function<absl::Status(size_t)> run;
  // After it, whatever it came to. An error is the tile's where it has none yet.
  std::function<absl::Status(size_t)> leave;
  // Whether what it has done counts.
  std::function<absl::Status(size_t)> check;
};

// Thread-safe: tells those that run to stop.
class TileStop {
 public:
  // `cancellation` may be null; else it must outlive this.
  explicit TileStop(Cancellation* cancellation)
      : cancelled_(cancellation, [this] { stopped_.store(true, std::memory_order_release); }) {}

  void Stop() { stopped_.store(true, std::memory_order_release); }
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> stopped_ = false;
  const Cancellation::Hook cancelled_;
};

struct TileOutcomes {
  // Of each tile. Those that `stop` kept from beginning are kCancelled.
  std::vector<absl::Status> tiles;
  // Whether any `run` was called.
  bool begun = false;
};

// Runs `count` tiles and returns when all have ended. With `stop_at_first_error` the first that fails stops the
// others.
TileOutcomes RunTileThreads(size_t count, const TileSteps& steps, bool stop_at_first_error, TileStop* stop);

// The first by index that is an error of its own; or kCancelled where some were only stopped; else OK.
// Returns: its index; `tiles.size()` where it is OK.
size_t FirstFailure(const std::vector<absl::Status>& tiles);

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_TILE_THREADS_H_
