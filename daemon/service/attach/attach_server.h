// AttachServer: serves attach.sock, and admin-attach.sock for operators. Opens sessions (lifelines), gives processes
// their channels, detects the end of both through the kernel, and sends deliveries. common/wire/attach_wire.h defines
// the messages.

#ifndef DAEMON_SERVICE_ATTACH_ATTACH_SERVER_H_
#define DAEMON_SERVICE_ATTACH_ATTACH_SERVER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <stop_token>
#include <tuple>
#include <vector>

#include <berth/end_notice.h>
#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"
#include "common/thread.h"
#include "common/wire/attach_wire.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/core/types/effects.h"
#include "daemon/core/types/permit_types.h"
#include "daemon/core/types/restored_state.h"
#include "daemon/service/attach/attach_limits.h"
#include "daemon/service/attach/fds_in_flight.h"
#include "daemon/service/attach/holder_watch.h"
#include "daemon/service/attach/listening_socket.h"
#include "daemon/service/attach/side_calls.h"
#include "daemon/service/audit/audit_log.h"
#include "daemon/service/limits/accept_gate.h"
#include "daemon/service/limits/refusal_log.h"
#include "daemon/service/limits/uid_quota.h"
#include "daemon/service/transport/fresh_connections.h"
#include "daemon/service/transport/peer.h"
#include "daemon/supervisor/fd_store/supervisor_fd_store.h"

namespace berth::service {

// Facts about the node for a joining process.
struct NodeFacts {
  uint64_t node = 0;
  uint64_t incarnation = 0;
  // Folder of the sockets, for the session credentials.
  std::string folder;
};

// Thread-safe: the event loop's thread serves connections; effects arrive on any thread.
class AttachServer {
 public:
  // `page` is the state page, opened read-only. `loop`, `broker` and `fd_store` must outlive the server.
  AttachServer(EventLoop* loop, Broker* broker, SupervisorFdStore* fd_store, NodeFacts facts, UniqueFd page,
               AttachLimits limits = {});
  ~AttachServer();

  // Operators bypass the gate, and have fds of their own.
  absl::Status Listen(UniqueFd listener, bool of_operators);
  // Returns the number of connections refused because of their rate.
  uint64_t refused_total() const { return gate_.refused_total(); }

  // Adopt state of an earlier broker, before Listen(): a session's lifeline; a process with its channel, if that has
  // not hung up. Events since then are reported as the loop runs, or earlier by NotifyDeaths(). Errors: those of the
  // system; the state is then lost.
  absl::Status AdoptLifeline(const core::RestoredState::Lifeline& lifeline, UniqueFd socket);
  absl::Status AdoptProcess(const core::RestoredState::Process& process, UniqueFd pidfd, UniqueFd channel);
  // Adopt state that lost its sockets with the earlier daemon. The session lives while a process holds its credentials,
  // or after its lifeline is connected again. Its holders are not `seen` if they are in another PID namespace. Such a
  // session lives until an operator ends it, or until it has nothing that counts and no connected process
  // (Core::EndIfUnused()). The process may reconnect its channel. `proven` is false if the pidfd is
  // a placeholder for a process that cannot be found.
  void AdoptDetached(const core::RestoredState::Lifeline& lifeline, bool seen);
  absl::Status AdoptAway(const core::RestoredState::Process& process, UniqueFd pidfd, bool proven);
  // Reports to the core which adopted processes have ended and which lifelines have hung up.
  void NotifyDeaths();
  // Sets `flag`, which outlives the broker, while a channel's message is processed. If an earlier broker ended with the
  // flag set, the first message of each channel is consumed before it is processed: one message can end at most two
  // brokers. Call before any adoption; without it, the flag does not persist.
  void SetHearing(std::atomic<uint64_t>* flag);
  // Records every session and process that joins or is refused in `audit`, with its identity. Call before any adoption;
  // `audit` outlives the server.
  void SetAuditLog(AuditLog* audit) {
    audit_ = audit;
    calls_.SetAuditLog(audit);
  }
  // Treats an adopted connection as an operator's if `listener` accepted it. Call before any adoption; without it, all
  // count as tenants'.
  void RecognizeOperatorsBy(int listener) { operators_address_ = ListenerAddress(listener); }
  // Notifies the adopted processes, one by one, that a broker serves again, and when their waiting calls may retry.
  // Call once the broker serves.
  void NotifyResumed();

  // Sends a Deliver effect; `fd` is the block's or -1. Hangs up a channel that accepts no more.
  void Deliver(ChannelId channel, const attach::Delivery& delivery, int fd);
  // Notifies every process that its session has ended, bypassing the core; no later message follows.
  void NotifyEnded(const EndNotice& end);
  // Notifies the process at the socket of a channel that was not adopted.
  static void NotifyEnded(int socket, const EndNotice& end);
  // Ends a channel's connection; the process and the event loop see the end.
  void HangUp(ChannelId channel);
  // Execute CloseChannel, DropChannel and DropSession: the supervisor closes its ends first, then the server closes its
  // own.
  void CloseChannel(ChannelId channel);
  void DropChannel(ChannelId channel);
  void DropSession(SessionId session);
  // Handles the supervisor's confirmation that it has closed its copy of a lifeline or channel.
  void SupervisorDropped(fd_store::Key key);
  // Closes a lifeline or channel of an earlier broker in the same way.
  void DropOrphan(HeldFd held);

