// Permits over a session's gRPC and its permit slot: requests, answers and releases.

#ifndef CLIENT_SDK_PERMITS_SESSION_PERMITS_H_
#define CLIENT_SDK_PERMITS_SESSION_PERMITS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/permits/held_permit.h"
#include "client/sdk/permits/permit_cache.h"
#include "client/sdk/permits/permit_watch.h"
#include "client/sdk/transport/session_core.h"

namespace berth::internal {

// Requests this process's page from the daemon where the process has none yet. Afterwards core.permit_cache().open()
// returns whether permits may be cached.
void OpenPermitCache(SessionCore& core);

// Makes the held permit of a permit taken from the cache. The calling thread remembers it under `key`.
HeldPermit* HoldCached(const std::shared_ptr<SessionCore>& core, const HeldPermitKey& key, PermitCache::Use use);

// A grant by the daemon.
struct Granted {
  HeldPermitKey key;
  // The holder key sent to the daemon; empty: that of `key`.
  std::string known_as = {};
  uint64_t units = 1;
  const v1::AcquirePermitResponse& response;
  // Callback for the permit's events; may be empty.
  std::function<void(const PermitEvent&)> on_event = {};
  // Whether the calling thread remembers the held permit. If false, a holder key is required.
  bool remembered = true;
};
HeldPermit* HoldGranted(const std::shared_ptr<SessionCore>& core, Granted granted);

// Returns a holder key that is unique within the session.
std::string FreshHolderKey();

}  // namespace berth::internal

#endif  // CLIENT_SDK_PERMITS_SESSION_PERMITS_H_
