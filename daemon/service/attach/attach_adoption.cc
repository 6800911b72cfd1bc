// AttachServer: sessions across daemons: their adoption, processes that reconnect, and the end of all sessions.

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/time/time.h"
#include "common/os/fd_passing.h"
#include "common/os/memfd.h"
#include "common/os/process.h"
#include "common/status_macros.h"
#include "daemon/base/process_origin.h"
#include "daemon/broker/needed_thread.h"
#include "daemon/service/attach/attach_server.h"
#include "spdlog/spdlog.h"

namespace berth::service {
namespace {

// Number of processes to notify at a time, and the pause before the next batch. A thousand processes that return at
// once are served later than the same number in batches.
constexpr size_t kNoticesAtATime = 64;
constexpr std::chrono::milliseconds kNotifyPause(1);
// Waiting processes return in their order, at these intervals, and all within the longest time. A connection and a call
// of one process take a third of a millisecond of two processors, which processes not served yet need. A longer
// interval helps no process: a detached process is granted nothing (docs/design/0015).
constexpr absl::Duration kReturnStep = absl::Milliseconds(1);
constexpr absl::Duration kLongestReturn = absl::Seconds(2);

bool HasHungUp(int socket) {
  pollfd entry = {.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

fd_store::Key LifelineKey(SessionId session) { return {fd_store::Kind::kLifeline, 0, session.value()}; }
fd_store::Key ChannelKey(ChannelId channel) { return {fd_store::Kind::kChannel, 0, channel.value()}; }
fd_store::Key PidfdKey(ChannelId channel) { return {fd_store::Kind::kPidfd, 0, channel.value()}; }

}  // namespace

// ---- AttachServer: adopts the state that an earlier broker left ----------------------------------------------

void AttachServer::SetHearing(std::atomic<uint64_t>* flag) {
  hearing_ = flag;
  cautious_ = hearing_->exchange(0) != 0;
}

AttachServer::ConnectionPtr AttachServer::Readopt(UniqueFd socket, const core::Tenant& tenant,
                                                  const core::ProcessInfo& process) {
  const ConnectionPtr connection = MakeConnection(std::move(socket));
  const bool of_operator =
      !operators_address_.empty() && ListenerAddress(connection->socket.get()) == operators_address_;
  connection->peer = {.tenant = tenant,
                      .process = process,
                      .role = of_operator ? Peer::Role::kAdmin : Peer::Role::kTenant};
  connection->place = QuotaOf(connection->peer.role).TakeAnyway(core::UserOf(tenant));
  connection->cautious = cautious_;
  if (!of_operator) in_flight_.Adopt(core::UserOf(tenant), connection->socket.get());
  return connection;
}

absl::Status AttachServer::AdoptLifeline(const core::RestoredState::Lifeline& lifeline, UniqueFd socket) {
  const ConnectionPtr connection = Readopt(std::move(socket), lifeline.tenant, lifeline.opener);
  connection->session = lifeline.session;
  {
    MutexLock lock(&mu_);
    lifelines_[lifeline.session] = connection;
  }
  // The opener may still wait for the session credentials. An opener that has them reads nothing more on the lifeline.
  if (!lifeline.joined) SendSessionCredentials(connection, lifeline.session, lifeline.secret).IgnoreError();
  return WatchConnection(connection);
}

void AttachServer::AdoptDetached(const core::RestoredState::Lifeline& lifeline, bool seen) {
  {
    MutexLock lock(&mu_);
    detached_[lifeline.session] = {.session_credentials = lifeline.session_credentials, .seen = seen};
  }
  if (!seen) {
    return spdlog::warn(
        "session {}: this daemon cannot observe its holders, which are in another PID namespace; its leases stay "
        "counted until it resumes and releases them, or until `berth sessions end {}`; without a lease it ends unless "
        "it resumes within 10 s",
        lifeline.session.value(), lifeline.session.value());
  }
  if (holders_ == nullptr) {
    holders_ = std::make_unique<HolderWatch>(&loop_, [this](SessionId session) { OnHoldersGone(session); });
  }
  holders_->Watch(lifeline.session, lifeline.session_credentials);
}

absl::Status AttachServer::AdoptProcess(const core::RestoredState::Process& process, UniqueFd pidfd,
                                        UniqueFd channel) {
  ConnectionPtr connection;
  // A closed channel does not show the socket that it came in on.
  Peer::Role role = Peer::Role::kTenant;
  if (channel) {
    connection = Readopt(std::move(channel), process.tenant, process.process);
    connection->channel = process.channel;
    role = connection->peer.role;
  }
  UidQuota::Place place = QuotaOf(role).TakeAnyway(core::UserOf(process.tenant));
  return AdoptMember(process, Member{.pidfd = std::move(pidfd), .place = std::move(place)}, connection);
}

absl::Status AttachServer::AdoptAway(const core::RestoredState::Process& process, UniqueFd pidfd, bool proven) {
  return AdoptMember(process,
                     Member{.pidfd = std::move(pidfd),
                            .place = QuotaOf(Peer::Role::kTenant).TakeAnyway(core::UserOf(process.tenant)),
                            .away = true,
                            .proven = proven},
                     nullptr);
}

absl::Status AttachServer::AdoptMember(const core::RestoredState::Process& process, Member member,
                                       ConnectionPtr connection) {
  const ChannelId id = process.channel;
  BERTH_ASSIGN_OR_RETURN(
      member.watch, loop_.Watch(member.pidfd.get(), EPOLLIN, [this, id](uint32_t) { OnProcessGone(id); }));
  member.session = process.session;
  member.pid = process.process.pid;
  // The full identity is read later, off this path.
  if (audit_ != nullptr) {
    audit_->RecordProcess(process.session, id, std::make_shared<const AuditWho>(AuditWho{.process = process.process}));
  }
  adopted_.push_back(process);
  {
    MutexLock lock(&mu_);
    const bool hung_up = connection == nullptr && !member.away;
    members_[id] = std::move(member);
    if (connection != nullptr) channels_[id] = connection;
    if (hung_up) hung_up_.insert({process.session, process.process.pid, id});
  }
  return connection == nullptr ? absl::OkStatus() : WatchConnection(connection);
}

void AttachServer::NotifyDeaths() {
  std::vector<ChannelId> gone;
  std::vector<ConnectionPtr> over;
  {
    MutexLock lock(&mu_);
    for (const auto& [channel, member] : members_) {
      if (IsGone(member.pidfd.get())) gone.push_back(channel);
    }
    for (const auto& [session, connection] : lifelines_) {
      if (HasHungUp(connection->socket.get())) over.push_back(connection);
    }
  }
  for (const ChannelId channel : gone) OnProcessGone(channel);
  for (const ConnectionPtr& connection : over) OnEnd(connection);
}

void AttachServer::NotifyResumed() {
  std::vector<core::RestoredState::Process> adopted = std::exchange(adopted_, {});
  // Processes that wait for nothing come first, without delay.
  std::stable_sort(adopted.begin(), adopted.end(),
                   [](const auto& a, const auto& b) { return a.waits_since < b.waits_since; });
  const auto waiting = std::count_if(adopted.begin(), adopted.end(), [](const core::RestoredState::Process& process) {
    return process.waits_since.has_value();
  });
  const absl::Duration step = std::min(kReturnStep, kLongestReturn / std::max<int64_t>(waiting, 1));
  std::vector<Notice> all;
  {
    MutexLock lock(&mu_);
    int64_t turn = 0;
    for (const core::RestoredState::Process& process : adopted) {
      const auto channel = channels_.find(process.channel);
      if (channel == channels_.end()) continue;
      all.push_back({.connection = channel->second,
                     .return_after = process.waits_since.has_value() ? step * turn++ : absl::ZeroDuration()});
    }
  }
  if (all.empty()) return;
  notifier_ = NeededThread("returning clients", [this, all = std::move(all), adopted = std::move(adopted),
                                                 stop = notifier_stop_.get_token()] {
    size_t notified = 0;
    for (const Notice& one : all) {
      if (stop.stop_requested()) return;
      const auto return_after = static_cast<uint32_t>(absl::ToInt64Milliseconds(one.return_after));
      // A channel that accepts no more has not noticed the broker's end either.
      SendStruct(one.connection->socket.get(), attach::Resumed{.return_after = return_after}).IgnoreError();
      if (++notified % kNoticesAtATime == 0) std::this_thread::sleep_for(kNotifyPause);
    }
    ReadOrigins(adopted, stop);
  });
}

void AttachServer::ReadOrigins(const std::vector<core::RestoredState::Process>& processes, std::stop_token stop) {
  if (audit_ == nullptr) return;
  size_t read = 0;
  for (const core::RestoredState::Process& process : processes) {
    if (stop.stop_requested()) return;
    AuditWho who = {.process = process.process, .origin = ReadOrigin(process.process.pid)};
    if (++read % kNoticesAtATime == 0) std::this_thread::sleep_for(kNotifyPause);
    MutexLock lock(&mu_);
    const auto member = members_.find(process.channel);
    // The process lives now, so the data read before is its own.
    if (member == members_.end() || IsGone(member->second.pidfd.get())) continue;
    audit_->RecordProcess(process.session, process.channel, std::make_shared<const AuditWho>(std::move(who)));
  }
}

// AttachServer: handles processes and lifelines that lost every socket with an earlier daemon and reconnect.

absl::Status AttachServer::CheckVersion(uint32_t version) {
  if (version == attach::kVersion) return absl::OkStatus();
  return berth::Refuse(Reason::kInvalidField, "{field} {value} is not supported: this daemon supports {limit}",
                       {{"field", "version"}, {"value", version}, {"limit", attach::kVersion}});
}

absl::Status AttachServer::SendJoined(const ConnectionPtr& connection, ChannelId channel) {
  const attach::Joined joined = {
      .channel = channel.value(), .node = facts_.node, .incarnation = facts_.incarnation};
  // A separate open file: clients share neither its offset nor its flags and locks.
  BERTH_ASSIGN_OR_RETURN(const UniqueFd page, ReopenReadOnly(page_.get()));
  BERTH_RETURN_IF_ERROR(CountFd(*connection));
  const int fd = page.get();
  return SendStruct(connection->socket.get(), joined, {&fd, 1});
}

void AttachServer::OnRejoin(const ConnectionPtr& connection, const attach::Rejoin& rejoin) {
  const absl::Status rejoined = Rejoin(connection, rejoin);
  Audit("rejoin_session", *connection, rejoined);
  if (rejoined.ok()) return;
  Refuse(connection, rejoined);
  // A client that has its answer but no place here must retry.
  ::shutdown(connection->socket.get(), SHUT_RDWR);
}

absl::Status AttachServer::Rejoin(const ConnectionPtr& connection, const attach::Rejoin& rejoin) {
  const SessionId session(rejoin.session);
  const ChannelId channel(rejoin.channel);
  BERTH_RETURN_IF_ERROR(CheckVersion(rejoin.version));
  BERTH_RETURN_IF_ERROR(CheckTakes(connection->peer));
  // A daemon that cannot read the ledger knows no session, but a later daemon may: the client waits for it.
  if (absl::Status serves = broker_.CheckServes(); IsRefusal(serves, Reason::kLedgerUnreadable)) return serves;
  absl::Status valid;
  broker_.Step([&](core::Core& core, absl::Time, core::Effects*) {
    valid = core.CheckRejoin(session, rejoin.secret, connection->peer.tenant, channel);
  });
  BERTH_RETURN_IF_ERROR(valid);
  return channel ? RejoinChannel(connection, session, channel) : RejoinLifeline(connection, session);
}

absl::Status AttachServer::RejoinLifeline(const ConnectionPtr& connection, SessionId session) {
  {
    MutexLock lock(&mu_);
    if (!detached_.contains(session) || lifelines_.contains(session)) {
      return berth::Refuse(Reason::kInvalidField, "{field} {value} already has its lifeline; expected {limit}",
                           {{"field", "session"}, {"value", session.value()}, {"limit", "a session without one"}});
    }
    lifelines_[session] = connection;
  }
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.LifelineRejoined(now, session, effects);
  });
  connection->session = session;
  FreshOf(connection->peer).Remove(UserOf(connection->peer), connection->number);
  // Answers first: if this broker dies before the fd store has the socket, the client sees the end and retries. The
  // client reads nothing on its lifeline, so it checks the lifeline once its channel is connected.
  BERTH_RETURN_IF_ERROR(SendJoined(connection, ChannelId()));
  BERTH_RETURN_IF_ERROR(fd_store_.Put(LifelineKey(session), connection->socket.get(), OwnerOf(connection->peer.role)));
  // The session may have ended before the fd store had the lifeline, so the earlier drop had no effect.
  if (!HasLifeline(session)) fd_store_.Drop(LifelineKey(session));
  return absl::OkStatus();
}

absl::Status AttachServer::RejoinChannel(const ConnectionPtr& connection, SessionId session, ChannelId channel) {
  BERTH_ASSIGN_OR_RETURN(Member member, MakeMember(*connection, session));
  const FdOwner owner = OwnerOf(connection->peer.role);
  UniqueFd stand_in;
  {
    MutexLock lock(&mu_);
    const auto found = members_.find(channel);
    // The pidfd identifies a process that was found again. For a process that cannot be found, the secret alone must
    // do.
    const bool same = found != members_.end() && found->second.away &&
                      (!found->second.proven ||
                       (member.pid > 0 && found->second.pid == member.pid && !IsGone(found->second.pidfd.get())));
    if (!same) {
      return berth::Refuse(Reason::kNotJoined, "session {session}: channel {channel} belongs to another process",
                           {{"session", session.value()}, {"channel", channel.value()}});
    }
    if (!found->second.proven) {
      const int pidfd = member.pidfd.get();
      BERTH_RETURN_IF_ERROR(fd_store_.Put(PidfdKey(channel), pidfd, owner));
      BERTH_ASSIGN_OR_RETURN(const EventLoop::WatchId watch,
                             loop_.Watch(pidfd, EPOLLIN, [this, channel](uint32_t) { OnProcessGone(channel); }));
      loop_.Unwatch(std::exchange(found->second.watch, watch));
      stand_in = std::exchange(found->second.pidfd, std::move(member.pidfd));
      found->second.pid = member.pid;
      found->second.proven = true;
    }
  }
  // Answers first, as for a lifeline. Deliveries follow the answer.
  BERTH_RETURN_IF_ERROR(SendJoined(connection, channel));
  BERTH_RETURN_IF_ERROR(fd_store_.Put(ChannelKey(channel), connection->socket.get(), owner));
  FreshOf(connection->peer).Remove(UserOf(connection->peer), connection->number);
  connection->channel = channel;
  bool over = false;
  {
    MutexLock lock(&mu_);
    const auto found = members_.find(channel);
    // The core may have dropped the channel meanwhile.
    over = found == members_.end();
    if (!over) {
      found->second.away = false;
      channels_[channel] = connection;
    }
  }
  if (over) {
    fd_store_.Drop(ChannelKey(channel));
    return berth::Refuse(Reason::kSessionEnded, "session {session} has ended", {{"session", session.value()}});
  }
  // Sends the deliveries that were queued while the process was detached.
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.Rejoined(now, channel, effects);
  });
  return absl::OkStatus();
}