 private:
  // A connection to attach.sock; it starts without a role. EventLoop::Close() closes its socket off the loop.
  struct Connection {
    UniqueFd socket;
    UidQuota::Place place;
    // The role is kAdmin if the connection came in on the operators' socket.
    Peer peer;
    // 0 once it is not watched any more.
    std::atomic<EventLoop::WatchId> watch = 0;
    // The connection's number among the fresh connections.
    FreshConnections<std::shared_ptr<Connection>>::Number number = 0;
    // Set once the connection is a lifeline or a channel.
    SessionId session;
    ChannelId channel;
    // Number of refusals sent on the connection.
    int refusals = 0;
    // The next message is consumed before it is processed.
    bool cautious = false;
  };
  using ConnectionPtr = std::shared_ptr<Connection>;
  // A process to notify that a broker serves again, and the time after which its waiting calls may retry.
  struct Notice {
    ConnectionPtr connection;
    absl::Duration return_after;
  };
  // The process behind a channel; it remains after the channel hangs up, to report the process's end.
  struct Member {
    UniqueFd pidfd;
    UidQuota::Place place;
    SessionId session;
    int32_t pid = 0;
    EventLoop::WatchId watch = 0;
    // The connection was lost with an earlier daemon; the process may reconnect by the channel's number.
    bool away = false;
    // False if the pidfd is a placeholder.
    bool proven = true;
  };
  struct DetachedSession {
    // Inode.
    uint64_t session_credentials = 0;
    // The daemon's PID namespace shows the session's holders.
    bool seen = true;
  };

