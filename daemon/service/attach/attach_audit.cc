// AttachServer: records accepted and refused connections, and permits returned on a channel.

#include <memory>
#include <utility>

#include "common/os/process.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/attach/attach_server.h"
#include "daemon/service/rpc/permit_requests.h"

namespace berth::service {

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
