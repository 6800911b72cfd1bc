// Between the wire and the core: one conversion in, which validates, and one out. No rule of Berth's lives here.

#ifndef DAEMON_SERVICE_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/fence.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.pb.h"
#include "daemon/core/log_record.h"
#include "daemon/core/types.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace berth::service {

// ---- In. Errors: INVALID_FIELD naming the field.
// ---------------------------------------------------------------------

core::RequestTag FromProto(const v1::RequestTag& tag);
// `now` turns a wait into a time.
absl::StatusOr<core::AcquireRequest> FromProto(const v1::AcquirePermitRequest& request, absl::Time now);
absl::StatusOr<core::AllocateRequest> FromProto(const v1::AllocateBlockRequest& request, absl::Time now);
absl::StatusOr<core::PublishRequest> FromProto(const v1::PublishBlockRequest& request);
absl::StatusOr<core::UnpublishRequest> FromProto(const v1::UnpublishBlockRequest& request);
absl::StatusOr<core::ReserveRequest> FromProto(const v1::ReserveBytesRequest& request);
absl::StatusOr<core::SetBudgetRequest> FromProto(const v1::SetBudgetRequest& request);
absl::StatusOr<core::FreeRequest> FromProto(const v1::FreeBlockRequest& request);
absl::StatusOr<core::GrantRequest> FromProto(const v1::GrantBlockRequest& request);
absl::StatusOr<core::ImportRequest> FromProto(const v1::ImportBlockRequest& request);
absl::StatusOr<core::PrepareUseRequest> FromProto(const v1::PrepareUseRequest& request);
absl::StatusOr<core::PoolChange> FromProto(const v1::SetPoolRequest& request);
// An empty name is "gpu-tests".
std::string PoolName(const std::string& name);

// ---- Out
// -------------------------------------------------------------------------------------------------------------

void ToProto(const core::AcquireResult& result, v1::AcquirePermitResponse* out);
void ToProto(const core::ReleaseResult& result, v1::ReleasePermitResponse* out);
void ToProto(const core::AllocateResult& result, v1::AllocateBlockResponse* out);
void ToProto(const core::FreeResult& result, v1::FreeBlockResponse* out);
void ToProto(const core::GrantResult& result, v1::GrantBlockResponse* out);
void ToProto(const core::ImportResult& result, v1::ImportBlockResponse* out);
void ToProto(const core::PublishResult& result, v1::PublishBlockResponse* out);
void ToProto(const core::UnpublishResult& result, v1::UnpublishBlockResponse* out);
void ToProto(const core::ReserveResult& result, v1::Reservation* out);
void ToProto(const core::ReapResult& result, v1::ReapBlocksResponse* out);
void ToProto(const core::ReleaseReservationResult& result, v1::ReleaseReservationResponse* out);
void ToProto(const core::ForgetResult& result, v1::ForgetRequestResponse* out);
void ToProto(const core::OpenStreamResult& result, v1::OpenStreamResponse* out);
void ToProto(const core::CloseStreamResult& result, v1::CloseStreamResponse* out);
void ToProto(const core::Prepared& result, v1::PrepareUseResponse* out);
void ToProto(const core::FinishUseResult& result, v1::FinishUseResponse* out);
void ToProto(const core::AbandonUseResult& result, v1::AbandonUseResponse* out);
void ToProto(const core::StreamView& view, v1::FenceStream* out);
void ToProto(const core::SessionView& view, v1::Session* out);
void ToProto(const core::PoolView& view, v1::Pool* out);
void ToProto(const core::PermitView& view, v1::Permit* out);
void ToProto(const core::WaiterView& view, v1::Waiter* out);
void ToProto(const core::WaitView& view, v1::WaitExplanation* out);
void ToProto(const core::BlockView& view, v1::Block* out);
void ToProto(const core::DeviceView& view, v1::Device* out);
void ToProto(const core::BudgetView& view, v1::Budget* out);
void ToProto(const core::LogRecord& record, v1::LogRecord* out);
void ToProto(const core::ReservationView& view, v1::Reservation* out);
void ToProto(const core::UsageView& view, v1::Usage* out);

void ToProto(absl::Time time, google::protobuf::Timestamp* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_H_
