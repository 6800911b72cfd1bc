#include "daemon/service/attach/side_calls.h"

#include <string.h>

#include <string>
#include <utility>
#include <variant>

#include <berth/error.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.pb.h"
#include "common/status_macros.h"
#include "daemon/broker/event_loop.h"
#include "daemon/core/types/response.h"
#include "daemon/service/audit/decision.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/permit_conversion.h"
#include "daemon/service/conversion/status_conversion.h"
#include "daemon/service/rpc/permit_requests.h"
#include "google/protobuf/message_lite.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace berth::service {
namespace {

using Outcome = attach::Answer::Outcome;
using Traits = RpcTraits<core::AcquireRequest>;

// Sends `body`, or that it is too long for a message.
void Send(const Requester& requester, uint64_t number, Outcome outcome, const google::protobuf::MessageLite& body) {
  const size_t bytes = body.ByteSizeLong();
  attach::Answer answer = {.outcome = outcome, .number = number};
  if (bytes > attach::Answer::kMaxBytes || !body.SerializeToArray(answer.body, sizeof(answer.body))) {
    answer.outcome = Outcome::kTooLong;
  } else {
    answer.bytes = static_cast<uint32_t>(bytes);
  }
  requester.send(std::as_bytes(std::span(&answer, 1)).first(attach::Answer::BytesOf(answer.bytes)));
}

void SendRefusal(const Requester& requester, uint64_t number, const absl::Status& why) {
  const grpc::Status refusal = ToGrpc(why);
  google::rpc::Status body;
  if (refusal.error_details().empty() || !body.ParseFromString(refusal.error_details())) {
    body.set_code(refusal.error_code());
    body.set_message(refusal.error_message());
  }
  Send(requester, number, Outcome::kRefused, body);
}

template <typename Proto, typename View>
void SendView(const Requester& requester, uint64_t number, const absl::StatusOr<View>& view) {
  if (!view.ok()) return SendRefusal(requester, number, view.status());
  Proto body;
  ToProto(*view, &body);
  Send(requester, number, Outcome::kDone, body);
}

absl::Status Malformed(const char* expected, uint32_t bytes) {
  return Refuse(Reason::kInvalidField, "{field} of {value} bytes; expected {limit}",
                {{"field", "body"}, {"value", bytes}, {"limit", expected}});
}

}  // namespace

// An acquire without an answer.
class SideCalls::Waiting final : public Call {
 public:
  Waiting(SideCalls* calls, uint64_t number, uint64_t sequence, Requester requester, AuditRecord record)
      : calls_(*calls),
        id_(calls->broker_.NewCall()),
        number_(number),
        sequence_(sequence),
        requester_(std::move(requester)),
        record_(std::move(record)) {}
  ~Waiting() { calls_.broker_.EndCall(); }

  CallId id() const { return id_; }
  // Number of the request among the channel's requests.
  uint64_t sequence() const { return sequence_; }

  void Answer(absl::StatusOr<core::Response> response) override {
    // Taken first: the process may ask again as soon as it has the answer.
    const std::unique_ptr<Waiting> self = calls_.Take(requester_.caller.credentials.channel);
    const auto* const result = response.ok() ? &std::get<core::AcquireResult>(*response) : nullptr;
    if (result != nullptr) Traits::AddResultFacts(*result, &record_.facts);
    record_.outcome = response.status();
    calls_.Record(requester_, std::move(record_));
    if (result == nullptr) return SendRefusal(requester_, number_, response.status());
    v1::AcquirePermitResponse body;
    Traits::Encode(*result, &body);
    Send(requester_, number_, Outcome::kDone, body);
  }

 private:
  SideCalls& calls_;
  const CallId id_;
  const uint64_t number_;
  const uint64_t sequence_;
  const Requester requester_;
  AuditRecord record_;
};

SideCalls::SideCalls(Broker* broker) : broker_(*broker) {}

SideCalls::~SideCalls() = default;

absl::Status SideCalls::Serve(const attach::Ask& ask, Requester requester) {
  switch (ask.method) {
    case attach::Method::kAcquirePermit:
      return Acquire(ask, std::move(requester));
    case attach::Method::kExplainWait:
      return ExplainWait(ask, requester);
    case attach::Method::kEndSession:
      return EndSession(ask, requester);
    case attach::Method::kCancel:
      if (ask.bytes != 0) return Malformed("none", ask.bytes);
      Cancel(requester.caller.credentials.channel);
      return absl::OkStatus();
    case attach::Method::kSkip:
      return Skip(ask, requester);
  }
  return Refuse(Reason::kInvalidField, "{field} {value}; expected {limit}",
                {{"field", "method"}, {"value", static_cast<uint32_t>(ask.method)}, {"limit", "1 to 5"}});
}

