// Permits and pools, between the wire and the core.

#ifndef DAEMON_SERVICE_CONVERSION_PERMIT_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_PERMIT_CONVERSION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/types/device_types.h"
#include "daemon/core/types/permit_types.h"
#include "google/protobuf/map.h"
#include "google/protobuf/repeated_field.h"

namespace berth::v1 {
class Permit;
class PlacedDevice;
class Pool;
class PoolUse;
class SetPoolRequest;
class Stray;
class Waiter;
class WaitExplanation;
}  // namespace berth::v1

namespace berth::service {

// ---- In. Errors: INVALID_FIELD naming the field.

// Returns the pool's name; "gpu-tests" for an empty name.
std::string PoolName(const std::string& name);
// Validates the holder key and the priority, which every request for permits has.
absl::Status CheckHolder(const std::string& holder_key, int32_t priority);
absl::StatusOr<core::PoolChange> FromProto(const v1::SetPoolRequest& request);

// ---- Out.

void ToProto(const core::PlacedDevice& device, v1::PlacedDevice* out);
// Sets the variables for processes that may use these devices and no other.
void SetEnvironment(const std::vector<std::string>& uuids, google::protobuf::Map<std::string, std::string>* out);
void ToProto(const core::PoolView& view, v1::Pool* out);
// Converts all fields except the pool's name.
void ToProto(const core::PoolChange& change, v1::SetPoolRequest* out);
void ToProto(const core::PoolUse& use, v1::PoolUse* out);
void ToProto(const core::PermitView& view, v1::Permit* out);
// Sets Permit.stopped, for the first 256 processes. Reads /proc, so it is not called under the broker's lock.
void MarkStopped(google::protobuf::RepeatedPtrField<v1::Permit>* permits);
void ToProto(const core::WaiterView& view, v1::Waiter* out);
void ToProto(const core::WaitView& view, v1::WaitExplanation* out);
void ToProto(const core::StrayView& view, v1::Stray* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_PERMIT_CONVERSION_H_
