// TileDevices: the devices that a scatter's tiles run on, as this process sees them: found and held before the first
// tile begins, made current in each tile's thread.

#ifndef CLIENT_INTERNAL_TILE_DEVICES_H_
#define CLIENT_INTERNAL_TILE_DEVICES_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/driver.h"

namespace berth::internal {

// A tile's device.
struct TileDevice {
  // A host device has no driver, and keeps the daemon's ordinal.
  bool cuda = false;
  std::string uuid;
  int ordinal = 0;
};

// Thread-compatible; Enter() and Leave() are called from the tiles' threads.
class TileDevices {
 public:
  using GetDriver = std::function<absl::StatusOr<cuda::Driver*>()>;

  // Finds each device in this process and holds its primary context. `get_driver` is called where there is one of
  // CUDA's.
  // Errors, with nothing held: UNSUPPORTED where there is no CUDA; NOT_FOUND for a device that this process does not
  // see; the driver's.
  static absl::StatusOr<TileDevices> Hold(std::vector<TileDevice> devices, const GetDriver& get_driver);
  TileDevices(TileDevices&& other) noexcept;
  TileDevices& operator=(TileDevices&&) = delete;
  // Lets go of the contexts.
  ~TileDevices();

  // This process's ordinal.
  int ordinal(size_t tile) const { return devices_[tile].ordinal; }
  // Makes the tile's context current in the calling thread, which had none.
  absl::Status Enter(size_t tile) const;
  // Waits for what was queued in it. Errors: what that came to.
  absl::Status Leave(size_t tile) const;

 private:
  explicit TileDevices(std::vector<TileDevice> devices) : devices_(std::move(devices)) {}

  // Null where no device is of CUDA's.
  cuda::Driver* driver_ = nullptr;
  std::vector<TileDevice> devices_;
  // By ordinal.
  std::map<int, cuda::Context> contexts_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_TILE_DEVICES_H_
