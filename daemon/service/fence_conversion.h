// Streams and the uses of blocks, between the wire and the core.

#ifndef DAEMON_SERVICE_FENCE_CONVERSION_H_
#define DAEMON_SERVICE_FENCE_CONVERSION_H_

#include "absl/status/statusor.h"
#include "berth/v1/fence.pb.h"
#include "daemon/core/fence_types.h"

namespace berth::service {

// ---- In. Errors: INVALID_FIELD naming the field.

absl::StatusOr<core::PrepareUseRequest> FromProto(const v1::PrepareUseRequest& request);

// ---- Out.

void ToProto(const core::OpenStreamResult& result, v1::OpenStreamResponse* out);
void ToProto(const core::CloseStreamResult& result, v1::CloseStreamResponse* out);
void ToProto(const core::Prepared& result, v1::PrepareUseResponse* out);
void ToProto(const core::FinishUseResult& result, v1::FinishUseResponse* out);
void ToProto(const core::AbandonUseResult& result, v1::AbandonUseResponse* out);
void ToProto(const core::StreamView& view, v1::FenceStream* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_FENCE_CONVERSION_H_
