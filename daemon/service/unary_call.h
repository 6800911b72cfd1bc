// The two shapes of an RPC: one that the core answers, now or later, and one that only looks.

#ifndef DAEMON_SERVICE_UNARY_CALL_H_
#define DAEMON_SERVICE_UNARY_CALL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "daemon/broker/broker.h"
#include "daemon/core/caller.h"
#include "daemon/core/page.h"
#include "daemon/core/response.h"
#include "daemon/service/audit_facts.h"
#include "daemon/service/audit_log.h"
#include "daemon/service/caller.h"
#include "daemon/service/conversion.h"
#include "daemon/service/decision.h"
#include "daemon/service/fence_conversion.h"
#include "daemon/service/memory_conversion.h"
#include "daemon/service/module_conversion.h"
#include "daemon/service/page.h"
#include "daemon/service/permit_conversion.h"
#include "daemon/service/plan_conversion.h"
#include "daemon/service/service_context.h"
#include "daemon/service/status_conversion.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace berth::service {

// Finishes a call that has its answer already.
inline grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// Finishes a call that was decided at once, and has the decision kept.
inline grpc::ServerUnaryReactor* FinishDecided(const ServiceContext& context, grpc::CallbackServerContext* call,
                                               AuditRecord record, const absl::Status& status) {
  record.outcome = status;
  KeepDecision(context, *call, std::move(record));
  return FinishNow(call, status);
}

// What the audit log calls a call that has no word of its own, where that is refused to somebody unknown.
inline constexpr char kAnyCall[] = "call";

// Finishes a call that is refused before it is known who asks, or what.
inline grpc::ServerUnaryReactor* FinishRefused(const ServiceContext& context, grpc::CallbackServerContext* call,
                                               const char* what, const absl::StatusOr<core::Caller>& caller,
                                               const absl::Status& status) {
  KeepRefusal(context, *call,
              {.what = what, .outcome = status, .caller = caller.ok() ? *caller : core::Caller()});
  return FinishNow(call, status);
}

// A request that the core answers, now or later. Owns itself.
//
// Only one that is answered later becomes gRPC's reactor: gRPC tells the end of each reactor that is not its own on a
// thread of another pool, which costs more than all that the core does for a permit.
template <typename Result, typename Proto>
class PendingCall final : public grpc::ServerUnaryReactor, public Call {
 public:
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  // Puts the request to the core. Returns what the handler returns.
  // `record` is kept with the answer, but for one without a word.
  static grpc::ServerUnaryReactor* Submit(const ServiceContext& services, grpc::CallbackServerContext* context,
                                          Proto* response, AuditRecord record, Broker::RequestStep step) {
    Broker* const broker = services.broker;
    auto* const call = new PendingCall(services, *context, response, std::move(record));
    broker->Submit(call->id_, call, step);
    State submitted = State::kSubmitted;
    if (call->state_.compare_exchange_strong(submitted, State::kWaits, std::memory_order_acq_rel))
      return call;
    const absl::Status status = std::move(call->status_);
    delete call;
    broker->EndCall();
    return FinishNow(context, status);
  }

  void Answer(absl::StatusOr<core::Response> response) override {
    if (response.ok()) ToProto(std::get<Result>(*response), &response_);
    // gRPC has the context until the call is finished.
    if (*record_.what != '\0') {
      if (response.ok()) AddFacts(*response, &record_.facts);
      record_.outcome = response.status();
      KeepDecision(services_, context_, std::move(record_));
    } else if (IsUnproved(response.status())) {
      KeepRefusal(services_, context_,
                  {.what = kAnyCall, .outcome = response.status(), .caller = std::move(record_.caller)});
    }
    status_ = std::move(response).status();
    if (state_.exchange(State::kAnswered, std::memory_order_acq_rel) == State::kWaits)
      Finish(ToGrpc(status_));
  }
  void OnCancel() override {
    // What orders this after Submit() is gRPC's own, which ThreadSanitizer does not see.
    state_.load(std::memory_order_acquire);
    broker_.Cancel(id_);
  }
  void OnDone() override {
    broker_.EndCall();
    delete this;
  }

