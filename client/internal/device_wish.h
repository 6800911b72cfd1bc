// The device that a permit is to name, on the wire.

#ifndef CLIENT_INTERNAL_DEVICE_WISH_H_
#define CLIENT_INTERNAL_DEVICE_WISH_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "berth/v1/permit.pb.h"
#include "common/bytes.h"

namespace berth::internal {

// `device` is "any", "best" or a UUID.
inline void FillWish(const std::string& device, Bytes min_free, Bytes declared, v1::DeviceWish* out) {
  const bool any = device == "any";
  const bool named = !any && device != "best";
  out->set_pick(any ? v1::DeviceWish::ANY : named ? v1::DeviceWish::NAMED : v1::DeviceWish::BEST);
  if (named) out->set_uuid(device);
  out->set_min_free_bytes(min_free.count());
  out->set_declared_bytes(declared.count());
}

// Whether a device is wished for; an empty one is none. Errors: kInvalidArgument (bytes of no device).
inline absl::StatusOr<bool> Wishes(const std::string& device, Bytes min_free, Bytes declared) {
  if (device.empty() && (min_free > Bytes() || declared > Bytes())) {
    return absl::InvalidArgumentError("bytes are asked of no device");
  }
  return !device.empty();
}

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_DEVICE_WISH_H_
