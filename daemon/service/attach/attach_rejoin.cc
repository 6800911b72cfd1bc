// AttachServer: handles processes and lifelines that lost every socket with an earlier daemon and reconnect.

#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include <berth/error.h>

#include "common/os/memfd.h"
#include "common/os/process.h"
#include "common/status_macros.h"
#include "daemon/service/attach/attach_server.h"

namespace berth::service {
namespace {

fd_store::Key LifelineKey(SessionId session) { return {fd_store::Kind::kLifeline, 0, session.value()}; }
fd_store::Key ChannelKey(ChannelId channel) { return {fd_store::Kind::kChannel, 0, channel.value()}; }
fd_store::Key PidfdKey(ChannelId channel) { return {fd_store::Kind::kPidfd, 0, channel.value()}; }

}  // namespace

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
      return berth::Refuse(Reason::kInvalidField, "session {session} already has its lifeline",
                           {{"field", "session"}, {"session", session.value()}});
    }
    lifelines_[session] = connection;
  }
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

void AttachServer::AwaitOtherHolders(ChannelId channel) {
  SessionId session;
  {
    MutexLock lock(&mu_);
    const auto member = members_.find(channel);
    if (member == members_.end() || lifelines_.contains(member->second.session)) return;
    session = member->second.session;
  }
  WatchHolders(session);
}

void AttachServer::WatchHolders(SessionId session) {
  uint64_t session_credentials = 0;
  {
    MutexLock lock(&mu_);
    const auto detached = detached_.find(session);
    if (detached == detached_.end()) return;
    session_credentials = detached->second;
  }
  holders_->Watch(session, session_credentials);
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

}  // namespace berth::service
