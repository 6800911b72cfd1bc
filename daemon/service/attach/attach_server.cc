#include "daemon/service/attach/attach_server.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <optional>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "common/label.h"
#include "common/os/memfd.h"
#include "common/os/process.h"
#include "common/os/process_start.h"
#include "common/status_macros.h"
#include "common/wire/session_credentials.h"
#include "daemon/base/credentials_holders.h"
#include "daemon/core/types/response.h"
#include "daemon/service/conversion/refused_conversion.h"
#include "daemon/supervisor/fd_store/fd_reserve.h"

namespace berth::service {
namespace {

// Limit of connections without a role, each of which costs an fd; past it, one is ended.
constexpr size_t kMaxFresh = 2048;
// Messages read of one connection before the next connection's turn.
constexpr int kMessagesPerEvent = 16;
// Refusals on one connection after which it is closed: its peer is malicious or broken.
constexpr int kMaxRefusals = 16;

std::string TextOf(const char* text, size_t size) { return std::string(text, strnlen(text, size)); }

// Returns the message as a T, or nothing if its size is not a T's.
template <typename T>
std::optional<T> As(const Message& message) {
  if (message.bytes.size() != sizeof(T)) return std::nullopt;
  T result;
  memcpy(&result, message.bytes.data(), sizeof(T));
  return result;
}

attach::Kind KindOf(const Message& message) {
  attach::Kind kind{};
  if (message.bytes.size() >= sizeof(kind)) memcpy(&kind, message.bytes.data(), sizeof(kind));
  return kind;
}

// Returns the message as a HandedOver with the marks that it counts, or nothing.
std::optional<attach::HandedOver> AsHandedOver(const Message& message) {
  attach::HandedOver handed;
  const size_t size = message.bytes.size();
  if (!message.fds.empty() || size < handed.kHeadBytes || size > sizeof(handed)) return std::nullopt;
  memcpy(&handed, message.bytes.data(), size);
  const bool whole = handed.kind == attach::Kind::kHandedOver &&
                     handed.count <= attach::HandedOver::kMaxMarks &&
                     size == attach::HandedOver::BytesOf(handed.count);
  return whole ? std::optional(handed) : std::nullopt;
}

// A mark without an access counts as a write.
std::vector<core::HandedMark> MarksOf(const attach::HandedOver& handed) {
  std::vector<core::HandedMark> marks;
  for (uint32_t i = 0; i < handed.count; ++i) {
    const attach::HandedMark& mark = handed.marks[i];
    marks.push_back({.slot = mark.slot,
                     .value = mark.value,
                     .access = mark.access == 1 ? core::Access::kRead : core::Access::kWrite});
  }
  return marks;
}

fd_store::Key LifelineKey(SessionId session) { return {fd_store::Kind::kLifeline, 0, session.value()}; }
fd_store::Key ChannelKey(ChannelId channel) { return {fd_store::Kind::kChannel, 0, channel.value()}; }
fd_store::Key PidfdKey(ChannelId channel) { return {fd_store::Kind::kPidfd, 0, channel.value()}; }

}  // namespace

AttachServer::AttachServer(EventLoop* loop, Broker* broker, SupervisorFdStore* fd_store, NodeFacts facts, UniqueFd page,
                           AttachLimits limits)
    : loop_(*loop),
      broker_(*broker),
      calls_(broker),
      fd_store_(*fd_store),
      facts_(std::move(facts)),
      page_(std::move(page)),
      quota_("fds of attach.sock connections", limits.fds_per_uid, limits.fds),
      operator_quota_("fds of admin-attach.sock connections", kOperatorSessionFds),
      // The kernel counts all fds in flight of this user, also from other programs, against this process's limit.
      in_flight_(static_cast<uint32_t>(FdNumbers() / 2)),
      gate_(limits.accepts),
      fresh_(kMaxFresh),
      fresh_operators_(kOperatorSessionFds) {}

AttachServer::~AttachServer() {
  notifier_stop_.request_stop();
  if (notifier_.joinable()) notifier_.join();
  if (holders_ != nullptr) holders_->Stop();
  CloseAll();
  for (const auto* const fresh : {&fresh_, &fresh_operators_}) {
    fresh->ForEach([this](const ConnectionPtr& connection) { loop_.Unwatch(connection->watch); });
  }
  MutexLock lock(&mu_);
  for (const auto& [session, connection] : lifelines_) loop_.Unwatch(connection->watch);
  for (const auto& [channel, connection] : channels_) loop_.Unwatch(connection->watch);
  for (const auto& [channel, member] : members_) loop_.Unwatch(member.watch);
}

absl::Status AttachServer::Listen(UniqueFd listener, bool of_operators) {
  const Peer::Role role = of_operators ? Peer::Role::kAdmin : Peer::Role::kTenant;
  BERTH_ASSIGN_OR_RETURN(
      std::unique_ptr<ListeningSocket> socket,
      ListeningSocket::Listen(&loop_, std::move(listener), FdLimitOf(OwnerOf(role)),
                              [this, role](UniqueFd accepted) { Accept(std::move(accepted), role); }));
  std::swap(socket, listeners_[role]);
  if (socket != nullptr) socket->AcceptSome();
  return absl::OkStatus();
}

void AttachServer::Accept(UniqueFd socket, Peer::Role role) {
  const ConnectionPtr connection = MakeConnection(std::move(socket));
  connection->peer.role = role;
  const absl::Status admitted =
      AdmitPeer(&gate_, EventLoop::SteadyNow(), connection->socket.get(), &connection->peer);
  if (!admitted.ok()) {
    log_.Warn(absl::StrCat("attach.sock: connection refused: ", admitted.message()));
    Audit("connect", *connection, admitted);
    const bool too_fast = IsRefusal(admitted, Reason::kLimit);
    return Refuse(connection, admitted, too_fast ? AcceptGate::kPause : absl::ZeroDuration());
  }
  absl::StatusOr<UidQuota::Place> place = QuotaOf(role).Take(UserOf(connection->peer));
  if (!place.ok()) {
    LogRefused("connection", connection->peer, place.status());
    Audit("connect", *connection, place.status());
    Refuse(connection, place.status());
    return;
  }
  connection->place = *std::move(place);
  if (const absl::Status watched = WatchConnection(connection); !watched.ok()) {
    LogRefused("connection", connection->peer, watched);
    Audit("connect", *connection, watched);
    Refuse(connection, watched);
    return;
  }
  FreshConnections<ConnectionPtr>& fresh = FreshOf(connection->peer);
  connection->number = fresh.Add(UserOf(connection->peer), connection);
  if (const std::optional<ConnectionPtr> surplus = fresh.Surplus()) Forget(*surplus);
}

absl::Status AttachServer::WatchConnection(const ConnectionPtr& connection) {
  BERTH_ASSIGN_OR_RETURN(connection->watch,
                         loop_.Watch(connection->socket.get(), EPOLLIN | EPOLLRDHUP,
                                     [this, connection](uint32_t) { OnReadable(connection); }));
  return absl::OkStatus();
}

void AttachServer::OnReadable(const ConnectionPtr& connection) {
  for (int i = 0; i < kMessagesPerEvent; ++i) {
    // A channel's message is consumed after the core has processed it: the process sends it once, and a broker that
    // ends in between leaves it to the next broker.
    bool handled = false;
    if (connection->channel && !std::exchange(connection->cautious, false)) {
      const absl::StatusOr<Message> next = PeekMessage(connection->socket.get());
      // A message that arrives from here on must not be consumed before it is processed.
      if (IsWouldBlock(next.status())) return;
      handled = next.ok();
      if (handled) {
        hearing_->store(1, std::memory_order_relaxed);
        OnMessage(connection, *next, next->fds_lost ? 1 : 0);
      }
    }
    // The message may have ended the connection.
    if (connection->watch == 0) {
      hearing_->store(0, std::memory_order_relaxed);
      return;
    }
    std::vector<UniqueFd> fds;
    const absl::StatusOr<Message> message = ReceiveFromStranger(connection->socket.get(), &fds);
    hearing_->store(0, std::memory_order_relaxed);
    for (UniqueFd& fd : fds) loop_.Close(std::move(fd));
    if (message.ok()) {
      if (!handled) OnMessage(connection, *message, fds.size());
    } else if (absl::IsDataLoss(message.status())) {
      Refuse(connection,
             berth::Refuse(
                 Reason::kInvalidField, "{field}: {value}; limit {limit}",
                 {{"field", "message"}, {"value", message.status().message()}, {"limit", kMaxMessageBytes}}));
    } else {
      if (!IsWouldBlock(message.status())) OnEnd(connection);
      return;
    }
    // The message may have ended the connection.
    if (connection->watch == 0) return;
  }
}

void AttachServer::OnMessage(const ConnectionPtr& connection, const Message& message, size_t fds) {
  // A message with an fd is of no valid kind.
  const attach::Kind kind = fds == 0 ? KindOf(message) : attach::Kind{};
  const bool fresh = !connection->session && !connection->channel;
  if (const auto hello = As<attach::Hello>(message); fresh && hello && kind == attach::Kind::kHello) {
    OnHello(connection, *hello);
  } else if (const auto join = As<attach::Join>(message); fresh && join && kind == attach::Kind::kJoin) {
    OnJoin(connection, *join);
  } else if (const auto rejoin = As<attach::Rejoin>(message); fresh && rejoin && kind == attach::Kind::kRejoin) {
    OnRejoin(connection, *rejoin);
  } else if (const auto ack = As<attach::Ack>(message);
             connection->channel && ack && kind == attach::Kind::kAck) {
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      core.DeliveryAcknowledged(now, connection->channel, ack->number, effects);
    });
  } else if (const auto let_go = As<attach::LetGo>(message);
             connection->channel && let_go && kind == attach::Kind::kLetGo) {
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      core.ImportLetGo(now, connection->channel, ImportId(let_go->import), effects);
    });
  } else if (const auto give_back = As<attach::GiveBack>(message); connection->channel && give_back &&
                                                                   kind == attach::Kind::kGiveBack &&
                                                                   give_back->if_idle <= 1) {
    OnGiveBack(connection, *give_back);
  } else if (const auto handed = AsHandedOver(message); connection->channel && handed) {
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      core.BlockHandedOver(now, connection->channel, BlockId(handed->block), MarksOf(*handed), effects);
    });
  } else if (connection->channel && kind == attach::Kind::kAsk) {
    OnAsk(connection, message);
  } else {
    const char* const expected = connection->channel   ? "an Ack, a LetGo, a HandedOver, a GiveBack or an Ask"
                                 : connection->session ? "no message on a lifeline"
                                                       : "a Hello, a Join or a Rejoin";
    Refuse(connection, berth::Refuse(Reason::kInvalidField,
                                     "{field} of kind {kind}, {value} bytes and {fds} fds; expected {limit}",
                                     {{"field", "message"},
                                      {"kind", static_cast<uint32_t>(KindOf(message))},
                                      {"value", message.bytes.size()},
                                      {"fds", fds},
                                      {"limit", expected}}));
  }
}

