#include "daemon/service/attach_front.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/label.h"
#include "common/process.h"
#include "common/session_capsule.h"
#include "common/status_macros.h"
#include "daemon/core/response.h"
#include "daemon/service/audit_facts.h"
#include "daemon/service/refused_conversion.h"
#include "daemon/vault/fd_reserve.h"

namespace berth::service {
namespace {

// A connection that never says what it is costs an fd; past this many one is ended.
constexpr size_t kMaxFresh = 2048;
// Messages taken of one connection before the others get their turn.
constexpr int kMessagesPerEvent = 16;
// A peer that is refused this often on one connection means harm, or will not learn.
constexpr int kMaxRefusals = 16;

std::string TextOf(const char* text, size_t size) { return std::string(text, strnlen(text, size)); }

// The message as a T, or nothing if its size is not a T's.
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

// The message as a HandedOver with the marks that it counts, or nothing.
std::optional<attach::HandedOver> AsHandedOver(const Message& message) {
  attach::HandedOver handed;
  const size_t size = message.bytes.size();
  if (!message.fds.empty() || size < attach::HandedOver::kHeadBytes || size > sizeof(handed))
    return std::nullopt;
  memcpy(&handed, message.bytes.data(), size);
  const bool whole = handed.kind == attach::Kind::kHandedOver &&
                     handed.count <= attach::HandedOver::kMaxMarks &&
                     size == attach::HandedOver::BytesOf(handed.count);
  return whole ? std::optional(handed) : std::nullopt;
}

// What does not say what it did counts as a write.
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

absl::Status CheckVersion(uint32_t version) {
  if (version == attach::kVersion) return absl::OkStatus();
  return berth::Refuse(Reason::kInvalidField, "{field}: {value} is not served, this daemon speaks {limit}",
                       {{"field", "version"}, {"value", version}, {"limit", attach::kVersion}});
}

custody::Key LifelineKey(SessionId session) { return {custody::Kind::kLifeline, 0, session.value()}; }
custody::Key ChannelKey(ChannelId channel) { return {custody::Kind::kChannel, 0, channel.value()}; }
custody::Key PidfdKey(ChannelId channel) { return {custody::Kind::kPidfd, 0, channel.value()}; }

}  // namespace

AttachFront::AttachFront(EventLoop* loop, Broker* broker, Custody* custody, NodeFacts facts, UniqueFd page,
                         AttachLimits limits)
    : loop_(*loop),
      broker_(*broker),
      custody_(*custody),
      facts_(std::move(facts)),
      page_(std::move(page)),
      quota_("fds of attach.sock connections", limits.fds_per_uid),
      operator_quota_("fds of admin-attach.sock connections", kOperatorSessionFds),
      gate_(limits.accepts),
      fresh_(kMaxFresh),
      fresh_operators_(kOperatorSessionFds) {}

AttachFront::~AttachFront() {
  for (const auto* const fresh : {&fresh_, &fresh_operators_}) {
    fresh->ForEach([this](const ConnectionPtr& connection) { loop_.Unwatch(connection->watch); });
  }
  MutexLock lock(&mu_);
  for (const auto& [session, connection] : lifelines_) loop_.Unwatch(connection->watch);
  for (const auto& [channel, connection] : channels_) loop_.Unwatch(connection->watch);
  for (const auto& [channel, member] : members_) loop_.Unwatch(member.watch);
}

absl::Status AttachFront::Listen(UniqueFd listener, bool of_operators) {
  const Peer::Role role = of_operators ? Peer::Role::kAdmin : Peer::Role::kTenant;
  BERTH_ASSIGN_OR_RETURN(
      listeners_.emplace_back(),
      ListeningSocket::Listen(&loop_, std::move(listener), FdLimitOf(OwnerOf(role)),
                              [this, role](UniqueFd socket) { Accept(std::move(socket), role); }));
  return absl::OkStatus();
}

AttachFront::ConnectionPtr AttachFront::MakeConnection(UniqueFd socket) {
  ConnectionPtr connection(new Connection, [this](Connection* over) {
    loop_.Close(std::move(over->socket));
    delete over;
  });
  connection->socket = std::move(socket);
  return connection;
}

absl::Status AttachFront::Admit(Connection* connection) {
  BERTH_ASSIGN_OR_RETURN(const PeerCredentials credentials, GetPeerCredentials(connection->socket.get()));
  // Until it is identified.
  connection->peer.process = {.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};
  connection->peer.tenant.uid = credentials.uid;
  if (connection->peer.role == Peer::Role::kAdmin) return absl::OkStatus();
  return gate_.Admit(credentials.uid, EventLoop::SteadyNow());
}

void AttachFront::Accept(UniqueFd socket, Peer::Role role) {
  const ConnectionPtr connection = MakeConnection(std::move(socket));
  connection->peer.role = role;
  if (const absl::Status admitted = Admit(connection.get()); !admitted.ok()) {
    log_.Warn(absl::StrCat("attach.sock: connection refused: ", admitted.message()));
    Audit("connect", *connection, admitted);
    return Refuse(connection, admitted, AcceptGate::kPause);
  }
  absl::StatusOr<Peer> peer = IdentifyPeer(connection->socket.get(), role);
  if (!peer.ok()) {
    log_.Warn(absl::StrCat("attach.sock: connection refused: ", peer.status().message()));
    Audit("connect", *connection, peer.status());
    Refuse(connection, peer.status());
    return;
  }
  connection->peer = *std::move(peer);
  absl::StatusOr<UidQuota::Place> place = QuotaOf(role).Take(connection->peer.process.uid);
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
  connection->number = fresh.Add(connection->peer.process.uid, connection);
  if (const std::optional<ConnectionPtr> surplus = fresh.Surplus()) Forget(*surplus);
}

absl::Status AttachFront::WatchConnection(const ConnectionPtr& connection) {
  BERTH_ASSIGN_OR_RETURN(connection->watch,
                         loop_.Watch(connection->socket.get(), EPOLLIN | EPOLLRDHUP,
                                     [this, connection](uint32_t) { OnReadable(connection); }));
  return absl::OkStatus();
}

void AttachFront::OnReadable(const ConnectionPtr& connection) {
  for (int i = 0; i < kMessagesPerEvent; ++i) {
    // What a process says on its channel is taken off it once the core has heard it: it is said once, and a broker that
    // ends in between leaves it to the next one.
    bool heard = false;
    if (connection->channel && !std::exchange(connection->cautious, false)) {
      const absl::StatusOr<Message> next = PeekMessage(connection->socket.get());
      // What comes from here on is not to be taken off unheard.
      if (IsWouldBlock(next.status())) return;
      heard = next.ok();
      if (heard) {
        hearing_->store(1, std::memory_order_relaxed);
        OnMessage(connection, *next, next->fds_lost ? 1 : 0);
      }
    }
    // It may have ended the connection.
    if (connection->watch == 0) {
      hearing_->store(0, std::memory_order_relaxed);
      return;
    }
    std::vector<UniqueFd> fds;
    const absl::StatusOr<Message> message = ReceiveFromStranger(connection->socket.get(), &fds);
    hearing_->store(0, std::memory_order_relaxed);
    for (UniqueFd& fd : fds) loop_.Close(std::move(fd));
    if (message.ok()) {
      if (!heard) OnMessage(connection, *message, fds.size());
    } else if (absl::IsDataLoss(message.status())) {
      Refuse(connection,
             berth::Refuse(
                 Reason::kInvalidField, "{field}: {value}; limit {limit}",
                 {{"field", "message"}, {"value", message.status().message()}, {"limit", kMaxMessageBytes}}));
    } else {
      if (!IsWouldBlock(message.status())) OnEnd(connection);
      return;
    }
    // What was read may have ended the connection.
    if (connection->watch == 0) return;
  }
}

void AttachFront::OnMessage(const ConnectionPtr& connection, const Message& message, size_t fds) {
  // With an fd it is no message of any kind.
  const attach::Kind kind = fds == 0 ? KindOf(message) : attach::Kind{};
  const bool fresh = !connection->session && !connection->channel;
  if (const auto hello = As<attach::Hello>(message); fresh && hello && kind == attach::Kind::kHello) {
    OnHello(connection, *hello);
  } else if (const auto join = As<attach::Join>(message); fresh && join && kind == attach::Kind::kJoin) {
    OnJoin(connection, *join);
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
  } else {
    const char* const expected = connection->channel   ? "an Ack, a LetGo, a HandedOver or a GiveBack"
                                 : connection->session ? "nothing: a lifeline is silent"
                                                       : "a Hello or a Join";
    Refuse(connection, berth::Refuse(Reason::kInvalidField,
                                     "{field} of kind {kind}, {value} bytes and {fds} fds; expected {limit}",
                                     {{"field", "message"},
                                      {"kind", static_cast<uint32_t>(KindOf(message))},
                                      {"value", message.bytes.size()},
                                      {"fds", fds},
                                      {"limit", expected}}));
  }
}

void AttachFront::OnGiveBack(const ConnectionPtr& connection, const attach::GiveBack& give_back) {
  const AcquisitionId acquisition(give_back.acquisition);
  const bool if_idle = give_back.if_idle != 0;
  const bool serves = broker_.CheckServes().ok();
  if (serves) {
    absl::StatusOr<core::ReleaseResult> result;
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      result = core.GiveBack(now, connection->channel, acquisition, if_idle, effects);
    });
    // What gave nothing back decided nothing.
    if (result.ok()) AuditGiveBack(*connection, acquisition, if_idle, *result);
  }
  // Before the message is taken off the channel: a broker that ends here leaves the answer to the next one, too.
  const attach::GaveBack gave_back = {.taken = serves ? 1u : 0u, .acquisition = acquisition.value()};
  if (!SendStruct(connection->socket.get(), gave_back).ok()) ::shutdown(connection->socket.get(), SHUT_RDWR);
}

