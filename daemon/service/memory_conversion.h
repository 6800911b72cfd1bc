// Blocks, budgets, reservations and the allocation log, between the wire and the core.

#ifndef DAEMON_SERVICE_MEMORY_CONVERSION_H_
#define DAEMON_SERVICE_MEMORY_CONVERSION_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/block_handle.h"
#include "daemon/core/block_types.h"
#include "daemon/core/budget_types.h"
#include "daemon/core/log_record.h"

namespace berth::service {

// ---- In. Errors: INVALID_FIELD naming the field.

absl::StatusOr<BlockHandle> FromProto(const v1::BlockHandle& handle);
absl::StatusOr<core::AllocateRequest> FromProto(const v1::AllocateBlockRequest& request, absl::Time now);
absl::StatusOr<core::PublishRequest> FromProto(const v1::PublishBlockRequest& request);
absl::StatusOr<core::UnpublishRequest> FromProto(const v1::UnpublishBlockRequest& request);
absl::StatusOr<core::ReserveRequest> FromProto(const v1::ReserveBytesRequest& request);
absl::StatusOr<core::SetBudgetRequest> FromProto(const v1::SetBudgetRequest& request);
absl::StatusOr<core::FreeRequest> FromProto(const v1::FreeBlockRequest& request);
absl::StatusOr<core::GrantRequest> FromProto(const v1::GrantBlockRequest& request);
absl::StatusOr<core::ImportRequest> FromProto(const v1::ImportBlockRequest& request);

// ---- Out.

void ToProto(const BlockHandle& handle, v1::BlockHandle* out);
void ToProto(const core::AllocateResult& result, v1::AllocateBlockResponse* out);
void ToProto(const core::FreeResult& result, v1::FreeBlockResponse* out);
void ToProto(const core::GrantResult& result, v1::GrantBlockResponse* out);
void ToProto(const core::ImportResult& result, v1::ImportBlockResponse* out);
void ToProto(const core::PublishResult& result, v1::PublishBlockResponse* out);
void ToProto(const core::UnpublishResult& result, v1::UnpublishBlockResponse* out);
void ToProto(const core::ReserveResult& result, v1::Reservation* out);
void ToProto(const core::ReapResult& result, v1::ReapBlocksResponse* out);
void ToProto(const core::ReleaseReservationResult& result, v1::ReleaseReservationResponse* out);
void ToProto(const core::BlockView& view, v1::Block* out);
void ToProto(const core::BudgetView& view, v1::Budget* out);
void ToProto(const core::LogRecord& record, v1::LogRecord* out);
void ToProto(const core::ReservationView& view, v1::Reservation* out);
void ToProto(const core::UsageView& view, v1::Usage* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_MEMORY_CONVERSION_H_