absl::Status SideCalls::Acquire(const attach::Ask& ask, Requester requester) {
  v1::AcquirePermitRequest request;
  if (!request.ParseFromArray(ask.body, static_cast<int>(ask.bytes))) {
    return Malformed("an AcquirePermitRequest", ask.bytes);
  }
  const absl::StatusOr<core::AcquireRequest> wanted = Traits::Decode(request, EventLoop::SteadyNow());
  AuditRecord record = {.what = Traits::kAuditName, .caller = requester.caller};
  if (!wanted.ok()) {
    record.outcome = wanted.status();
    Record(requester, std::move(record));
    SendRefusal(requester, ask.number, wanted.status());
    return absl::OkStatus();
  }
  Traits::AddFacts(*wanted, &record.facts);
  record.facts.emplace_back("request", absl::StrCat(request.request().sequence()));
  const core::Caller caller = requester.caller;
  auto owned = std::make_unique<Waiting>(this, ask.number, request.request().sequence(), std::move(requester),
                                         std::move(record));
  Waiting* const call = owned.get();
  {
    MutexLock lock(&mu_);
    if (!waiting_.try_emplace(caller.credentials.channel, std::move(owned)).second) {
      return Refuse(Reason::kInvalidField, "{field}: channel {value} already has a waiting acquire; expected {limit}",
                    {{"field", "method"}, {"value", caller.credentials.channel.value()}, {"limit", "one at a time"}});
    }
  }
  broker_.Submit(call->id(), call, [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
    core.Acquire(now, id, caller, FromProto(request.request()), *wanted, effects);
  });
  return absl::OkStatus();
}

absl::Status SideCalls::ExplainWait(const attach::Ask& ask, const Requester& requester) {
  if (ask.bytes != 0) return Malformed("none", ask.bytes);
  uint64_t sequence = 0;
  {
    MutexLock lock(&mu_);
    const auto it = waiting_.find(requester.caller.credentials.channel);
    if (it != waiting_.end()) sequence = it->second->sequence();
  }
  const absl::StatusOr<core::WaitView> view =
      broker_.Read([&](const core::Core& core) -> absl::StatusOr<core::WaitView> {
        BERTH_RETURN_IF_ERROR(core.Authenticate(requester.caller));
        return core.ExplainWait(requester.caller, core.FindWaiter(requester.caller, sequence).value_or(0));
      });
  if (IsUnproved(view.status()))
    Record(requester, {.what = "call", .outcome = view.status(), .caller = requester.caller});
  SendView<v1::WaitExplanation>(requester, ask.number, view);
  return absl::OkStatus();
}

absl::Status SideCalls::EndSession(const attach::Ask& ask, const Requester& requester) {
  v1::EndSessionRequest request;
  if (!request.ParseFromArray(ask.body, static_cast<int>(ask.bytes)) || request.session() != 0) {
    return Malformed("an EndSessionRequest of the own session", ask.bytes);
  }
  absl::StatusOr<core::SessionView> view;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    view = core.EndSession(now, requester.caller, SessionId(), effects);
  });
  Record(requester, {.what = "end_session",
                     .facts = {{"ended", absl::StrCat(requester.caller.credentials.session.value())}},
                     .outcome = view.status(),
                     .caller = requester.caller});
  SendView<v1::Session>(requester, ask.number, view);
  return absl::OkStatus();
}

absl::Status SideCalls::Skip(const attach::Ask& ask, const Requester& requester) {
  if (ask.bytes != 0) return Malformed("none", ask.bytes);
  absl::Status may;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    may = core.Authenticate(requester.caller);
    if (may.ok()) core.ProcessesStopped(now, {requester.caller.credentials.channel}, effects);
  });
  if (IsUnproved(may)) Record(requester, {.what = "call", .outcome = may, .caller = requester.caller});
  if (!may.ok()) {
    SendRefusal(requester, ask.number, may);
    return absl::OkStatus();
  }
  const attach::Answer answer = {.number = ask.number};
  requester.send(std::as_bytes(std::span(&answer, 1)).first(attach::Answer::BytesOf(0)));
  return absl::OkStatus();
}

void SideCalls::Cancel(ChannelId channel) {
  CallId id;
  {
    MutexLock lock(&mu_);
    const auto it = waiting_.find(channel);
    if (it == waiting_.end()) return;
    id = it->second->id();
  }
  broker_.Cancel(id);
}

std::unique_ptr<SideCalls::Waiting> SideCalls::Take(ChannelId channel) {
  MutexLock lock(&mu_);
  const auto it = waiting_.find(channel);
  std::unique_ptr<Waiting> waiting = std::move(it->second);
  waiting_.erase(it);
  return waiting;
}

void SideCalls::Record(const Requester& requester, AuditRecord record) const {
  if (audit_ == nullptr) return;
  if (!IsUnproved(record.outcome)) return audit_->Append(std::move(record));
  audit_->AppendRefusal(requester.caller.tenant, EventLoop::SteadyNow(), [&] {
    record.facts.emplace_back("claimed_session", absl::StrCat(requester.caller.credentials.session.value()));
    record.caller = {.tenant = requester.caller.tenant, .admin = requester.caller.admin};
    record.who = requester.who();
    return std::move(record);
  });
}

}  // namespace berth::service