void AttachServer::OnGiveBack(const ConnectionPtr& connection, const attach::GiveBack& give_back) {
  const AcquisitionId acquisition(give_back.acquisition);
  const bool if_idle = give_back.if_idle != 0;
  const bool serves = broker_.CheckServes().ok();
  if (serves) {
    absl::StatusOr<core::ReleaseResult> result;
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      result = core.GiveBack(now, connection->channel, acquisition, if_idle, effects);
    });
    // A failed return is no decision.
    if (result.ok()) AuditGiveBack(*connection, acquisition, *result);
  }
  // Sent before the message is consumed: a broker that ends here leaves the answer to the next broker, too.
  const attach::GaveBack gave_back = {.taken = serves ? 1u : 0u, .acquisition = acquisition.value()};
  if (!SendStruct(connection->socket.get(), gave_back).ok()) ::shutdown(connection->socket.get(), SHUT_RDWR);
}

absl::Status AttachServer::CheckTakes(const Peer& peer) {
  return broker_.CheckTakesProcesses(/*of_operator=*/peer.role == Peer::Role::kAdmin);
}

void AttachServer::OnHello(const ConnectionPtr& connection, const attach::Hello& hello) {
  const std::string label = ToLabel(TextOf(hello.label, sizeof(hello.label)));
  absl::Status valid = CheckVersion(hello.version);
  if (valid.ok()) valid = CheckTakes(connection->peer);
  if (!valid.ok()) {
    Audit("open_session", *connection, valid);
    Refuse(connection, valid);
    return;
  }
  const Secret secret = RandomSecret();
  absl::StatusOr<SessionId> session;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects*) {
    session = core.OpenSession(now, secret, connection->peer.tenant, label, connection->peer.process,
                               connection->peer.role == Peer::Role::kAdmin);
    if (!session.ok()) return;
    // In the same step, so that a caller that ends the session finds its lifeline.
    if (audit_ != nullptr) {
      audit_->RecordSession(*session, label, connection->peer.tenant, connection->peer.role == Peer::Role::kAdmin);
    }
    MutexLock lock(&mu_);
    lifelines_[*session] = connection;
  });
  connection->session = session.value_or(SessionId());
  Audit("open_session", *connection, session.status());
  if (!session.ok()) {
    Refuse(connection, session.status());
    return;
  }
  if (const absl::Status welcomed = Welcome(connection, *session, secret); !welcomed.ok()) {
    LogRefused("session", connection->peer, welcomed);
    Refuse(connection, welcomed);
    OnEnd(connection);
  }
}

