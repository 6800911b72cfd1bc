// Blocks, budgets, reservations and the allocation log, between the wire and the core.

#ifndef DAEMON_SERVICE_CONVERSION_MEMORY_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_MEMORY_CONVERSION_H_

#include <berth/block_handle.h>

#include "absl/status/statusor.h"
#include "daemon/core/types/block_types.h"
#include "daemon/core/types/budget_types.h"
#include "daemon/core/types/log_record.h"
#include "google/protobuf/repeated_field.h"

namespace berth::v1 {
class Block;
class BlockHandle;
class Budget;
class LogRecord;
class Reservation;
class Usage;
}  // namespace berth::v1

namespace berth::service {

// ---- In. Errors: INVALID_FIELD naming the field.

absl::StatusOr<BlockHandle> FromProto(const v1::BlockHandle& handle);
absl::StatusOr<core::ExportKinds> ReadExportKinds(const google::protobuf::RepeatedField<int>& kinds);

// ---- Out.

void ToProto(const BlockHandle& handle, v1::BlockHandle* out);
void ToProto(const core::BlockView& view, v1::Block* out);
void ToProto(const core::BudgetView& view, v1::Budget* out);
void ToProto(const core::LogRecord& record, v1::LogRecord* out);
void ToProto(const core::ReservationView& view, v1::Reservation* out);
void ToProto(const core::UsageView& view, v1::Usage* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_MEMORY_CONVERSION_H_