absl::Status AttachFront::CheckTakes(const Peer& peer) {
  return broker_.CheckTakesProcesses(/*of_operator=*/peer.role == Peer::Role::kAdmin);
}

void AttachFront::OnHello(const ConnectionPtr& connection, const attach::Hello& hello) {
  const std::string label = TextOf(hello.label, sizeof(hello.label));
  absl::Status valid = CheckVersion(hello.version);
  if (valid.ok()) valid = ValidateLabel("label", label);
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
    // In the same step: whoever ends the session finds its lifeline.
    if (audit_ != nullptr) audit_->NoteSession(*session, label);
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

absl::Status AttachFront::Welcome(const ConnectionPtr& connection, SessionId session, const Secret& secret) {
  FreshOf(connection->peer).Remove(connection->peer.process.uid, connection->number);
  BERTH_RETURN_IF_ERROR(custody_.Put(LifelineKey(session), connection->socket.get(), OwnerOf(connection->peer.role)));
  if (!HasLifeline(session)) {
    // It ended before it was in custody, and was dropped there too early.
    custody_.Drop(LifelineKey(session));
    return berth::Refuse(Reason::kSessionEnded, "session {session} has ended",
                         {{"session", session.value()}});
  }
  return SendCapsule(connection, session, secret);
}

absl::Status AttachFront::SendCapsule(const ConnectionPtr& connection, SessionId session, const Secret& secret) {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd capsule,
                         WriteCapsule({.session = session, .secret = secret, .folder = facts_.folder}));
  const int fd = capsule.get();
  return SendStruct(connection->socket.get(), attach::Welcome{}, {&fd, 1});
}

