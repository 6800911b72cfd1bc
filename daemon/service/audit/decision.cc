#include "daemon/service/audit/decision.h"

#include <memory>
#include <utility>

#include <berth/error.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/transport/peer.h"
#include "grpcpp/server_context.h"

namespace berth::service {
namespace {

// Replaces the claimed credentials by what the connection proves, and adds the claim as a fact.
void NamePeer(const ServiceContext& services, const grpc::CallbackServerContext& call, const Peer& peer,
              AuditRecord* record) {
  const Credentials& claimed = record->caller.credentials;
  if (claimed.session) record->facts.emplace_back("claimed_session", absl::StrCat(claimed.session.value()));
  if (claimed.channel) record->facts.emplace_back("claimed_channel", absl::StrCat(claimed.channel.value()));
  record->caller = {.tenant = peer.tenant,
                    .admin = peer.role == Peer::Role::kAdmin,
                    .observer = peer.role == Peer::Role::kObserver};
  record->who = services.callers->ReadPeer(call, peer);
}

}  // namespace

bool IsUnproved(const absl::Status& outcome) {
  return IsRefusal(outcome, Reason::kBadCredentials) || IsRefusal(outcome, Reason::kNotJoined);
}

void RecordDecision(const ServiceContext& services, const grpc::CallbackServerContext& call, AuditRecord record) {
  // Without a session the caller was not authenticated, except for an observer.
  if (IsUnproved(record.outcome) || (!record.caller.observer && !record.caller.credentials.session)) {
    return RecordRefusal(services, call, std::move(record));
  }
  const core::Caller& caller = record.caller;
  if (!caller.observer && !services.audit->Knows(caller.credentials.session, caller.credentials.channel)) {
    // The session is the caller's; the channel is not.
    const SessionId session = caller.credentials.session;
    const absl::StatusOr<std::shared_ptr<const Peer>> peer = services.callers->FindPeer(call);
    record.caller.credentials.session = SessionId();
    if (peer.ok()) NamePeer(services, call, **peer, &record);
    record.caller.credentials = {.session = session};
  }
  services.audit->Append(std::move(record));
}

void RecordRefusal(const ServiceContext& services, const grpc::CallbackServerContext& call, AuditRecord record) {
  const absl::StatusOr<std::shared_ptr<const Peer>> peer = services.callers->FindPeer(call);
  // The refused caller has disconnected.
  if (!peer.ok()) return;
  services.audit->AppendRefusal((*peer)->tenant, EventLoop::SteadyNow(), [&] {
    NamePeer(services, call, **peer, &record);
    return std::move(record);
  });
}

}  // namespace berth::service