bool AttachServer::AwaitHolders(SessionId session) {
  ConnectionPtr connection;
  {
    MutexLock lock(&mu_);
    if (!detached_.contains(session)) return false;
    if (const auto lifeline = lifelines_.find(session); lifeline != lifelines_.end()) {
      connection = std::move(lifeline->second);
      lifelines_.erase(lifeline);
    }
  }
  if (connection != nullptr) End(LifelineKey(session), std::move(connection));
  WatchHolders(session);
  return true;
}

SessionId AttachServer::SessionWithoutLifeline(ChannelId channel) {
  MutexLock lock(&mu_);
  const auto member = members_.find(channel);
  if (member == members_.end() || lifelines_.contains(member->second.session)) return SessionId();
  return member->second.session;
}

void AttachServer::WatchHolders(SessionId session) {
  DetachedSession found;
  {
    MutexLock lock(&mu_);
    const auto detached = detached_.find(session);
    if (detached == detached_.end()) return;
    found = detached->second;
  }
  if (!found.seen) {
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      core.EndIfUnused(now, session, effects);
    });
    return;
  }
  holders_->Watch(session, found.session_credentials);
  {
    MutexLock lock(&mu_);
    if (detached_.contains(session)) return;
  }
  // DropSession() on another thread has cancelled an earlier watch.
  holders_->Cancel(session);
}

void AttachServer::OnHoldersGone(SessionId session) {
  // A reconnected lifeline holds the session; its end is handled as any other's.
  if (HasLifeline(session)) return;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.LifelineHungUp(now, session, effects);
  });
}

// ---- AttachServer: ends every session at once ----------------------------------------------------------------

void AttachServer::NotifyEnded(int socket, const EndNotice& end) {
  // Deliveries that the core still sends have smaller numbers, so the process ignores them.
  const attach::Delivery last = {.what = attach::DeliveryKind::kEnded,
                                 .number = std::numeric_limits<uint64_t>::max(),
                                 .owner = end.uid,
                                 .why = static_cast<uint64_t>(end.reason)};
  // A process whose channel accepts no more learns of the end from the next daemon.
  SendStruct(socket, last).IgnoreError();
}

void AttachServer::NotifyEnded(const EndNotice& end) {
  std::vector<ConnectionPtr> all;
  {
    MutexLock lock(&mu_);
    for (const auto& [channel, connection] : channels_) all.push_back(connection);
  }
  for (const ConnectionPtr& connection : all) NotifyEnded(connection->socket.get(), end);
}

}  // namespace berth::service
