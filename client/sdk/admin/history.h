// ListHistory: the past and current leases of the node, with their holders and times, from the daemon's history
// (docs/reference/history.md).
//
//   absl::StatusOr<berth::v1::ListHistoryResponse> leases = berth::ListHistory(session, {});
//   for (const berth::v1::HistoryLease& lease : leases->leases()) Show(lease);

#ifndef CLIENT_SDK_ADMIN_HISTORY_H_
#define CLIENT_SDK_ADMIN_HISTORY_H_

#include <cstdint>
#include <memory>

#include <berth/session.h>

#include "absl/status/statusor.h"

namespace berth {

// Defined by "berth/v1/history.pb.h".
namespace v1 {
class ListHistoryRequest;
class ListHistoryResponse;
}  // namespace v1

// Returns the leases that match `request`, latest grants first: at most `most` leases, and a page token if there are
// more. `request`'s page size is ignored; its page token continues an earlier answer. On berthd.sock: leases of the
// caller's tenant; on the other sockets: of every tenant. Thread-safe. Errors: UNSUPPORTED if the daemon records no
// history; LIMIT; kInternal if reading the history from disk fails; INVALID_FIELD.
absl::StatusOr<v1::ListHistoryResponse> ListHistory(const std::shared_ptr<Session>& session,
                                                    const v1::ListHistoryRequest& request, uint64_t most = 1000);

}  // namespace berth

#endif  // CLIENT_SDK_ADMIN_HISTORY_H_