absl::Status AttachServer::Welcome(const ConnectionPtr& connection, SessionId session, const Secret& secret) {
  FreshOf(connection->peer).Remove(UserOf(connection->peer), connection->number);
  const absl::Status put =
      fd_store_.Put(LifelineKey(session), connection->socket.get(), OwnerOf(connection->peer.role));
  if (HasLifeline(session)) return put.ok() ? SendSessionCredentials(connection, session, secret) : put;
  // The session ended before its lifeline was in the fd store: the earlier drop had no effect, or refused the key.
  fd_store_.Drop(LifelineKey(session));
  return berth::Refuse(Reason::kSessionEnded, "session {session} has ended", {{"session", session.value()}});
}

absl::Status AttachServer::SendSessionCredentials(const ConnectionPtr& connection, SessionId session,
                                                  const Secret& secret) {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd session_credentials,
                         WriteSessionCredentials({.session = session, .secret = secret, .folder = facts_.folder}));
  // After all sockets are lost, HolderWatch finds the processes that inherit the session credentials by the file's
  // inode.
  BERTH_ASSIGN_OR_RETURN(const uint64_t inode, InodeOf(session_credentials.get()));
  broker_.Step(
      [&](core::Core& core, absl::Time now, core::Effects*) { core.RecordSessionCredentials(now, session, inode); });
  BERTH_RETURN_IF_ERROR(CountFd(*connection));
  const int fd = session_credentials.get();
  return SendStruct(connection->socket.get(), attach::Welcome{}, {&fd, 1});
}

