// SessionTable: the sessions, and the channels of their processes. Rows and indexes; what their end brings
// about is the core's business. Each is a row that outlives the broker. Thread-compatible.

#ifndef DAEMON_CORE_SESSION_TABLE_H_
#define DAEMON_CORE_SESSION_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/secret.h"
#include "daemon/core/byte_budget.h"
#include "daemon/core/caller.h"
#include "daemon/core/journal.h"
#include "daemon/core/request_memory.h"
#include "daemon/core/session_types.h"

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
  // Of processes not yet proved gone.
  std::set<ChannelId> channels;
  // Its shares of the devices, by ordinal, where it has had any.
  std::map<uint32_t, ByteBudget> budgets;
};

// But for its channels and budgets.
template <typename Archive>
void Fields(Archive& archive, Session& value) {
  archive(value.number, value.secret, value.tenant, value.label, value.state, value.opened_at, value.opener);
}

struct Channel {
  ChannelId id;
  SessionId session;
  ProcessInfo process;
  bool hung_up = false;
  // It was sent its page.
  bool has_page = false;
  RequestMemory requests;
};

// But for what it has asked.
template <typename Archive>
void Fields(Archive& archive, Channel& value) {
  archive(value.session, value.process, value.hung_up, value.has_page);
}

class SessionTable {
 public:
  // `journal` outlives the table.
  explicit SessionTable(Journal* journal) : journal_(journal) {}

  // Gives it the next number. Rows stay where they are until erased. Requires: ids that are not in use.
  const Session& Open(Session session);
  // Requires: no channels left.
  void Erase(SessionId id);
  // Returns null for an unknown id.
  const Session* Find(SessionId id) const;
  // To be changed, though not its channels. Requires: it is there.
  Session& Change(SessionId id);
  // Its accounts, which are rows of their own. Requires: it is there.
  std::map<uint32_t, ByteBudget>& BudgetsOf(SessionId id) { return sessions_.at(id).budgets; }

  // Requires: the session is there.
  Channel& Join(SessionId session, ChannelId id, const ProcessInfo& process, uint64_t answers);
  void EraseChannel(ChannelId id);
  // Returns null for an unknown id.
  const Channel* FindChannel(ChannelId id) const;
  // To be changed. Requires: it is there.
  Channel& ChangeChannel(ChannelId id);
  // What it has asked. Requires: it is there.
  RequestMemory& RequestsOf(ChannelId id) { return channels_.at(id).requests; }

  // Returns the session if its secret and tenant are as the caller says.
  // Errors: BAD_CREDENTIALS, the same whatever did not fit, after the same comparison.
  absl::StatusOr<const Session*> Authenticate(SessionId id, const Secret& secret, const Tenant& tenant) const;

  // Oldest first.
  std::vector<const Session*> List() const;
  // Those of a later number than `number`, oldest first, until `visit` returns false.
  void ForEachAfter(uint64_t number, absl::FunctionRef<bool(const Session&)> visit) const;
  uint64_t size() const { return sessions_.size(); }
  uint64_t channel_count() const { return channels_.size(); }
  // In the order of their ids.
  void ForEachChannel(absl::FunctionRef<void(const Channel&)> visit) const;

  // ---- What outlives the broker ---------------------------------------------------------------------------

  uint64_t last_number() const { return last_number_; }
  void RestoreLastNumber(uint64_t number) { last_number_ = number; }
  // With its own number. Returns whether there was none of that id or number, it has no channels, and the number is one
  // that was given.
  bool Restore(Session session);
  // Returns whether there was none of that id, and its session is there.
  bool Restore(Channel channel);

  // OK, or what is broken.
  absl::Status CheckBooks() const;

 private:
  void Note(SessionId id) { journal_->Touch(RowKind::kSession, id.value()); }

  Journal* const journal_;
  uint64_t last_number_ = 0;
  // Found at every request: a tree of ten thousand would cost it a dozen misses of the cache.
  absl::node_hash_map<SessionId, Session> sessions_;
  absl::node_hash_map<ChannelId, Channel> channels_;
  std::map<uint64_t, const Session*> by_number_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_SESSION_TABLE_H_
