// Conversion between the history's messages and values.

#ifndef DAEMON_SERVICE_CONVERSION_HISTORY_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_HISTORY_CONVERSION_H_

#include "absl/status/statusor.h"
#include "berth/v1/history.pb.h"
#include "daemon/broker/history_writer.h"
#include "daemon/core/types/caller.h"

namespace berth::service {

// Converts a request, restricted to what the caller may see. Errors: INVALID_FIELD (kind, page_size, page_token).
absl::StatusOr<HistoryQuery> FromProto(const v1::ListHistoryRequest& request, const core::Caller& caller);
void ToProto(const HistoryLease& past, v1::HistoryLease* out);
void ToProto(const core::Page<HistoryLease>& page, v1::ListHistoryResponse* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_HISTORY_CONVERSION_H_
