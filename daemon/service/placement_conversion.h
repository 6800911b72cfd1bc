// Wishes for devices: the wire's to the core's.

#ifndef DAEMON_SERVICE_PLACEMENT_CONVERSION_H_
#define DAEMON_SERVICE_PLACEMENT_CONVERSION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "berth/v1/placement.pb.h"
#include "daemon/core/placement_types.h"

namespace berth::service {

// `field` is where the wish stands in its request. Errors: INVALID_FIELD.
absl::StatusOr<core::DeviceWish> FromProto(absl::string_view field, const v1::DeviceWish& wish);

// "any", "best", …, or the UUID that it names; empty for none.
std::string NameOf(const core::DeviceWish& wish);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_PLACEMENT_CONVERSION_H_
