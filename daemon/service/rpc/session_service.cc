// SessionService: sessions, and the forgetting of requests.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/rpc/services.h"
#include "daemon/service/rpc/unary_call.h"

namespace berth::service {
namespace {

struct ForgetTraits : RpcDefaults<core::ForgetResult> {
  static void Encode(const core::ForgetResult& result, v1::ForgetRequestResponse* out) {
    out->set_outcome(static_cast<v1::ForgetRequestResponse::Outcome>(result.outcome));
  }
  static void AddResultFacts(const core::ForgetResult& result, AuditFacts* facts) {
    switch (result.outcome) {
      case core::ForgetOutcome::kCancelled:
        return void(facts->emplace_back("forgotten", "cancelled"));
      case core::ForgetOutcome::kUndone:
        return void(facts->emplace_back("forgotten", "undone"));
      case core::ForgetOutcome::kRemembered:
      case core::ForgetOutcome::kNothingToDo:
        return void(facts->emplace_back("forgotten", "nothing"));
    }
  }
};

class SessionService final : public v1::SessionService::CallbackService {
 public:
  explicit SessionService(ServiceContext context) : context_(context) {}

  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context, const v1::GetSessionRequest* request,
                                       v1::Session* response) override {
    return ServeLook(
        context_, context,
        [&](const core::Core& core, const core::Caller& caller) {
          return core.GetSession(caller, SessionId(request->session()));
        },
        [&](const core::SessionView& view) { ToProto(view, response); });
  }

  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context, const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override {
    return ServePage(
        context_, context, *request, response,
        [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
          return core.ListSessions(caller, page);
        },
        [&](const core::SessionView& view) { ToProto(view, response->add_sessions()); });
  }

  grpc::ServerUnaryReactor* EndSession(grpc::CallbackServerContext* context, const v1::EndSessionRequest* request,
                                       v1::Session* response) override {
    const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
    if (!caller.ok()) return FinishRefused(context_, context, "end_session", caller, caller.status());
    absl::StatusOr<core::SessionView> view;
    context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      view = core.EndSession(now, *caller, SessionId(request->session()), effects);
    });
    if (view.ok()) ToProto(*view, response);
    const uint64_t ended = request->session() == 0 ? caller->credentials.session.value() : request->session();
    return FinishDecided(context_, context,
                         {.what = "end_session", .facts = {{"ended", absl::StrCat(ended)}}, .caller = *caller},
                         view.status());
  }

  grpc::ServerUnaryReactor* ForgetRequest(grpc::CallbackServerContext* context,
                                          const v1::ForgetRequestRequest* request,
                                          v1::ForgetRequestResponse* response) override {
    const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
    if (!caller.ok()) return FinishRefused(context_, context, "forget", caller, caller.status());
    return PendingCall<ForgetTraits, v1::ForgetRequestResponse>::Submit(
        context_, context, response,
        {.what = "forget", .facts = {{"request", std::to_string(request->sequence())}}, .caller = *caller},
        [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
          core.Forget(now, id, *caller, request->sequence(), effects);
        });
  }

 private:
  const ServiceContext context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSessionService(const ServiceContext& context) {
  return std::make_unique<SessionService>(context);
}

}  // namespace berth::service
