// ListHistory: who had what on the node, when and for how long, as the daemon has kept it (docs/history.md).
//
//   absl::StatusOr<berth::v1::ListHistoryResponse> leases = berth::ListHistory(session);
//   for (const berth::v1::HistoryLease& lease : leases->leases()) Show(lease);

#ifndef CLIENT_HISTORY_H_
#define CLIENT_HISTORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "berth/v1/history.pb.h"
#include "client/session.h"

namespace berth {

// The leases that there were, by `request` but for its pages, the latest grants first: at most `most`, and a page token
// in the answer where there are more. On berthd.sock the caller's tenant's, on the other sockets everybody's.
// Thread-safe. Errors: UNSUPPORTED where the daemon keeps none; LIMIT; kInternal where its disk does not give it back;
// INVALID_FIELD.
absl::StatusOr<v1::ListHistoryResponse> ListHistory(const std::shared_ptr<Session>& session,
                                                    v1::ListHistoryRequest request = {}, uint64_t most = 1000);

}  // namespace berth

#endif  // CLIENT_HISTORY_H_