bool AttachServer::HasLifeline(SessionId session) {
  MutexLock lock(&mu_);
  return lifelines_.contains(session);
}

void AttachServer::LogRefused(const char* what, const Peer& peer, const absl::Status& why) {
  // The death of a peer is not worth a log line.
  if (absl::IsUnavailable(why)) return;
  log_.Warn(absl::StrCat("attach.sock: ", what, " of pid ", peer.process.pid, " refused: ", why.message()));
}

absl::StatusOr<AttachServer::Member> AttachServer::MakeMember(const Connection& connection, SessionId session) {
  const core::ProcessInfo& process = connection.peer.process;
  Member member = {.session = session, .pid = process.pid};
  absl::StatusOr<UniqueFd> pidfd =
      OpenPeerPidfd(connection.socket.get(), {.pid = process.pid, .uid = process.uid, .gid = process.gid});
  if (!pidfd.ok()) {
    return berth::Refuse(Reason::kNotJoined, "session {session}: cannot observe the end of pid {pid}: {why}",
                         {{"session", session.value()}, {"pid", process.pid}, {"why", pidfd.status().message()}});
  }
  member.pidfd = *std::move(pidfd);
  BERTH_ASSIGN_OR_RETURN(member.place, QuotaOf(connection.peer.role).Take(UserOf(connection.peer)));
  return member;
}

std::vector<ChannelId> AttachServer::EarlierChannels(SessionId session, int32_t pid) {
  std::vector<ChannelId> earlier;
  // A process that is not visible here has no pid to identify it.
  if (pid <= 0) return earlier;
  MutexLock lock(&mu_);
  for (auto it = hung_up_.lower_bound({session, pid, ChannelId()}); it != hung_up_.end(); ++it) {
    const auto& [its_session, its_pid, channel] = *it;
    if (its_session != session || its_pid != pid) break;
    // A living process's pid is not reused: the process that connected with this pid is the same.
    if (!IsGone(members_.at(channel).pidfd.get())) earlier.push_back(channel);
  }
  return earlier;
}

