// AttachFront: attach.sock, and admin-attach.sock for operators. Opens sessions (lifelines), gives processes their
// channels, learns from the kernel when either ends, and carries deliveries out. The messages are in
// common/attach_wire.h.

#ifndef DAEMON_SERVICE_ATTACH_FRONT_H_
#define DAEMON_SERVICE_ATTACH_FRONT_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/attach_wire.h"
#include "common/fd_passing.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/core/effects.h"
#include "daemon/core/permit_types.h"
#include "daemon/core/standing.h"
#include "daemon/service/accept_gate.h"
#include "daemon/service/audit_log.h"
#include "daemon/service/fresh_connections.h"
#include "daemon/service/listening_socket.h"
#include "daemon/service/peer.h"
#include "daemon/service/refusal_log.h"
#include "daemon/service/uid_quota.h"
#include "daemon/vault/custody.h"

namespace berth::service {

// What a joining process is told of the node.
struct NodeFacts {
  uint64_t node = 0;
  uint64_t incarnation = 0;
  // The folder of the sockets, for the session's capsule.
  std::string folder;
};

// The bounds on connections to attach.sock.
struct AttachLimits {
  // File descriptors of one user: a lifeline takes one, a channel one and another for its process, which it keeps when
  // it has hung up. By default those of 4,096 sessions of one process each.
  uint32_t fds_per_uid = 3 * 4096;
  AcceptRates accepts;
};

// Thread-safe: connections are served on the event loop's thread, effects come on any.
class AttachFront {
 public:
  // `page` is the state page, opened read-only. `loop`, `broker` and `custody` must outlive the front.
  AttachFront(EventLoop* loop, Broker* broker, Custody* custody, NodeFacts facts, UniqueFd page,
              AttachLimits limits = {});
  ~AttachFront();

  // Operators pass no gate, and have fds of their own.
  absl::Status Listen(UniqueFd listener, bool of_operators);
  // Connections that came too fast.
  uint64_t refused_total() const { return gate_.refused_total(); }

  // Go on with what an earlier broker left, before Listen(): a session's lifeline, and a process with its channel,
  // where that has not hung up. What has happened to them since is told as the loop runs, some of it by TellDeaths()
  // before. Errors: those of the system; it cannot be gone on with then.
  absl::Status AdoptLifeline(const core::Standing::Lifeline& lifeline, UniqueFd socket);
  absl::Status AdoptProcess(const core::Standing::Process& process, UniqueFd pidfd, UniqueFd channel);
  // Tells the core which of the processes are gone, and which lifelines have hung up.
  void TellDeaths();
  // Notes in `word`, which outlives the broker, that something is being heard on a channel. If an earlier broker ended
  // at that, what is first on each channel is taken off before it is heard, so that no message can end more than two.
  // Called before anything is adopted; without it, the note is lost.
  void KeepHearing(std::atomic<uint64_t>* word);
  // Has every session and process that comes, or is refused, kept there, and reads who it is. Before anything is
  // adopted; `audit` outlives the front.
  void KeepAudit(AuditLog* audit) { audit_ = audit; }
  // What is adopted is an operator's where this listener has accepted it. Before anything is; without it, all is
  // tenants'.
  void RecognizeOperatorsBy(int listener) { operators_address_ = ListenerAddress(listener); }
  // Tells the processes that were taken up that a broker serves again, one after the other, and when what waits there
  // is to come back. Called once it does.
  void TellResumed();

  // Carries a Deliver effect out; `fd` is the block's or -1. A channel that takes nothing more is hung up.
  void Deliver(ChannelId channel, const attach::Delivery& delivery, int fd);
  // Ends a channel's connection, which the process and the event loop will see.
  void HangUp(ChannelId channel);
  // Carry CloseChannel, DropChannel and DropSession out: have the vault close its ends, then close ours.
  void CloseChannel(ChannelId channel);
  void DropChannel(ChannelId channel);
  void DropSession(SessionId session);
  // The vault has closed its copy of a lifeline or channel.
  void VaultDropped(custody::Key key);
  // Does the same with a lifeline or channel of an earlier broker's.
  void DropOrphan(HeldFd held);

 private:
  // One connection to attach.sock; it starts without a role. Its socket is closed off the loop (EventLoop::Close).
  struct Connection {
    UniqueFd socket;
    UidQuota::Place place;
    // Its role is kAdmin where it came in on operators' socket.
    Peer peer;
    // 0 once it is no longer watched.
    std::atomic<EventLoop::WatchId> watch = 0;
    // Among the fresh ones.
    FreshConnections<std::shared_ptr<Connection>>::Number number = 0;
    // Set once the connection is a lifeline or a channel.
    SessionId session;
    ChannelId channel;
    // Refusals sent on it.
    int refusals = 0;
    // Its next message is taken off before it is heard.
    bool cautious = false;
  };
  using ConnectionPtr = std::shared_ptr<Connection>;
  // A process that is to hear that a broker serves again, and after what its calls that waited are to come.
  struct Told {
    ConnectionPtr connection;
    absl::Duration return_after;
  };
  // The process behind a channel; it stays when the channel hangs up, to say when it is gone.
  struct Member {
    UniqueFd pidfd;
    UidQuota::Place place;
    SessionId session;
    int32_t pid = 0;
    EventLoop::WatchId watch = 0;
  };

