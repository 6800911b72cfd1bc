// The device that somebody is to get, on the wire.

#ifndef CLIENT_INTERNAL_DEVICE_WISH_H_
#define CLIENT_INTERNAL_DEVICE_WISH_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "berth/v1/placement.pb.h"
#include "common/bytes.h"

namespace berth::internal {

// Of "any", "best", "highest-score", "round-robin", or a UUID.
inline v1::DeviceWish::Pick PickOf(const std::string& device) {
  if (device == "any") return v1::DeviceWish::ANY;
  if (device == "best") return v1::DeviceWish::BEST;
  if (device == "highest-score") return v1::DeviceWish::HIGHEST_SCORE;
  if (device == "round-robin") return v1::DeviceWish::ROUND_ROBIN;
  return v1::DeviceWish::NAMED;
}

// `device` is a pick or a UUID; the rest of a wish stands in `options`.
template <typename Options>
void FillWish(const std::string& device, const Options& options, v1::DeviceWish* out) {
  out->set_pick(PickOf(device));
  if (out->pick() == v1::DeviceWish::NAMED) out->set_uuid(device);
  out->set_min_free_bytes(options.min_free.count());
  out->set_min_capability(options.min_capability);
  out->set_island_of(options.island_of);
}

// Whether a device is wished for; an empty one is none. Errors: kInvalidArgument (something is asked of no device).
template <typename Options>
absl::StatusOr<bool> Wishes(const std::string& device, const Options& options, Bytes declared = Bytes()) {
  if (device.empty() && (options.min_free > Bytes() || declared > Bytes() || options.min_capability > 0 ||
                         !options.island_of.empty())) {
    return absl::InvalidArgumentError("bytes, a capability or an island are asked of no device");
  }
  return !device.empty();
}

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_DEVICE_WISH_H_
