#include <string>

#include "daemon/service/conversion.h"
#include "daemon/service/services.h"
#include "daemon/service/unary_call.h"

namespace berth::service {

grpc::ServerUnaryReactor* SessionService::GetSession(grpc::CallbackServerContext* context,
                                                     const v1::GetSessionRequest* request,
                                                     v1::Session* response) {
  return ServeLook(
      context_, context,
      [&](const core::Core& core, const core::Caller& caller) {
        return core.GetSession(caller, SessionId(request->session()));
      },
      [&](const core::SessionView& view) { ToProto(view, response); });
}

grpc::ServerUnaryReactor* SessionService::ListSessions(grpc::CallbackServerContext* context,
                                                       const v1::ListSessionsRequest* request,
                                                       v1::ListSessionsResponse* response) {
  return ServePage(
      context_, context, *request, response,
      [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
        return core.ListSessions(caller, page);
      },
      [&](const core::SessionView& view) { ToProto(view, response->add_sessions()); });
}

grpc::ServerUnaryReactor* SessionService::EndSession(grpc::CallbackServerContext* context,
                                                     const v1::EndSessionRequest* request,
                                                     v1::Session* response) {
  const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
  if (!caller.ok()) return FinishRefused(context_, context, "end_session", caller, caller.status());
  absl::StatusOr<core::SessionView> view;
  context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    view = core.EndSession(now, *caller, SessionId(request->session()), effects);
  });
  if (view.ok()) ToProto(*view, response);
  const uint64_t ended = request->session() == 0 ? caller->credentials.session.value() : request->session();
  return FinishDecided(context_, context,
                       {.what = "end_session", .facts = {{"ended", AuditId(ended)}}, .caller = *caller}, view.status());
}

grpc::ServerUnaryReactor* SessionService::ForgetRequest(grpc::CallbackServerContext* context,
                                                        const v1::ForgetRequestRequest* request,
                                                        v1::ForgetRequestResponse* response) {
  const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
  if (!caller.ok()) return FinishRefused(context_, context, "forget", caller, caller.status());
  return PendingCall<core::ForgetResult, v1::ForgetRequestResponse>::Submit(
      context_, context, response,
      {.what = "forget", .facts = {{"request", std::to_string(request->sequence())}}, .caller = *caller},
      [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
        core.Forget(now, id, *caller, request->sequence(), effects);
      });
}

}  // namespace berth::service