  ConnectionPtr MakeConnection(UniqueFd socket);
  // Counts an fd that is about to be sent to the peer. Errors: LIMIT.
  absl::Status CountFd(const Connection& connection);
  // Closes a connection once its peer has received each fd.
  void Close(std::unique_ptr<Connection> connection) ABSL_LOCKS_EXCLUDED(closing_mu_);
  // Handles that the peer of a connection in `closing_` has received a message, or has ended.
  void OnReceived(int socket) ABSL_LOCKS_EXCLUDED(closing_mu_);
  // Connections that end from now on are closed at once, and those in `closing_` with this server.
  void CloseAll() ABSL_LOCKS_EXCLUDED(closing_mu_);
  void Accept(UniqueFd socket, Peer::Role role);
  void OnReadable(const ConnectionPtr& connection);
  // `fds` is the number of fds that came with the message; they are closed already.
  void OnMessage(const ConnectionPtr& connection, const Message& message, size_t fds);
  static absl::Status CheckVersion(uint32_t version);
  // Checks that the ledger can store what the peer begins. Errors: LEDGER_FULL.
  absl::Status CheckTakes(const Peer& peer);
  void OnHello(const ConnectionPtr& connection, const attach::Hello& hello);
  void OnJoin(const ConnectionPtr& connection, const attach::Join& join);
  void OnRejoin(const ConnectionPtr& connection, const attach::Rejoin& rejoin);
  absl::Status Rejoin(const ConnectionPtr& connection, const attach::Rejoin& rejoin);
  absl::Status RejoinLifeline(const ConnectionPtr& connection, SessionId session);
  absl::Status RejoinChannel(const ConnectionPtr& connection, SessionId session, ChannelId channel);
  // Sends a process its channel and the node's facts.
  absl::Status SendJoined(const ConnectionPtr& connection, ChannelId channel);
  // Handles the end of a session's lifeline: other processes may hold a detached session. Returns whether the session
  // waits for their end.
  bool AwaitHolders(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a channel's session if that has no lifeline, else 0.
  SessionId SessionWithoutLifeline(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  // Starts the search for a session's holders, or restarts it. If they are not seen, ends the session if it is unused.
  // Does nothing unless the session is detached.
  void WatchHolders(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);
  // Handles that no process holds the credentials of a session without a lifeline.
  void OnHoldersGone(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AdoptMember(const core::RestoredState::Process& process, Member member, ConnectionPtr connection)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnGiveBack(const ConnectionPtr& connection, const attach::GiveBack& give_back);
  // Serves a call of a process without gRPC.
  void OnAsk(const ConnectionPtr& connection, const Message& message) ABSL_LOCKS_EXCLUDED(mu_);
  // Handles the end of a connection, or too many refusals on it.
  void OnEnd(const ConnectionPtr& connection);
  void OnProcessGone(ChannelId channel);
  // Sends the peer the reason why its message changed nothing.
  void Refuse(const ConnectionPtr& connection, const absl::Status& why, absl::Duration pause = absl::ZeroDuration());
  // Stops serving a connection without a role.
  void Forget(const ConnectionPtr& connection);
  // Stores the fd of a new lifeline with the supervisor, and sends its peer the session credentials. Errors:
  // SESSION_ENDED if an operator ended the session meanwhile.
  absl::Status Welcome(const ConnectionPtr& connection, SessionId session, const Secret& secret);
  absl::Status Admit(const ConnectionPtr& connection, ChannelId channel, Member member);
  FreshConnections<ConnectionPtr>& FreshOf(const Peer& peer) {
    return peer.role == Peer::Role::kAdmin ? fresh_operators_ : fresh_;
  }
  UidQuota& QuotaOf(Peer::Role role) { return role == Peer::Role::kAdmin ? operator_quota_ : quota_; }
  // Makes the member of a joining process. Errors: NOT_JOINED if the process's death could not be detected here, LIMIT.
  absl::StatusOr<Member> MakeMember(const Connection& connection, SessionId session);
  // Returns the session's hung-up channels that belong to this same, living process.
  std::vector<ChannelId> EarlierChannels(SessionId session, int32_t pid) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes `channel` represent the earlier channels as well.
  void ReplaceEarlier(SessionId session, int32_t pid, ChannelId channel);
  bool IsWatched(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasLifeline(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);
  // Logs why a connection got no role, unless its process ended meanwhile.
  void LogRefused(const char* what, const Peer& peer, const absl::Status& why);
  // Makes the connection of a lifeline or channel of an earlier broker.
  ConnectionPtr Readopt(UniqueFd socket, const core::Tenant& tenant, const core::ProcessInfo& process);
  // Records the outcome for a connection that was accepted, or requested to be a lifeline or a channel.
  void Audit(const char* what, const Connection& connection, const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  // Records that a process returned an acquisition.
  void AuditGiveBack(const Connection& connection, AcquisitionId acquisition,
                     const core::ReleaseResult& result) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the identity of the process behind the connection, if the process lives.
  std::shared_ptr<const AuditWho> WhoIs(const Connection& connection) const;
  // Reads the identities of adopted processes that live.
  void ReadOrigins(const std::vector<core::RestoredState::Process>& processes, std::stop_token stop)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Starts serving a connection.
  absl::Status WatchConnection(const ConnectionPtr& connection);
  // Sends the peer the session credentials.
  absl::Status SendSessionCredentials(const ConnectionPtr& connection, SessionId session, const Secret& secret);
  // Ends a connection that has a role.
  void End(fd_store::Key key, ConnectionPtr connection);
  // Requests the supervisor to close its copy, and holds the connection until then.
  void DropFromSupervisor(fd_store::Key key, ConnectionPtr connection);

  EventLoop& loop_;
  Broker& broker_;
  SideCalls calls_;
  SupervisorFdStore& fd_store_;
  const NodeFacts facts_;
  const UniqueFd page_;
  // Internally synchronised.
  UidQuota quota_;
  UidQuota operator_quota_;
  FdsInFlight in_flight_;
  Mutex closing_mu_;
  bool ending_ ABSL_GUARDED_BY(closing_mu_) = false;
  // Connections that have ended while their peers had not received each fd, by socket.
  std::map<int, std::unique_ptr<Connection>> closing_ ABSL_GUARDED_BY(closing_mu_);
  AcceptGate gate_;
  RefusalLog log_;
  std::map<Peer::Role, std::unique_ptr<ListeningSocket>> listeners_;

  // This and the following fields are used on the loop's thread only.
  std::atomic<uint64_t> own_hearing_ = 0;
  std::atomic<uint64_t>* hearing_ = &own_hearing_;
  // Initial `cautious` of adopted connections.
  bool cautious_ = false;
  AuditLog* audit_ = nullptr;
  std::string operators_address_;
  // Processes adopted before NotifyResumed().
  std::vector<core::RestoredState::Process> adopted_;
  // Connections that have not sent a Hello, a Join or a Rejoin.
  FreshConnections<ConnectionPtr> fresh_;
  FreshConnections<ConnectionPtr> fresh_operators_;

  Mutex mu_;
  absl::flat_hash_map<SessionId, ConnectionPtr> lifelines_ ABSL_GUARDED_BY(mu_);
  // Detached sessions (daemon/core/sessions/session_table.h).
  absl::flat_hash_map<SessionId, DetachedSession> detached_ ABSL_GUARDED_BY(mu_);
  // Channels that have not hung up.
  absl::flat_hash_map<ChannelId, ConnectionPtr> channels_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ChannelId, Member> members_ ABSL_GUARDED_BY(mu_);
  // Channels that have hung up, by session and pid.
  std::set<std::tuple<SessionId, int32_t, ChannelId>> hung_up_ ABSL_GUARDED_BY(mu_);
  // Ended connections that the supervisor still holds. The last close may block on a client, which must not block the
  // supervisor.
  std::map<fd_store::Key, ConnectionPtr> dropping_ ABSL_GUARDED_BY(mu_);

  // The thread of NotifyResumed().
  std::stop_source notifier_stop_;
  Thread notifier_;
  // Created at the first detached session.
  std::unique_ptr<HolderWatch> holders_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_ATTACH_ATTACH_SERVER_H_
