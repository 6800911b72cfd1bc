// TileDevices: the devices on which a scatter's tiles run, as this process sees them. TileDevices finds and retains
// them before the first tile begins, and makes them current in each tile's thread.

#ifndef CLIENT_SDK_PLANS_TILE_DEVICES_H_
#define CLIENT_SDK_PLANS_TILE_DEVICES_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/driver.h"

namespace berth::internal {

struct TileDevice {
  // Whether it is a CUDA device. A host device has no driver; its ordinal is the daemon's.
  bool cuda = false;
  std::string uuid;
  int ordinal = 0;
};

// Thread-compatible. The tiles' threads call Enter() and Leave().
class TileDevices {
 public:
  using GetDriver = std::function<absl::StatusOr<cuda::Driver*>()>;

  // Finds each device in this process and retains its primary context. Calls `get_driver` where any device is a CUDA
  // device.
  // Errors, with nothing retained: UNSUPPORTED where there is no CUDA; NOT_FOUND for a device that this process does
  // not see; those of the driver.
  static absl::StatusOr<TileDevices> Hold(std::vector<TileDevice> devices, const GetDriver& get_driver);
  TileDevices(TileDevices&& other) noexcept;
  TileDevices& operator=(TileDevices&&) = delete;
  // Releases the contexts.
  ~TileDevices();

  // This process's ordinal of the tile's device.
  int ordinal(size_t tile) const { return devices_[tile].ordinal; }
  // Makes the tile's context current in the calling thread. Requires: no context is current there.
  absl::Status Enter(size_t tile) const;
  // Waits for all work queued in the tile's context. Errors: the failure of that work.
  absl::Status Leave(size_t tile) const;

 private:
  explicit TileDevices(std::vector<TileDevice> devices) : devices_(std::move(devices)) {}

  // Null where no device is a CUDA device.
  cuda::Driver* driver_ = nullptr;
  std::vector<TileDevice> devices_;
  // Primary contexts by ordinal.
  std::map<int, cuda::Context> contexts_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_PLANS_TILE_DEVICES_H_
