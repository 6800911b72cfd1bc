// The two kinds of RPC: requests, which the core answers now or later, and reads.

#ifndef DAEMON_SERVICE_RPC_UNARY_CALL_H_
#define DAEMON_SERVICE_RPC_UNARY_CALL_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/response.h"
#include "daemon/service/audit/audit_log.h"
#include "daemon/service/audit/decision.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/page.h"
#include "daemon/service/conversion/status_conversion.h"
#include "daemon/service/rpc/caller.h"
#include "daemon/service/rpc/rpc_traits.h"
#include "daemon/service/rpc/service_context.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace berth::service {

// Finishes a call whose answer is known.
inline grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// Finishes a call that was decided at once, and records the decision.
inline grpc::ServerUnaryReactor* FinishDecided(const ServiceContext& context, grpc::CallbackServerContext* call,
                                               AuditRecord record, const absl::Status& status) {
  record.outcome = status;
  RecordDecision(context, *call, std::move(record));
  return FinishNow(call, status);
}

// Audit name of a call without a name of its own, if an unauthenticated caller is refused.
inline constexpr char kAnyCall[] = "call";

// Finishes a call that is refused before authentication or decoding.
inline grpc::ServerUnaryReactor* FinishRefused(const ServiceContext& context, grpc::CallbackServerContext* call,
                                               const char* what, const absl::StatusOr<core::Caller>& caller,
                                               const absl::Status& status) {
  RecordRefusal(context, *call,
                {.what = what, .outcome = status, .caller = caller.ok() ? *caller : core::Caller()});
  return FinishNow(call, status);
}

// A request that the core answers, now or later. Owns itself. `Traits` has the members of RpcDefaults.
//
// Only a request that is answered later becomes gRPC's reactor. gRPC reports the end of each reactor other than its
// default one on a thread of another pool. This costs more than all of the core's work for a permit.
template <typename Traits, typename Proto>
class PendingCall final : public grpc::ServerUnaryReactor, public Call {
 public:
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  // Submits the request to the core. Returns the handler's return value. Records `record` with the answer, unless it
  // has no name.
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
    const auto* const result = response.ok() ? &std::get<typename Traits::Result>(*response) : nullptr;
    if (result != nullptr) Traits::Encode(*result, &response_);
    // gRPC owns the context until the call is finished.
    if (*record_.what != '\0') {
      if (result != nullptr) Traits::AddResultFacts(*result, &record_.facts);
      record_.outcome = response.status();
      RecordDecision(services_, context_, std::move(record_));
    } else if (IsUnproved(response.status())) {
      RecordRefusal(services_, context_,
                    {.what = kAnyCall, .outcome = response.status(), .caller = std::move(record_.caller)});
    }
    status_ = std::move(response).status();
    if (state_.exchange(State::kAnswered, std::memory_order_acq_rel) == State::kWaits)
      Finish(ToGrpc(status_));
  }
  void OnCancel() override {
    // gRPC orders this after Submit(), but ThreadSanitizer does not see that.
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
  // Valid until the answer.
  AuditRecord record_;
  absl::Status status_;
  std::atomic<State> state_{State::kSubmitted};
};

// Serves a request to the core by its RpcTraits.
template <typename Request, typename Message, typename Response>
grpc::ServerUnaryReactor* SubmitRequest(const ServiceContext& services, grpc::CallbackServerContext* context,
                                        const Message& message, Response* response) {
  using Traits = RpcTraits<Request>;
  const absl::StatusOr<Request> request = Traits::Decode(message, EventLoop::SteadyNow());
  const absl::StatusOr<core::Caller> caller = services.callers->Identify(*context);
  if (!caller.ok() || !request.ok()) {
    return FinishRefused(services, context, Traits::kAuditName == nullptr ? kAnyCall : Traits::kAuditName, caller,
                         caller.ok() ? request.status() : caller.status());
  }
  const auto& tag = message.request();
  AuditRecord record = {.caller = *caller};
  if constexpr (Traits::kAuditName != nullptr) {
    record.what = Traits::kAuditName;
    Traits::AddFacts(*request, &record.facts);
    // A retried request is answered and recorded again.
    record.facts.emplace_back("request", std::to_string(tag.sequence()));
  }
  return PendingCall<Traits, Response>::Submit(
      services, context, response, std::move(record),
      [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
        (core.*Traits::kMethod)(now, id, *caller, FromProto(tag), *request, effects);
      });
}

// Serves a read by an authenticated caller: `look(core, caller)` returns plain values under the broker's lock, as a
// StatusOr; `encode` fills the response with them afterwards.
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

// Like ServeLook(), for one page of a list: `list(core, caller, page)` returns a core::Page, `encode` takes one entry.
template <typename Request, typename Response, typename List, typename Encode>
grpc::ServerUnaryReactor* ServePage(const ServiceContext& services, grpc::CallbackServerContext* context,
                                    const Request& request, Response* response, List list, Encode encode) {
  const absl::StatusOr<core::PageRequest> page = ReadPage(request.page_size(), request.page_token());
  using Listed = decltype(list(std::declval<const core::Core&>(), std::declval<core::Caller>(), *page));
  return ServeLook(
      services, context,
      [&](const core::Core& core, const core::Caller& caller) -> absl::StatusOr<Listed> {
        BERTH_RETURN_IF_ERROR(page.status());
        return list(core, caller, *page);
      },
      [&](const Listed& listed) {
        for (const auto& each : listed) encode(each);
        response->set_next_page_token(NextPageToken(listed));
      });
}

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_UNARY_CALL_H_