 private:
  enum class State { kSubmitted, kWaits, kAnswered };

  PendingCall(const ServiceContext& services, const grpc::CallbackServerContext& context, Proto* response,
              AuditRecord record)
      : services_(services),
        context_(context),
        broker_(*services.broker),
        id_(broker_.NewCall()),
        response_(*response),
        record_(std::move(record)) {}

  const ServiceContext& services_;
  const grpc::CallbackServerContext& context_;
  Broker& broker_;
  const CallId id_;
  Proto& response_;
  // Until the answer.
  AuditRecord record_;
  absl::Status status_;
  std::atomic<State> state_{State::kSubmitted};
};

// Serves a request of the core's: `method` is one of its members, `request` its converted argument.
template <typename Result, typename Request, typename Proto, typename Method>
grpc::ServerUnaryReactor* SubmitRequest(const ServiceContext& services, grpc::CallbackServerContext* context,
                                        const v1::RequestTag& tag, const absl::StatusOr<Request>& request,
                                        Proto* response, Method method) {
  const absl::StatusOr<core::Caller> caller = services.callers->Identify(*context);
  if (!caller.ok() || !request.ok()) {
    std::vector<AuditFact> unsaid;
    const char* const what = AddFacts(Request(), &unsaid);
    return FinishRefused(services, context, what == nullptr ? kAnyCall : what, caller,
                         caller.ok() ? request.status() : caller.status());
  }
  AuditRecord record = {.caller = *caller};
  if (const char* const what = AddFacts(*request, &record.facts); what != nullptr) {
    record.what = what;
    // A request that is sent again is answered, and kept, again.
    record.facts.emplace_back("request", std::to_string(tag.sequence()));
  }
  return PendingCall<Result, Proto>::Submit(
      services, context, response, std::move(record),
      [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
        std::invoke(method, core, now, id, *caller, FromProto(tag), *request, effects);
      });
}

// Serves a call that only looks, by an authenticated caller: `look(core, caller)` takes plain values under the broker's
// lock, as a StatusOr, and `encode` fills the response with them afterwards.
template <typename Look, typename Encode>
grpc::ServerUnaryReactor* ServeLook(const ServiceContext& services, grpc::CallbackServerContext* context, Look look,
                                    Encode encode) {
  const absl::StatusOr<core::Caller> caller = services.callers->Identify(*context);
  if (!caller.ok()) return FinishRefused(services, context, kAnyCall, caller, caller.status());
  using Seen = decltype(look(std::declval<const core::Core&>(), *caller));
  const Seen seen = services.broker->Read([&](const core::Core& core) -> Seen {
    BERTH_RETURN_IF_ERROR(core.Authenticate(*caller));
    return look(core, *caller);
  });
  if (seen.ok()) encode(*seen);
  if (IsUnproved(seen.status())) return FinishRefused(services, context, kAnyCall, caller, seen.status());
  return FinishNow(context, seen.status());
}

// The same for one page of a list: `list(core, caller, page)` returns a core::Page, `encode` takes one of its rows.
template <typename Request, typename Response, typename List, typename Encode>
grpc::ServerUnaryReactor* ServePage(const ServiceContext& services, grpc::CallbackServerContext* context,
                                    const Request& request, Response* response, List list, Encode encode) {
  const absl::StatusOr<core::PageRequest> page = ReadPage(request.page_size(), request.page_token());
  using Rows = decltype(list(std::declval<const core::Core&>(), std::declval<core::Caller>(), *page));
  return ServeLook(
      services, context,
      [&](const core::Core& core, const core::Caller& caller) -> absl::StatusOr<Rows> {
        BERTH_RETURN_IF_ERROR(page.status());
        return list(core, caller, *page);
      },
      [&](const Rows& rows) {
        for (const auto& row : rows) encode(row);
        response->set_next_page_token(NextPageToken(rows));
      });
}

}  // namespace berth::service

#endif  // DAEMON_SERVICE_UNARY_CALL_H_
