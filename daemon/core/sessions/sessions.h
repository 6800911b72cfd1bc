// Sessions: the sessions and their processes, from the open to the end, with their deliveries and the tenants' usage.

#ifndef DAEMON_CORE_SESSIONS_SESSIONS_H_
#define DAEMON_CORE_SESSIONS_SESSIONS_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <berth/end_notice.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/secret.h"
#include "common/wire/attach_wire.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/core.h"
#include "daemon/core/memory/byte_budget.h"
#include "daemon/core/requests/request_memory.h"
#include "daemon/core/sessions/mailbox.h"
#include "daemon/core/sessions/session_table.h"
#include "daemon/core/sessions/tenant_use.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/session_types.h"
#include "daemon/core/types/shared_count.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Sessions {
 public:
  // `core` outlives the manager.
  explicit Sessions(Managers& core);

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  void EndProcess(StepContext& step, ChannelId channel);
  absl::StatusOr<SessionView> GetSession(const Caller& caller, SessionId session) const;
  Page<SessionView> ListSessions(const Caller& caller, const PageRequest& page) const;
  absl::StatusOr<SessionId> OpenSession(absl::Time now, const Secret& secret, const Tenant& tenant,
                                        absl::string_view label, const ProcessInfo& opener, bool of_operator);
  absl::StatusOr<ChannelId> JoinSession(absl::Time, SessionId session, const Secret& secret, const Tenant& tenant,
                                        const ProcessInfo& process);
  void LifelineHungUp(StepContext& step, SessionId session, EndReason why);
  void ChannelHungUp(StepContext& step, ChannelId channel);
  void RecordSessionCredentials(absl::Time, SessionId session, uint64_t inode);
  void Detach(StepContext& step, const Core::Detached& detached);
  void EndIfUnused(StepContext& step, SessionId session);
  // EndIfUnused() applies no more.
  void StopAwaiting(SessionId session);
  absl::Status CheckRejoin(SessionId session, const Secret& secret, const Tenant& tenant, ChannelId channel) const;
  void Rejoined(StepContext& step, ChannelId channel);
  void ReplaceChannel(StepContext& step, ChannelId earlier, ChannelId channel);
  void DeliveryAcknowledged(StepContext& step, ChannelId channel, uint64_t number);
  absl::StatusOr<SessionView> EndSession(StepContext& step, const Caller& caller, SessionId session);

  // ---- For the other managers -------------------------------------------------------------------------------

  absl::StatusOr<const Session*> Authenticate(const Caller& caller) const;
  // Returns the refusal of a request of `channel`, whose session has ended. The refusal states why, until the process
  // has acknowledged its notice.
  absl::Status RefuseEnded(const Session& session, ChannelId channel) const;
  // Whether the session has ended and holds nothing: every process is gone, or has hung up and imports no block.
  // Unless every process is gone, the session also holds no permit.
  bool IsOver(const Session& session) const;
  // IsOver() without the fence values of its streams, which change without a call.
  bool HoldsNothing(const Session& session) const;
  // Erases `session` if it is over. Where only fence values prevent that, schedules another check.
  void FinishIfOver(StepContext& step, const Session& session);
  // Ends the sessions whose unseen processes have not returned in time.
  void EndAwaited(StepContext& step);
  absl::Time next_deadline() const {
    return awaited_by_time_.empty() ? absl::InfiniteFuture() : awaited_by_time_.begin()->first;
  }
  void PostToSession(StepContext& step, SessionId session, const attach::Delivery& delivery);
  // Checks that the channel may get one more fd.
  absl::Status MayDeliver(const Channel& channel) const;
  void ListSessionRecords(std::vector<RecordKey>* keys) const;
  bool WriteSessionRecord(const RecordKey& key, ArchiveWriter& archive) const;
  void ReadSessionRecord(const RecordKey& key, ArchiveReader& archive);
  void ResumeSessions(StepContext& step);
  absl::Status CheckTenants() const;

  const SessionTable& table() const { return sessions_; }
  // As the table's methods of that name.
  Session& Change(SessionId id) { return sessions_.Change(id); }
  Channel& ChangeChannel(ChannelId id) { return sessions_.ChangeChannel(id); }
  RequestMemory& RequestsOf(ChannelId id) { return sessions_.RequestsOf(id); }
  std::map<uint32_t, ByteBudget>& BudgetsOf(SessionId id) { return sessions_.BudgetsOf(id); }
  // The deliveries to processes, and the tenants' usage of units and places. Both have no other table beside them.
  Mailboxes& mailboxes() { return mailboxes_; }
  TenantUse& tenant_use() { return tenant_use_; }

 private:
  // Notifies the session's processes of `end`, except for the process that requested it.
  void BeginEnd(StepContext& step, const Session& session, const EndNotice& end, ChannelId asked_by = ChannelId());
  void GiveUpUnproven(StepContext& step, SessionId session);
  // EndIfUnused() applies again after Limits::unseen_patience.
  void Await(const StepContext& step, SessionId session);
  bool HasConnectedProcess(const Session& session) const;
  // Whether the session has a process whose end nothing proves.
  bool HasUnprovenProcess(const Session& session) const;
  // Whether the session has what must stay counted as long as its unseen processes may live.
  bool HoldsLease(const Session& session) const;
  SessionView ViewSession(const Session& session) const;

  Managers& core_;
  SessionTable sessions_;
  SharedCount session_places_;
  TenantUse tenant_use_;
  Mailboxes mailboxes_;
  // Sessions to which EndIfUnused() applies, and the time of the next attempt.
  std::map<SessionId, absl::Time> awaited_;
  std::set<std::pair<absl::Time, SessionId>> awaited_by_time_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_SESSIONS_SESSIONS_H_
