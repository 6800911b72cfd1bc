// The history's messages to values and back.

#ifndef DAEMON_SERVICE_HISTORY_CONVERSION_H_
#define DAEMON_SERVICE_HISTORY_CONVERSION_H_

#include "absl/status/statusor.h"
#include "berth/v1/history.pb.h"
#include "daemon/core/caller.h"
#include "daemon/broker/history_keeper.h"

namespace berth::service {

// What the caller may see of what it asks for. Errors: INVALID_FIELD (kind, page_size, page_token).
absl::StatusOr<HistoryQuery> FromProto(const v1::ListHistoryRequest& request, const core::Caller& caller);
void ToProto(const HistoryLease& row, v1::HistoryLease* out);
void ToProto(const core::Page<HistoryLease>& page, v1::ListHistoryResponse* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_HISTORY_CONVERSION_H_
