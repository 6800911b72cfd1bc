// SessionTable: the sessions, and the channels of their processes. Rows and indexes; what their end brings
// about is the core's business. Thread-compatible.

#ifndef DAEMON_CORE_SESSION_TABLE_H_
#define DAEMON_CORE_SESSION_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/secret.h"
#include "daemon/core/byte_budget.h"
#include "daemon/core/caller.h"
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

struct Channel {
  ChannelId id;
  SessionId session;
  ProcessInfo process;
  bool hung_up = false;
  // It was sent its page.
  bool has_page = false;
  RequestMemory requests;
};

class SessionTable {
 public:
  // Rows stay where they are until erased. Requires: ids that are not in use.
  Session& Open(Session session);
  // Requires: no channels left.
  void Erase(SessionId id);
  // Returns null for an unknown id.
  Session* Find(SessionId id);
  const Session* Find(SessionId id) const { return const_cast<SessionTable*>(this)->Find(id); }

  // Requires: the session is there.
  Channel& Join(SessionId session, ChannelId id, const ProcessInfo& process, uint64_t answers);
  void EraseChannel(ChannelId id);
  Channel* FindChannel(ChannelId id);
  const Channel* FindChannel(ChannelId id) const { return const_cast<SessionTable*>(this)->FindChannel(id); }

  // Returns the session if its secret and tenant are as the caller says.
  // Errors: BAD_CREDENTIALS, the same whatever did not fit, after the same comparison.
  absl::StatusOr<const Session*> Authenticate(SessionId id, const Secret& secret, const Tenant& tenant) const;

  // Oldest first.
  std::vector<const Session*> List() const;
  // Those of a later number than `number`, oldest first, until `visit` returns false.
  void ForEachAfter(uint64_t number, absl::FunctionRef<bool(const Session&)> visit) const;
  uint64_t size() const { return sessions_.size(); }
  uint64_t channel_count() const { return channels_.size(); }
  void ForEachChannel(absl::FunctionRef<void(const Channel&)> visit) const;
  // OK, or what is broken.
  absl::Status CheckBooks() const;

 private:
  uint64_t last_number_ = 0;
  std::map<SessionId, Session> sessions_;
  std::map<uint64_t, const Session*> by_number_;
  std::map<ChannelId, Channel> channels_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_SESSION_TABLE_H_
