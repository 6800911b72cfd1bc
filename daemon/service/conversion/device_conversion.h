// Devices, from the core to the wire.

#ifndef DAEMON_SERVICE_CONVERSION_DEVICE_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_DEVICE_CONVERSION_H_

#include <vector>

#include "berth/v1/inventory.pb.h"
#include "berth/v1/resources.pb.h"
#include "daemon/broker/device_monitor_client.h"
#include "daemon/core/types/device_types.h"
#include "google/protobuf/repeated_field.h"

namespace berth::service {

void ToProto(const core::ByteCounts& bytes, v1::ByteCounts* out);
void ToProto(const core::DeviceView& view, v1::Device* out);
void ToProto(const std::vector<DeviceCondition::Event>& events,
             google::protobuf::RepeatedPtrField<v1::DeviceEvent>* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_DEVICE_CONVERSION_H_
