// The two shapes of an RPC: one that the core answers, now or later, and one that only looks.

#ifndef DAEMON_SERVICE_UNARY_CALL_H_
#define DAEMON_SERVICE_UNARY_CALL_H_

#include <functional>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/broker/broker.h"
#include "daemon/core/types.h"
#include "daemon/service/caller.h"
#include "daemon/service/conversion.h"
#include "daemon/service/status_conversion.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace berth::service {

// A request that the core answers. Owns itself: made by Submit(), gone after gRPC is done with it.
template <typename Result, typename Proto>
class PendingCall final : public grpc::ServerUnaryReactor, public Call {
 public:
  PendingCall(Broker* broker, Proto* response)
      : broker_(*broker), id_(broker->NewCall()), response_(*response) {}

  void Submit(Broker::RequestStep step) { broker_.Submit(id_, this, step); }

  void Answer(absl::StatusOr<core::Response> response) override {
    if (response.ok()) ToProto(std::get<Result>(*response), &response_);
    Finish(ToGrpc(response.status()));
  }
  void OnCancel() override { broker_.Cancel(id_); }
  void OnDone() override { delete this; }

 private:
  Broker& broker_;
  const CallId id_;
  Proto& response_;
};

// Finishes a call that has its answer already.
inline grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// Serves a request of the core's: `method` is one of its members, `request` its converted argument.
template <typename Result, typename Request, typename Proto, typename Method>
grpc::ServerUnaryReactor* SubmitRequest(const CallerSource& callers, Broker* broker,
                                        grpc::CallbackServerContext* context, const v1::RequestTag& tag,
                                        const absl::StatusOr<Request>& request, Proto* response,
                                        Method method) {
  const absl::StatusOr<core::Caller> caller = callers.Identify(*context);
  if (!caller.ok()) return FinishNow(context, caller.status());
  if (!request.ok()) return FinishNow(context, request.status());
  auto* const call = new PendingCall<Result, Proto>(broker, response);
  call->Submit([&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
    std::invoke(method, core, now, id, *caller, FromProto(tag), *request, effects);
  });
  return call;
}

// Serves a call that only looks, by an authenticated caller: `look(core, caller)` fills the response and says how it
// went.
template <typename Look>
grpc::ServerUnaryReactor* ServeLook(const CallerSource& callers, Broker* broker,
                                    grpc::CallbackServerContext* context, Look look) {
  const absl::StatusOr<core::Caller> caller = callers.Identify(*context);
  if (!caller.ok()) return FinishNow(context, caller.status());
  return FinishNow(context, broker->Read([&](const core::Core& core) {
    const absl::Status known = core.Authenticate(*caller);
    return known.ok() ? look(core, *caller) : known;
  }));
}

}  // namespace berth::service

#endif  // DAEMON_SERVICE_UNARY_CALL_H_
