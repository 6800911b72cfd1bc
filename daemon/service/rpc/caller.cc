#include "daemon/service/rpc/caller.h"

#include <berth/error.h>

#include "common/status_macros.h"
#include "common/wire/session_credentials.h"
#include "grpcpp/server_context.h"

namespace berth::service {

absl::StatusOr<std::shared_ptr<const Peer>> CallerSource::FindPeer(const grpc::CallbackServerContext& context) const {
  return connections_.Find(context.peer());
}

std::shared_ptr<const AuditWho> CallerSource::ReadPeer(const grpc::CallbackServerContext& context,
                                                       const Peer& peer) const {
  return ReadWho(peer.process, connections_.OpenPidfd(context.peer()));
}

absl::StatusOr<core::Caller> CallerSource::Identify(const grpc::CallbackServerContext& context) const {
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<const Peer> peer, FindPeer(context));
  core::Caller caller = {.tenant = peer->tenant,
                         .admin = peer->role == Peer::Role::kAdmin,
                         .observer = peer->role == Peer::Role::kObserver};
  // An observer has no session, and any session in its metadata is ignored.
  if (caller.observer) return caller;
  const auto& metadata = context.client_metadata();
  const auto header = metadata.find(kCredentialsHeader);
  const absl::string_view bytes = header == metadata.end()
                                      ? absl::string_view()
                                      : absl::string_view(header->second.data(), header->second.size());
  const absl::StatusOr<Credentials> credentials = DecodeCredentials(bytes);
  if (!credentials.ok()) {
    return Refuse(Reason::kBadCredentials, "metadata {header}: {size} bytes of credentials, expected 32",
                  {{"header", kCredentialsHeader}, {"size", bytes.size()}});
  }
  caller.credentials = *credentials;
  // A caller on the operators' socket without a session may only read, which needs no session.
  if (caller.admin && !credentials->session) {
    caller.admin = false;
    caller.observer = true;
  }
  return caller;
}

}  // namespace berth::service
