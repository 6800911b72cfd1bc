// AttachServer: RPCs on side channels, and records for the audit log.

#include <string.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <berth/error.h>

#include "common/os/process.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/attach/attach_server.h"
#include "daemon/service/rpc/permit_requests.h"

namespace berth::service {

// ---- AttachServer: the RPCs that processes without gRPC call on their side channels --------------------------

namespace {

// Returns the message as an Ask with the body that it counts, or nothing.
std::optional<attach::Ask> AsAsk(const Message& message) {
  attach::Ask ask;
  const size_t size = message.bytes.size();
  if (size < attach::Ask::kHeadBytes || size > sizeof(ask)) return std::nullopt;
  memcpy(&ask, message.bytes.data(), size);
  const bool whole = ask.bytes <= attach::Ask::kMaxBytes && size == attach::Ask::BytesOf(ask.bytes);
  return whole ? std::optional(ask) : std::nullopt;
}

}  // namespace

void AttachServer::OnAsk(const ConnectionPtr& connection, const Message& message) {
  const std::optional<attach::Ask> ask = AsAsk(message);
  if (!ask.has_value()) {
    return Refuse(connection, berth::Refuse(Reason::kInvalidField, "{field} of {value} bytes; expected {limit}",
                                            {{"field", "ask"},
                                             {"value", message.bytes.size()},
                                             {"limit", "a body of the length that the message states"}}));
  }
  const Peer& peer = connection->peer;
  Requester requester = {.caller = {.credentials = {.session = SessionId(ask->session),
                                                    .channel = connection->channel,
                                                    .secret = ask->secret},
                                    .tenant = peer.tenant,
                                    .admin = peer.role == Peer::Role::kAdmin},
                         .send =
                             [connection](std::span<const std::byte> answer) {
                               // A process that reads no answers is ended, and the loop sees the end.
                               if (!SendMessage(connection->socket.get(), answer).ok()) {
                                 ::shutdown(connection->socket.get(), SHUT_RDWR);
                               }
                             },
                         .who = [this, connection] { return WhoIs(*connection); }};
  if (const absl::Status served = calls_.Serve(*ask, std::move(requester)); !served.ok()) Refuse(connection, served);
}

// ---- AttachServer: records accepted and refused connections, and permits returned on a channel ---------------

std::shared_ptr<const AuditWho> AttachServer::WhoIs(const Connection& connection) const {
  const core::ProcessInfo& process = connection.peer.process;
  return ReadWho(process, OpenPeerPidfd(connection.socket.get(),
                                        {.pid = process.pid, .uid = process.uid, .gid = process.gid}));
}

void AttachServer::Audit(const char* what, const Connection& connection, const absl::Status& outcome) {
  if (audit_ == nullptr) return;
  if (!outcome.ok()) {
    return audit_->AppendRefusal(connection.peer.tenant, EventLoop::SteadyNow(), [&] {
      return AuditRecord{.what = what,
                         .outcome = outcome,
                         .caller = {.tenant = connection.peer.tenant,
                                    .admin = connection.peer.role == Peer::Role::kAdmin},
                         .who = WhoIs(connection)};
    });
  }
  AuditRecord record;
  record.what = what;
  record.who = WhoIs(connection);
  record.caller.admin = connection.peer.role == Peer::Role::kAdmin;
  record.caller.tenant = connection.peer.tenant;
  record.caller.credentials.session = connection.session;
  record.caller.credentials.channel = connection.channel;
  if (connection.channel) {
    MutexLock lock(&mu_);
    // The channel may have ended already.
    if (const auto member = members_.find(connection.channel); member != members_.end()) {
      record.caller.credentials.session = member->second.session;
      audit_->RecordProcess(member->second.session, connection.channel, record.who);
    }
  }
  audit_->Append(std::move(record));
}

void AttachServer::AuditGiveBack(const Connection& connection, AcquisitionId acquisition,
                                 const core::ReleaseResult& result) {
  if (audit_ == nullptr) return;
  AuditRecord record;
  using Traits = RpcTraits<AcquisitionId>;
  record.what = Traits::kAuditName;
  Traits::AddFacts(acquisition, &record.facts);
  Traits::AddResultFacts(result, &record.facts);
  record.caller.tenant = connection.peer.tenant;
  record.caller.admin = connection.peer.role == Peer::Role::kAdmin;
  record.caller.credentials.channel = connection.channel;
  {
    MutexLock lock(&mu_);
    const auto member = members_.find(connection.channel);
    if (member != members_.end()) record.caller.credentials.session = member->second.session;
  }
  audit_->Append(std::move(record));
}

}  // namespace berth::service
