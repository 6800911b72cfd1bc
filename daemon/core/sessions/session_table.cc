#include "daemon/core/sessions/session_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "daemon/core/types/invariant.h"

namespace berth::core {

const Session& SessionTable::Open(Session session) {
  const SessionId id = session.id;
  session.number = ++last_number_;
  journal_->Touch(RecordKind::kCounters);
  Mark(id);
  const bool fresh = Restore(std::move(session));
  BERTH_INVARIANT(fresh);
  return sessions_.at(id);
}

bool SessionTable::Restore(Session session) {
  if (session.number == 0 || session.number > last_number_) return false;
  const SessionId id = session.id;
  const auto [at, fresh] = sessions_.emplace(id, std::move(session));
  return fresh && by_number_.emplace(at->second.number, &at->second).second;
}

bool SessionTable::Restore(Channel channel) {
  const auto session = sessions_.find(channel.session);
  return session != sessions_.end() && Insert(session->second, std::move(channel)) != nullptr;
}

Channel* SessionTable::Insert(Session& session, Channel channel) {
  const ChannelId id = channel.id;
  const auto [at, fresh] = channels_.emplace(id, std::move(channel));
  if (!fresh) return nullptr;
  session.channels.insert(id);
  at->second.requests.SetAccount(
      {.session = &session.answer_bytes, .all = &answer_bytes_, .claimant = session.claimant()});
  return &at->second;
}

void SessionTable::Erase(SessionId id) {
  const auto found = sessions_.find(id);
  BERTH_INVARIANT(found != sessions_.end() && found->second.channels.empty());
  by_number_.erase(found->second.number);
  sessions_.erase(found);
  Mark(id);
}

const Session* SessionTable::Find(SessionId id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

Session& SessionTable::Change(SessionId id) {
  Mark(id);
  return sessions_.at(id);
}

Channel& SessionTable::Join(SessionId session, ChannelId id, const ProcessInfo& process) {
  Channel fresh = NewChannel(id);
  fresh.session = session;
  fresh.process = process;
  Channel* const joined = Insert(sessions_.at(session), std::move(fresh));
  BERTH_INVARIANT(joined != nullptr);
  journal_->Touch(RecordKind::kChannel, id.value());
  return *joined;
}

void SessionTable::EraseChannel(ChannelId id) {
  const auto found = channels_.find(id);
  BERTH_INVARIANT(found != channels_.end());
  sessions_.at(found->second.session).channels.erase(id);
  found->second.requests.Clear();
  channels_.erase(found);
  journal_->Touch(RecordKind::kChannel, id.value());
}

const Channel* SessionTable::FindChannel(ChannelId id) const {
  const auto found = channels_.find(id);
  return found == channels_.end() ? nullptr : &found->second;
}

Channel& SessionTable::ChangeChannel(ChannelId id) {
  journal_->Touch(RecordKind::kChannel, id.value());
  return channels_.at(id);
}

bool SessionTable::HasSecret(SessionId id, const Secret& secret) const {
  const Session* const session = Find(id);
  // Compares with an empty secret if the session is unknown, so that both cases take the same time.
  const bool proved = (session != nullptr ? session->secret : Secret()) == secret;
  return proved && session != nullptr;
}

absl::StatusOr<const Session*> SessionTable::Authenticate(SessionId id, const Secret& secret,
                                                          const Tenant& tenant) const {
  const bool proved = HasSecret(id, secret);
  const Session* const session = Find(id);
  if (!proved || session->tenant != tenant) {
    return Refuse(Reason::kBadCredentials, "no session {session} with this secret and for this caller",
                  {{"session", id.value()}});
  }
  return session;
}

std::vector<const Session*> SessionTable::List() const {
  std::vector<const Session*> list;
  list.reserve(sessions_.size());
  for (const auto& [number, session] : by_number_) list.push_back(session);
  return list;
}

void SessionTable::ForEachAfter(uint64_t number, absl::FunctionRef<bool(const Session&)> visit) const {
  for (auto it = by_number_.upper_bound(number); it != by_number_.end() && visit(*it->second); ++it) continue;
}

void SessionTable::ForEachChannel(absl::FunctionRef<void(const Channel&)> visit) const {
  std::vector<const Channel*> channels;
  channels.reserve(channels_.size());
  for (const auto& [id, channel] : channels_) channels.push_back(&channel);
  std::sort(channels.begin(), channels.end(), [](const Channel* a, const Channel* b) { return a->id < b->id; });
  for (const Channel* const channel : channels) visit(*channel);
}

absl::Status SessionTable::CheckInvariants() const {
  if (by_number_.size() != sessions_.size()) return absl::InternalError("a session is not in the list");
  uint64_t joined = 0;
  SharedCount answers("answer_bytes", SharedCount::kUnlimited, SharedCount::kUnlimited);
  for (const auto& [id, session] : sessions_) {
    uint64_t weight = 0;
    joined += session.channels.size();
    if (session.state == SessionState::kEnding && session.channels.empty()) {
      return absl::InternalError("an ended session without processes is still in the table");
    }
    for (const ChannelId channel : session.channels) {
      const auto found = channels_.find(channel);
      if (found == channels_.end() || found->second.session != id) {
        return absl::InternalError("a session's channel belongs to another session");
      }
      weight += found->second.requests.weight();
    }
    if (weight != session.answer_bytes) return absl::InternalError("the cached answers of a session are miscounted");
    answers.Take(session.claimant(), weight);
  }
  if (!(answers == answer_bytes_)) return absl::InternalError("the cached answers of a user are miscounted");
  return joined == channels_.size() ? absl::OkStatus() : absl::InternalError("a channel has no session");
}

}  // namespace berth::core
