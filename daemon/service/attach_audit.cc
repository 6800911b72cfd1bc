// AttachFront's part that keeps who came, who was refused, and what was given back on a channel.

#include <memory>
#include <utility>

#include "common/process.h"
#include "daemon/broker/event_loop.h"
#include "daemon/core/response.h"
#include "daemon/service/attach_front.h"
#include "daemon/service/audit_facts.h"

namespace berth::service {

std::shared_ptr<const AuditWho> AttachFront::WhoIs(const Connection& connection) const {
  const core::ProcessInfo& process = connection.peer.process;
  return ReadWho(process, OpenPeerPidfd(connection.socket.get(),
                                        {.pid = process.pid, .uid = process.uid, .gid = process.gid}));
}

void AttachFront::Audit(const char* what, const Connection& connection, const absl::Status& outcome) {
  if (audit_ == nullptr) return;
  if (!outcome.ok()) {
    return audit_->AppendRefusal(connection.peer.process.uid, EventLoop::SteadyNow(), [&] {
      return AuditRecord{.what = what,
                         .outcome = outcome,
                         .caller = {.tenant = connection.peer.tenant,
                                    .admin = connection.peer.role == Peer::Role::kAdmin},
                         .who = WhoIs(connection)};
    });
  }
  AuditRecord record = {.what = what, .who = WhoIs(connection)};
  record.caller.admin = connection.peer.role == Peer::Role::kAdmin;
  record.caller.tenant = connection.peer.tenant;
  record.caller.credentials.session = connection.session;
  record.caller.credentials.channel = connection.channel;
  if (connection.channel) {
    MutexLock lock(&mu_);
    // It may be over already.
    if (const auto member = members_.find(connection.channel); member != members_.end()) {
      record.caller.credentials.session = member->second.session;
      audit_->NoteProcess(member->second.session, connection.channel, record.who);
    }
  }
  audit_->Append(std::move(record));
}

void AttachFront::AuditGiveBack(const Connection& connection, AcquisitionId acquisition, bool if_idle,
                                const core::ReleaseResult& result) {
  if (audit_ == nullptr) return;
  AuditRecord record;
  record.what = if_idle ? AddFacts(core::ReleaseIfIdleRequest{.acquisition = acquisition}, &record.facts)
                        : AddFacts(acquisition, &record.facts);
  AddFacts(core::Response(result), &record.facts);
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
