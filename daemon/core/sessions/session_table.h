// SessionTable: the sessions, and the channels of their processes. Records and indexes only; the core handles the
// consequences of an end. Each is a ledger record, which outlives the broker. Thread-compatible.

#ifndef DAEMON_CORE_SESSIONS_SESSION_TABLE_H_
#define DAEMON_CORE_SESSIONS_SESSION_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <berth/ids.h>

#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/secret.h"
#include "daemon/core/memory/byte_budget.h"
#include "daemon/core/requests/request_memory.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/journal.h"
#include "daemon/core/types/session_types.h"
#include "daemon/core/types/shared_count.h"

namespace berth::core {

struct Session {
  SessionId id;
  // Rises with every session: the order of the list.
  uint64_t number = 0;
  Secret secret;
  Tenant tenant;
  std::string label;
  SessionState state = SessionState::kActive;
  absl::Time opened_at;
  ProcessInfo opener;
  // Inode of the session credentials (common/wire/session_credentials.h), which descendants inherit with the lifeline;
  // 0 for none.
  uint64_t session_credentials = 0;
  // The lifeline's socket was lost while holders may have lived. They hold the session credentials open, but no socket
  // shows them.
  bool detached = false;
  // The session was opened on the operators' socket. Not persisted: a later broker treats it as the user's.
  bool of_operator = false;
  // Weight of its channels' RequestMemory, in bytes.
  uint64_t answer_bytes = 0;
  // Channels of processes not yet proved dead.
  std::set<ChannelId> channels;
  // The session's budgets by device ordinal; no entry before the first use of a device.
  std::map<uint32_t, ByteBudget> budgets;

  Claimant claimant() const { return {.user = UserOf(tenant), .of_operator = of_operator}; }
};

// Excludes channels and budgets.
template <typename Archive>
void Fields(Archive& archive, Session& value) {
  archive(value.number, value.secret, value.tenant, value.label, value.state, value.opened_at, value.opener);
  archive.Since(3, value.session_credentials, value.detached);
}

struct Channel {
  ChannelId id;
  SessionId session;
  ProcessInfo process;
  bool hung_up = false;
  // The process was sent its fence page.
  bool has_page = false;
  // The pidfd was lost, and the process cannot be found by its pid: nothing will prove its death.
  bool unproven = false;
  RequestMemory requests;
};

// Excludes the requests.
template <typename Archive>
void Fields(Archive& archive, Channel& value) {
  archive(value.session, value.process, value.hung_up, value.has_page);
  archive.Since(3, value.unproven);
}

class SessionTable {
 public:
  // `journal` outlives the table. Answers may weigh `answer_bytes` for all users together, and `reserve` more for
  // operators.
  explicit SessionTable(Journal* journal, const AnswerLimits& answers = {},
                        uint64_t answer_bytes = SharedCount::kUnlimited, uint64_t reserve = SharedCount::kUnlimited)
      : journal_(journal), answers_(answers), answer_bytes_("answer_bytes", answer_bytes, reserve) {}

  // Opens the session with the next number. Its address is stable until it is erased. Requires: ids that are not in
  // use.
  const Session& Open(Session session);
  // Requires: the session has no channels.
  void Erase(SessionId id);
  // Returns null for an unknown id.
  const Session* Find(SessionId id) const;
  // Returns the session for modification, except of its channels. Requires: the session exists.
  Session& Change(SessionId id);
  // Returns the session's budgets, which have their own ledger records. Requires: the session exists.
  std::map<uint32_t, ByteBudget>& BudgetsOf(SessionId id) { return sessions_.at(id).budgets; }

  // Requires: the session exists.
  Channel& Join(SessionId session, ChannelId id, const ProcessInfo& process);
  void EraseChannel(ChannelId id);
  // Returns null for an unknown id.
  const Channel* FindChannel(ChannelId id) const;
  // Returns the channel for modification. Requires: the channel exists.
  Channel& ChangeChannel(ChannelId id);
  // Returns the channel's requests. Requires: the channel exists.
  RequestMemory& RequestsOf(ChannelId id) { return channels_.at(id).requests; }

  // Returns the session if secret and tenant match. Errors: BAD_CREDENTIALS, identical for every mismatch and after the
  // same comparison.
  absl::StatusOr<const Session*> Authenticate(SessionId id, const Secret& secret, const Tenant& tenant) const;
  // Returns whether the session exists and has that secret, regardless of the caller. Takes the same time for every
  // answer.
  bool HasSecret(SessionId id, const Secret& secret) const;

  // Returns all sessions, oldest first.
  std::vector<const Session*> List() const;
  // Visits the sessions with a number above `number`, oldest first, until `visit` returns false.
  void ForEachAfter(uint64_t number, absl::FunctionRef<bool(const Session&)> visit) const;
  uint64_t size() const { return sessions_.size(); }
  uint64_t channel_count() const { return channels_.size(); }
  // Weight of all stored requests and answers.
  const SharedCount& answer_bytes() const { return answer_bytes_; }
  // Visits the channels in the order of their ids.
  void ForEachChannel(absl::FunctionRef<void(const Channel&)> visit) const;

  // ---- Persistence across broker restarts ------------------------------------------------------------------

  uint64_t last_number() const { return last_number_; }
  void RestoreLastNumber(uint64_t number) { last_number_ = number; }
  // Restores a session with its own number. Returns whether its id and number were unused, it has no channels, and the
  // number was assigned before.
  bool Restore(Session session);
  // Returns a new channel without requests, for restoring.
  Channel NewChannel(ChannelId id) { return {.id = id, .requests = RequestMemory(id, answers_, journal_)}; }
  // Restores the channel. Returns whether its id was unused and its session exists. Requires: it has no requests yet.
  bool Restore(Channel channel);

  // Returns OK, or the violated invariant.
  absl::Status CheckInvariants() const;

 private:
  void Mark(SessionId id) { journal_->Touch(RecordKind::kSession, id.value()); }
  // Adds the channel to its session and the index. Returns null if the id was in use.
  Channel* Insert(Session& session, Channel channel);

  Journal* const journal_;
  const AnswerLimits answers_;
  SharedCount answer_bytes_;
  uint64_t last_number_ = 0;
  // Accessed for every request: a tree of ten thousand entries would cost a dozen cache misses.
  absl::node_hash_map<SessionId, Session> sessions_;
  absl::node_hash_map<ChannelId, Channel> channels_;
  std::map<uint64_t, const Session*> by_number_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_SESSIONS_SESSION_TABLE_H_
