// Devices, from the core to the wire.

#ifndef DAEMON_SERVICE_DEVICE_CONVERSION_H_
#define DAEMON_SERVICE_DEVICE_CONVERSION_H_

#include "berth/v1/resources.pb.h"
#include "daemon/core/device_types.h"

namespace berth::service {

void ToProto(const core::ByteCounts& bytes, v1::ByteCounts* out);
void ToProto(const core::DeviceView& view, v1::Device* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_DEVICE_CONVERSION_H_