void AttachServer::ReplaceEarlier(SessionId session, int32_t pid, ChannelId channel) {
  const std::vector<ChannelId> earlier = EarlierChannels(session, pid);
  if (earlier.empty()) return;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.ReplaceChannels(now, earlier, channel, effects);
  });
}

void AttachServer::OnJoin(const ConnectionPtr& connection, const attach::Join& join) {
  const SessionId session(join.session);
  const Peer& peer = connection->peer;
  absl::Status valid = CheckVersion(join.version);
  if (valid.ok()) valid = CheckTakes(peer);
  // Read while the pidfd shows that the process lives; otherwise its end is noticed at once.
  const absl::StatusOr<std::optional<uint64_t>> start_ticks = StartTicksOf(peer.process.pid);
  valid.Update(start_ticks.status());
  absl::StatusOr<Member> member = valid.ok() ? MakeMember(*connection, session) : absl::StatusOr<Member>(valid);
  if (!member.ok()) {
    Audit("join_session", *connection, member.status());
    Refuse(connection, member.status());
    return;
  }
  core::ProcessInfo process = peer.process;
  process.start_ticks = start_ticks->value_or(0);
  absl::StatusOr<ChannelId> channel;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects*) {
    channel = core.JoinSession(now, session, join.secret, peer.tenant, process);
  });
  if (!channel.ok()) {
    Audit("join_session", *connection, channel.status());
    Refuse(connection, channel.status());
    return;
  }
  if (const absl::Status admitted = Admit(connection, *channel, *std::move(member)); !admitted.ok()) {
    LogRefused("channel", peer, admitted);
    Refuse(connection, admitted);
    OnEnd(connection);
    // Without a watched pidfd, nothing would report the process's end. The process got nothing, so it counts as ended.
    if (!IsWatched(*channel)) OnProcessGone(*channel);
  }
}

absl::Status AttachServer::Admit(const ConnectionPtr& connection, ChannelId channel, Member member) {
  FreshOf(connection->peer).Remove(UserOf(connection->peer), connection->number);
  connection->channel = channel;
  const SessionId session = member.session;
  // The member owns the pidfd, and lives until this thread reports an end to the core.
  const int pidfd = member.pidfd.get();
  {
    MutexLock lock(&mu_);
    channels_[channel] = connection;
    members_[channel] = std::move(member);
  }
  Audit("join_session", *connection, absl::OkStatus());
  const FdOwner owner = OwnerOf(connection->peer.role);
  BERTH_RETURN_IF_ERROR(fd_store_.Put(ChannelKey(channel), connection->socket.get(), owner));
  BERTH_RETURN_IF_ERROR(fd_store_.Put(PidfdKey(channel), pidfd, owner));
  BERTH_ASSIGN_OR_RETURN(const EventLoop::WatchId watch,
                         loop_.Watch(pidfd, EPOLLIN, [this, channel](uint32_t) { OnProcessGone(channel); }));
  {
    MutexLock lock(&mu_);
    members_.at(channel).watch = watch;
  }
  // Not earlier: only now is the end of this process reported.
  ReplaceEarlier(session, connection->peer.process.pid, channel);
  return SendJoined(connection, channel);
}

bool AttachServer::IsWatched(ChannelId channel) {
  MutexLock lock(&mu_);
  const auto it = members_.find(channel);
  return it != members_.end() && it->second.watch != 0;
}

void AttachServer::OnEnd(const ConnectionPtr& connection) {
  if (!connection->session && !connection->channel) {
    Forget(connection);
    return;
  }
  loop_.Unwatch(connection->watch.exchange(0));
  // Shows the end to a peer that broke the protocol; the daemon's fd stays until the core drops it.
  ::shutdown(connection->socket.get(), SHUT_RDWR);
  if (connection->channel) calls_.Cancel(connection->channel);
  if (connection->session && AwaitHolders(connection->session)) return;
  const SessionId session = SessionWithoutLifeline(connection->channel);
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    if (connection->channel) {
      core.ChannelHungUp(now, connection->channel, effects);
    } else {
      core.LifelineHungUp(now, connection->session, effects);
    }
  });
  // If the channel's session is detached, no other event would show that the process has closed it.
  WatchHolders(session);
}

void AttachServer::OnProcessGone(ChannelId channel) {
  EventLoop::WatchId watch = 0;
  {
    MutexLock lock(&mu_);
    const auto it = members_.find(channel);
    if (it != members_.end()) watch = std::exchange(it->second.watch, 0);
  }
  loop_.Unwatch(watch);
  broker_.Step(
      [&](core::Core& core, absl::Time now, core::Effects* effects) { core.ProcessGone(now, channel, effects); });
}