bool AttachFront::HasLifeline(SessionId session) {
  MutexLock lock(&mu_);
  return lifelines_.contains(session);
}

void AttachFront::LogRefused(const char* what, const Peer& peer, const absl::Status& why) {
  // A peer that died is no news.
  if (absl::IsUnavailable(why)) return;
  log_.Warn(absl::StrCat("attach.sock: ", what, " of pid ", peer.process.pid, " refused: ", why.message()));
}

absl::StatusOr<AttachFront::Member> AttachFront::MakeMember(const Connection& connection, SessionId session) {
  const core::ProcessInfo& process = connection.peer.process;
  Member member = {.session = session, .pid = process.pid};
  absl::StatusOr<UniqueFd> pidfd =
      OpenPeerPidfd(connection.socket.get(), {.pid = process.pid, .uid = process.uid, .gid = process.gid});
  if (!pidfd.ok()) {
    return berth::Refuse(
        Reason::kNotJoined, "session {session}: the death of pid {pid} could not be proved here: {why}",
        {{"session", session.value()}, {"pid", process.pid}, {"why", pidfd.status().message()}});
  }
  member.pidfd = *std::move(pidfd);
  BERTH_ASSIGN_OR_RETURN(member.place, QuotaOf(connection.peer.role).Take(process.uid));
  return member;
}

