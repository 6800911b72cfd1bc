// Acquires a permit without a thread that waits.

#ifndef CLIENT_INTERNAL_ACQUIRE_CALL_H_
#define CLIENT_INTERNAL_ACQUIRE_CALL_H_

#include <functional>
#include <memory>
#include <stop_token>

#include "absl/status/status.h"
#include "berth/v1/permit.pb.h"
#include "client/internal/call_limits.h"
#include "client/internal/session_core.h"

namespace berth::internal {

// What came of it. What was granted is the callee's to give back.
using AcquireDone = std::function<void(const absl::Status&, const v1::AcquirePermitRequest&,
                                       const v1::AcquirePermitResponse&)>;

struct AcquireCall {
  std::shared_ptr<SessionCore> core;
  // Without its number.
  v1::AcquirePermitRequest request;
  CallLimits limits;
  std::stop_token stop;
  // Called once, from a thread of gRPC's, or before StartAcquire() returns where nothing can be sent.
  AcquireDone done;
};

// Sends the request, again where the daemon was away or restarting, as SessionCore::Call() does.
void StartAcquire(AcquireCall call);

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_ACQUIRE_CALL_H_
