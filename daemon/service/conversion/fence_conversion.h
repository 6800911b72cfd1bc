// Streams, from the core to the wire.

#ifndef DAEMON_SERVICE_CONVERSION_FENCE_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_FENCE_CONVERSION_H_

#include "berth/v1/fence.pb.h"
#include "daemon/core/types/fence_types.h"

namespace berth::service {

void ToProto(const core::StreamView& view, v1::FenceStream* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_FENCE_CONVERSION_H_
