// Encodes a device constraint for the wire.

#ifndef CLIENT_SDK_DEVICES_DEVICE_CONSTRAINT_H_
#define CLIENT_SDK_DEVICES_DEVICE_CONSTRAINT_H_

#include <cstdlib>
#include <optional>
#include <string>

#include <berth/bytes.h>
#include <berth/visible_devices.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "berth/v1/placement.pb.h"
#include "common/label.h"
#include "common/status_macros.h"

namespace berth::internal {

// Returns the pick for "any", "best", "highest-score", "round-robin", or a UUID.
inline v1::DeviceWish::Pick PickOf(const std::string& device) {
  if (device == "any") return v1::DeviceWish::ANY;
  if (device == "best") return v1::DeviceWish::BEST;
  if (device == "highest-score") return v1::DeviceWish::HIGHEST_SCORE;
  if (device == "round-robin") return v1::DeviceWish::ROUND_ROBIN;
  return v1::DeviceWish::NAMED;
}

// Returns this process's CUDA_VISIBLE_DEVICES, also where `berth run` has set it. It bounds what this process itself
// uses: plans and blocks. A permit may be for another process, to which `berth run` names other devices.
inline std::optional<std::string> DevicesOfProcess() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? std::nullopt : std::optional<std::string>(visible);
}

// Fills in the restriction to the devices of a CUDA_VISIBLE_DEVICES, if there is one.
template <typename Message>
void FillVisible(const std::optional<std::string>& visible, Message* out) {
  // The daemon accepts no more (daemon/service/conversion/placement_conversion.h). The end of a longer value becomes an
  // ellipsis, which names no device, as does a byte that is not UTF-8.
  constexpr size_t kMost = 4096;
  constexpr size_t kEllipsis = 3;
  if (!visible.has_value()) return;
  const size_t limit = visible->size() > kMost ? kMost - kEllipsis : kMost;
  out->set_visible_devices(ToMessage(*visible, limit));
}

// `device` is a pick or a device's name, `visible` a CUDA_VISIBLE_DEVICES. The other fields of the constraint come from
// `options`.
template <typename Options>
void FillConstraint(const std::string& device, const Options& options, const std::optional<std::string>& visible,
                    v1::DeviceWish* out) {
  out->set_pick(PickOf(device));
  if (out->pick() == v1::DeviceWish::NAMED) out->set_uuid(device);
  out->set_min_free_bytes(options.min_free.count());
  out->set_min_capability(options.min_capability);
  out->set_island_of(options.island_of);
  for (const std::string& name : options.among) out->add_among(name);
  if constexpr (requires { options.wait_for_device; }) out->set_wait_for_device(options.wait_for_device);
  FillVisible(visible, out);
}

// Fills in the device constraint of a permit, or of a gang's permit. Also sends the visible devices where no device is
// requested, because a pool of devices picks one in any case.
template <typename Options, typename Request>
void FillPermitConstraint(const Options& options, Request* out) {
  const std::optional<std::string> visible = VisibleDevices();
  if (!options.device.empty()) {
    FillConstraint(options.device, options, visible, out->mutable_device());
    out->mutable_device()->set_declared_bytes(options.declared.count());
  } else if (visible.has_value()) {
    FillVisible(visible, out->mutable_device());
  }
}

// Returns whether a device is requested; an empty `device` requests none. Errors: kInvalidArgument (a constraint
// without a device, or an invalid device name).
template <typename Options>
absl::StatusOr<bool> HasConstraint(const std::string& device, const Options& options, Bytes declared = Bytes()) {
  if (device.empty() && (options.min_free > Bytes() || declared > Bytes() || options.min_capability > 0 ||
                         !options.island_of.empty() || !options.among.empty())) {
    return absl::InvalidArgumentError(
        "min_free, declared, min_capability, island_of and among need a device: set `device`, e.g. to \"any\"");
  }
  BERTH_RETURN_IF_ERROR(ValidateLabel("device", device));
  BERTH_RETURN_IF_ERROR(ValidateLabel("island_of", options.island_of));
  for (const std::string& name : options.among) BERTH_RETURN_IF_ERROR(ValidateLabel("among", name));
  return !device.empty();
}

}  // namespace berth::internal

#endif  // CLIENT_SDK_DEVICES_DEVICE_CONSTRAINT_H_
