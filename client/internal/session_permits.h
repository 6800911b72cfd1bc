// The daemon's side of permits over a session's gRPC and its word: what is asked, what becomes of the answer, and how
// it is given back.

#ifndef CLIENT_INTERNAL_SESSION_PERMITS_H_
#define CLIENT_INTERNAL_SESSION_PERMITS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "berth/v1/permit.pb.h"
#include "client/internal/holding.h"
#include "client/internal/permit_cache.h"
#include "client/internal/permit_watch.h"
#include "client/internal/session_core.h"

namespace berth::internal {

// Has the daemon send this process's page where it has none yet. Afterwards core.permit_cache().open() says whether
// permits may be kept.
void OpenPermitCache(SessionCore& core);

// The holding of what was taken from the cache, remembered by the calling thread under `key`.
Holding* HoldKept(const std::shared_ptr<SessionCore>& core, const HoldingKey& key, PermitCache::Use use);

// A grant of the daemon's.
struct Granted {
  HoldingKey key;
  // The holder key that the daemon was told; empty is that of `key`.
  std::string known_as = {};
  uint64_t units = 1;
  const v1::AcquirePermitResponse& response;
  // Of the permit, where anybody wants to hear.
  std::function<void(PermitEvent)> on_event = {};
  // By the calling thread; or by none, which takes a holder key.
  bool remembered = true;
};
Holding* HoldGranted(const std::shared_ptr<SessionCore>& core, Granted granted);

// A holder key unlike every other of the session.
std::string FreshHolderKey();

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_SESSION_PERMITS_H_