  ConnectionPtr MakeConnection(UniqueFd socket);
  void Accept(UniqueFd socket, Peer::Role role);
  // Refuses who comes too fast.
  absl::Status Admit(Connection* connection);
  void OnReadable(const ConnectionPtr& connection);
  // `fds` came with the message, and are closed already.
  void OnMessage(const ConnectionPtr& connection, const Message& message, size_t fds);
  // Whether what the peer begins with can be kept. Errors: LEDGER_FULL.
  absl::Status CheckTakes(const Peer& peer);
  void OnHello(const ConnectionPtr& connection, const attach::Hello& hello);
  void OnJoin(const ConnectionPtr& connection, const attach::Join& join);
  void OnGiveBack(const ConnectionPtr& connection, const attach::GiveBack& give_back);
  // The connection ended, or was refused too often.
  void OnEnd(const ConnectionPtr& connection);
  void OnProcessGone(ChannelId channel);
  // Tells the peer why what it sent changed nothing.
  void Refuse(const ConnectionPtr& connection, const absl::Status& why, absl::Duration pause = absl::ZeroDuration());
  // Stops serving a connection that has no role.
  void Forget(const ConnectionPtr& connection);
  // Gives a connection that is a lifeline already into custody, and its peer the capsule. Errors: SESSION_ENDED if an
  // operator ended it meanwhile.
  absl::Status Welcome(const ConnectionPtr& connection, SessionId session, const Secret& secret);
  absl::Status Admit(const ConnectionPtr& connection, ChannelId channel, Member member);
  FreshConnections<ConnectionPtr>& FreshOf(const Peer& peer) {
    return peer.role == Peer::Role::kAdmin ? fresh_operators_ : fresh_;
  }
  UidQuota& QuotaOf(Peer::Role role) { return role == Peer::Role::kAdmin ? operator_quota_ : quota_; }
  // What a process needs to join. Errors: NOT_JOINED if its death could not be proved here, LIMIT.
  absl::StatusOr<Member> MakeMember(const Connection& connection, SessionId session);
  // The channels of the session that have hung up and are of this very process, which lives.
  std::vector<ChannelId> EarlierChannels(SessionId session, int32_t pid) ABSL_LOCKS_EXCLUDED(mu_);
  // Has `channel` stand for those as well.
  void ReplaceEarlier(SessionId session, int32_t pid, ChannelId channel);
  bool IsWatched(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasLifeline(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);
  // Logs why a connection got no role, unless its process ended meanwhile.
  void LogRefused(const char* what, const Peer& peer, const absl::Status& why);
  // A connection that is a lifeline or a channel since an earlier broker's time.
  ConnectionPtr Readopt(UniqueFd socket, const core::Tenant& tenant, const core::ProcessInfo& process);
  // Keeps what became of a connection that came, or wanted to be a lifeline or a channel.
  void Audit(const char* what, const Connection& connection, const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps that a process gave an acquisition back.
  void AuditGiveBack(const Connection& connection, AcquisitionId acquisition, bool if_idle,
                     const core::ReleaseResult& result) ABSL_LOCKS_EXCLUDED(mu_);
  // Who is behind it, as far as it lives.
  std::shared_ptr<const AuditWho> WhoIs(const Connection& connection) const;
  // Reads who those are that were taken up, and live.
  void ReadOrigins(const std::vector<core::Standing::Process>& processes, std::stop_token stop)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Serves a connection from now on.
  absl::Status WatchConnection(const ConnectionPtr& connection);
  // Gives the peer the session's capsule.
  absl::Status SendCapsule(const ConnectionPtr& connection, SessionId session, const Secret& secret);
  // Ends a connection that has a role.
  void End(custody::Key key, ConnectionPtr connection);
  // Asks the vault to close its copy, and keeps the connection until it has.
  void DropFromVault(custody::Key key, ConnectionPtr connection);

  EventLoop& loop_;
  Broker& broker_;
  Custody& custody_;
  const NodeFacts facts_;
  const UniqueFd page_;
  // Synchronised by themselves.
  UidQuota quota_;
  UidQuota operator_quota_;
  AcceptGate gate_;
  RefusalLog log_;
  std::vector<std::unique_ptr<ListeningSocket>> listeners_;

  // Loop's thread only, as what follows.
  std::atomic<uint64_t> unkept_hearing_ = 0;
  std::atomic<uint64_t>* hearing_ = &unkept_hearing_;
  // For what is adopted.
  bool cautious_ = false;
  AuditLog* audit_ = nullptr;
  std::string operators_address_;
  // Until TellResumed().
  std::vector<core::Standing::Process> adopted_;
  // Connections that have not said what they are.
  FreshConnections<ConnectionPtr> fresh_;
  FreshConnections<ConnectionPtr> fresh_operators_;

  Mutex mu_;
  absl::flat_hash_map<SessionId, ConnectionPtr> lifelines_ ABSL_GUARDED_BY(mu_);
  // Of channels that have not hung up.
  absl::flat_hash_map<ChannelId, ConnectionPtr> channels_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ChannelId, Member> members_ ABSL_GUARDED_BY(mu_);
  // Those that have hung up, by session and pid.
  std::set<std::tuple<SessionId, int32_t, ChannelId>> hung_up_ ABSL_GUARDED_BY(mu_);
  // Over, and still with the vault: whose close is the last may have to wait for a client, and the vault must not.
  std::map<custody::Key, ConnectionPtr> dropping_ ABSL_GUARDED_BY(mu_);

  // In TellResumed().
  std::jthread teller_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_ATTACH_FRONT_H_