std::vector<ChannelId> AttachFront::EarlierChannels(SessionId session, int32_t pid) {
  std::vector<ChannelId> earlier;
  // One that is not visible here has no number that says which it is.
  if (pid <= 0) return earlier;
  MutexLock lock(&mu_);
  for (auto it = hung_up_.lower_bound({session, pid, ChannelId()}); it != hung_up_.end(); ++it) {
    const auto& [its_session, its_pid, channel] = *it;
    if (its_session != session || its_pid != pid) break;
    // While a process lives nobody else gets its number: the one that connected by it is the same.
    if (!IsGone(members_.at(channel).pidfd.get())) earlier.push_back(channel);
  }
  return earlier;
}

void AttachFront::ReplaceEarlier(SessionId session, int32_t pid, ChannelId channel) {
  const std::vector<ChannelId> earlier = EarlierChannels(session, pid);
  if (earlier.empty()) return;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    for (const ChannelId before : earlier) core.ReplaceChannel(now, before, channel, effects);
  });
}

void AttachFront::OnJoin(const ConnectionPtr& connection, const attach::Join& join) {
  const SessionId session(join.session);
  const Peer& peer = connection->peer;
  absl::Status valid = CheckVersion(join.version);
  if (valid.ok()) valid = CheckTakes(peer);
  absl::StatusOr<Member> member = valid.ok() ? MakeMember(*connection, session) : absl::StatusOr<Member>(valid);
  if (!member.ok()) {
    Audit("join_session", *connection, member.status());
    Refuse(connection, member.status());
    return;
  }
  absl::StatusOr<ChannelId> channel;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects*) {
    channel = core.JoinSession(now, session, join.secret, peer.tenant, peer.process);
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
    // Without its pidfd watched nobody would ever say that the process is gone; it got nothing, so it counts as gone.
    if (!IsWatched(*channel)) OnProcessGone(*channel);
  }
}

absl::Status AttachFront::Admit(const ConnectionPtr& connection, ChannelId channel, Member member) {
  FreshOf(connection->peer).Remove(connection->peer.process.uid, connection->number);
  connection->channel = channel;
  const SessionId session = member.session;
  // It stays the member's, which stays until this thread tells the core of an end.
  const int pidfd = member.pidfd.get();
  {
    MutexLock lock(&mu_);
    channels_[channel] = connection;
    members_[channel] = std::move(member);
  }
  Audit("join_session", *connection, absl::OkStatus());
  const FdOwner owner = OwnerOf(connection->peer.role);
  BERTH_RETURN_IF_ERROR(custody_.Put(ChannelKey(channel), connection->socket.get(), owner));
  BERTH_RETURN_IF_ERROR(custody_.Put(PidfdKey(channel), pidfd, owner));
  BERTH_ASSIGN_OR_RETURN(const EventLoop::WatchId watch,
                         loop_.Watch(pidfd, EPOLLIN, [this, channel](uint32_t) { OnProcessGone(channel); }));
  {
    MutexLock lock(&mu_);
    members_.at(channel).watch = watch;
  }
  // Not before: now somebody says of this one when its process is gone.
  ReplaceEarlier(session, connection->peer.process.pid, channel);
  const attach::Joined joined = {
      .channel = channel.value(), .node = facts_.node, .incarnation = facts_.incarnation};
  const int page = page_.get();
  return SendStruct(connection->socket.get(), joined, {&page, 1});
}

