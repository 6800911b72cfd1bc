// Device constraints: converts the wire's to the core's.

#ifndef DAEMON_SERVICE_CONVERSION_PLACEMENT_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_PLACEMENT_CONVERSION_H_

#include <optional>
#include <string>

#include <berth/error.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/core/types/placement_types.h"

namespace berth::v1 {
class DeviceWish;
}  // namespace berth::v1

namespace berth::service {

// `field` is the constraint's field path in its request. Errors: INVALID_FIELD.
absl::StatusOr<core::DeviceConstraint> FromProto(absl::string_view field, const v1::DeviceWish& constraint);

// Returns the caller's CUDA_VISIBLE_DEVICES, if the message has it. Errors: INVALID_FIELD.
template <typename Message>
absl::StatusOr<std::optional<std::string>> VisibleOf(const Message& message) {
  constexpr size_t kMost = 4096;
  if (!message.has_visible_devices()) return std::nullopt;
  if (message.visible_devices().size() <= kMost) return message.visible_devices();
  return Refuse(
      Reason::kInvalidField, "{field}: {value} bytes; expected {limit} at most",
      {{"field", "visible_devices"}, {"value", message.visible_devices().size()}, {"limit", kMost}});
}

// Returns "any", "best", …, or the UUID that it names; empty for none.
std::string NameOf(const core::DeviceConstraint& constraint);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_PLACEMENT_CONVERSION_H_
