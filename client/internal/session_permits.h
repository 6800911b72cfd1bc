// The daemon's side of permits over a session's gRPC and its word: what is asked, what becomes of the answer, and how it
// is given back.

#ifndef CLIENT_INTERNAL_SESSION_PERMITS_H_
#define CLIENT_INTERNAL_SESSION_PERMITS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "berth/v1/permit.pb.h"
#include "client/internal/holding.h"
#include "client/internal/permit_cache.h"
#include "client/internal/session_core.h"

namespace berth::internal {

// Has the daemon send this process's page where it has none yet. Afterwards core.permit_cache().open() says whether
// permits may be kept.
void OpenPermitCache(SessionCore& core);

// The holding of what was taken from the cache, remembered by the calling thread under `key`.
Holding* HoldKept(const std::shared_ptr<SessionCore>& core, const HoldingKey& key, PermitCache::Use use);

// The holding of what the daemon granted to `request`; remembered by the calling thread, or by none.
Holding* HoldGranted(const std::shared_ptr<SessionCore>& core, HoldingKey key,
                     const v1::AcquirePermitRequest& request, const v1::AcquirePermitResponse& response,
                     bool remembered = true);

// A holder key unlike every other of the session.
std::string FreshHolderKey();

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_SESSION_PERMITS_H_