bool AttachFront::IsWatched(ChannelId channel) {
  MutexLock lock(&mu_);
  const auto it = members_.find(channel);
  return it != members_.end() && it->second.watch != 0;
}

void AttachFront::OnEnd(const ConnectionPtr& connection) {
  if (!connection->session && !connection->channel) {
    Forget(connection);
    return;
  }
  loop_.Unwatch(connection->watch.exchange(0));
  // A peer that broke the protocol shall see that it is over; our fd stays until the core drops it.
  ::shutdown(connection->socket.get(), SHUT_RDWR);
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    if (connection->channel) {
      core.ChannelHungUp(now, connection->channel, effects);
    } else {
      core.LifelineHungUp(now, connection->session, effects);
    }
  });
}

void AttachFront::OnProcessGone(ChannelId channel) {
  EventLoop::WatchId watch = 0;
  {
    MutexLock lock(&mu_);
    const auto it = members_.find(channel);
    if (it != members_.end()) watch = std::exchange(it->second.watch, 0);
  }
  loop_.Unwatch(watch);
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.ProcessGone(now, channel, effects);
  });
}

void AttachFront::Refuse(const ConnectionPtr& connection, const absl::Status& why, absl::Duration pause) {
  SendStruct(connection->socket.get(), ToRefused(why, pause)).IgnoreError();
  if (++connection->refusals == kMaxRefusals) OnEnd(connection);
}

void AttachFront::Forget(const ConnectionPtr& connection) {
  loop_.Unwatch(connection->watch.exchange(0));
  FreshOf(connection->peer).Remove(connection->peer.process.uid, connection->number);
}

void AttachFront::Deliver(ChannelId channel, const attach::Delivery& delivery, int fd) {
  ConnectionPtr connection;
  {
    MutexLock lock(&mu_);
    const auto it = channels_.find(channel);
    if (it == channels_.end()) return;
    connection = it->second;
  }
  const absl::Status sent = SendStruct(connection->socket.get(), delivery,
                                       fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>());
  // The window keeps a well-behaved channel from filling up: one that takes no more is ended, which the loop will see.
  if (!sent.ok()) ::shutdown(connection->socket.get(), SHUT_RDWR);
}

void AttachFront::HangUp(ChannelId channel) {
  MutexLock lock(&mu_);
  const auto it = channels_.find(channel);
  if (it != channels_.end()) ::shutdown(it->second->socket.get(), SHUT_RDWR);
}

void AttachFront::CloseChannel(ChannelId channel) {
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

void AttachFront::DropChannel(ChannelId channel) {
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
  custody_.Drop(PidfdKey(channel));
  if (connection != nullptr) End(ChannelKey(channel), std::move(connection));
}

void AttachFront::DropSession(SessionId session) {
  ConnectionPtr connection;
  {
    MutexLock lock(&mu_);
    const auto it = lifelines_.find(session);
    if (it == lifelines_.end()) return;
    connection = std::move(it->second);
    lifelines_.erase(it);
  }
  End(LifelineKey(session), std::move(connection));
}

void AttachFront::End(custody::Key key, ConnectionPtr connection) {
  loop_.Unwatch(connection->watch.exchange(0));
  // Whoever still holds the other end shall see it.
  ::shutdown(connection->socket.get(), SHUT_RDWR);
  DropFromVault(key, std::move(connection));
}

void AttachFront::DropOrphan(HeldFd held) { DropFromVault(held.key, MakeConnection(std::move(held.fd))); }

void AttachFront::DropFromVault(custody::Key key, ConnectionPtr connection) {
  {
    MutexLock lock(&mu_);
    dropping_[key] = std::move(connection);
  }
  custody_.Drop(key);
}

void AttachFront::VaultDropped(custody::Key key) {
  ConnectionPtr over;
  MutexLock lock(&mu_);
  const auto it = dropping_.find(key);
  if (it == dropping_.end()) return;
  over = std::move(it->second);
  dropping_.erase(it);
}

}  // namespace berth::service