void AttachServer::Refuse(const ConnectionPtr& connection, const absl::Status& why, absl::Duration pause) {
  SendStruct(connection->socket.get(), ToRefused(why, pause)).IgnoreError();
  if (++connection->refusals != kMaxRefusals) return;
  if (connection->channel) NotifyEnded(connection->socket.get(), {.reason = EndReason::kChannelBroken});
  OnEnd(connection);
}

void AttachServer::Forget(const ConnectionPtr& connection) {
  loop_.Unwatch(connection->watch.exchange(0));
  FreshOf(connection->peer).Remove(UserOf(connection->peer), connection->number);
}

void AttachServer::Deliver(ChannelId channel, const attach::Delivery& delivery, int fd) {
  ConnectionPtr connection;
  {
    MutexLock lock(&mu_);
    const auto it = channels_.find(channel);
    if (it == channels_.end()) return;
    connection = it->second;
  }
  const absl::Status counted = fd >= 0 ? CountFd(*connection) : absl::OkStatus();
  if (!counted.ok()) LogRefused("fd", connection->peer, counted);
  // A correct client's window prevents a full channel: one that accepts no more is ended, and the loop sees the end.
  if (!counted.ok() || !SendStruct(connection->socket.get(), delivery,
                                   fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>()).ok()) {
    ::shutdown(connection->socket.get(), SHUT_RDWR);
  }
}

void AttachServer::HangUp(ChannelId channel) {
  MutexLock lock(&mu_);
  const auto it = channels_.find(channel);
  if (it != channels_.end()) ::shutdown(it->second->socket.get(), SHUT_RDWR);
}

void AttachServer::CloseChannel(ChannelId channel) {
  ConnectionPtr connection;
  {
    MutexLock lock(&mu_);
    const auto it = channels_.find(channel);
    if (it == channels_.end()) return;
    connection = std::move(it->second);
    channels_.erase(it);
    const Member& member = members_.at(channel);
    hung_up_.insert({member.session, member.pid, channel});
  }
  End(ChannelKey(channel), std::move(connection));
}

void AttachServer::DropChannel(ChannelId channel) {
  ConnectionPtr connection;
  Member member;
  {
    MutexLock lock(&mu_);
    const auto it = members_.find(channel);
    if (it == members_.end()) return;
    member = std::move(it->second);
    members_.erase(it);
    hung_up_.erase({member.session, member.pid, channel});
    if (const auto open = channels_.find(channel); open != channels_.end()) {
      connection = std::move(open->second);
      channels_.erase(open);
    }
  }
  loop_.Unwatch(member.watch);
  fd_store_.Drop(PidfdKey(channel));
  if (connection != nullptr) End(ChannelKey(channel), std::move(connection));
}

void AttachServer::DropSession(SessionId session) {
  ConnectionPtr connection;
  {
    MutexLock lock(&mu_);
    detached_.erase(session);
    if (const auto it = lifelines_.find(session); it != lifelines_.end()) {
      connection = std::move(it->second);
      lifelines_.erase(it);
    }
  }
  if (holders_ != nullptr) holders_->Cancel(session);
  if (connection != nullptr) End(LifelineKey(session), std::move(connection));
}

void AttachServer::End(fd_store::Key key, ConnectionPtr connection) {
  loop_.Unwatch(connection->watch.exchange(0));
  // Shows the end to every holder of the other end.
  ::shutdown(connection->socket.get(), SHUT_RDWR);
  DropFromSupervisor(key, std::move(connection));
}

void AttachServer::DropOrphan(HeldFd held) { DropFromSupervisor(held.key, MakeConnection(std::move(held.fd))); }

void AttachServer::DropFromSupervisor(fd_store::Key key, ConnectionPtr connection) {
  {
    MutexLock lock(&mu_);
    dropping_[key] = std::move(connection);
  }
  fd_store_.Drop(key);
}

void AttachServer::SupervisorDropped(fd_store::Key key) {
  ConnectionPtr over;
  MutexLock lock(&mu_);
  const auto it = dropping_.find(key);
  if (it == dropping_.end()) return;
  over = std::move(it->second);
  dropping_.erase(it);
}

}  // namespace berth::service
