// Acquires a permit asynchronously, without a waiting thread.

#ifndef CLIENT_SDK_PERMITS_ACQUIRE_CALL_H_
#define CLIENT_SDK_PERMITS_ACQUIRE_CALL_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/transport/call_limits.h"
#include "client/sdk/transport/session_core.h"

namespace berth::internal {

// Called with the result. The callee must release what was granted.
using AcquireDone = std::function<void(const absl::Status&, const v1::AcquirePermitRequest&,
                                       const v1::AcquirePermitResponse&)>;

struct AcquireCall {
  std::shared_ptr<SessionCore> core;
  // The request without its number.
  v1::AcquirePermitRequest request;
  CallLimits limits;
  // Called once, on a thread of gRPC, or before StartAcquire() returns where the request cannot be sent.
  AcquireDone done;
};

// Sends the request, and retries while the daemon is away or restarting, as SessionCore::Call() does.
void StartAcquire(AcquireCall call);

}  // namespace berth::internal

#endif  // CLIENT_SDK_PERMITS_ACQUIRE_CALL_H_
