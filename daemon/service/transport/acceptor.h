// Acceptor: an accept loop in front of gRPC. gRPC 1.51's listener fails permanently at the first EMFILE and cannot
// identify callers. The acceptor identifies each peer, enforces the limits, and passes gRPC a connected fd.

#ifndef DAEMON_SERVICE_TRANSPORT_ACCEPTOR_H_
#define DAEMON_SERVICE_TRANSPORT_ACCEPTOR_H_

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/attach/listening_socket.h"
#include "daemon/service/audit/audit_log.h"
#include "daemon/service/limits/accept_gate.h"
#include "daemon/service/limits/refusal_log.h"
#include "daemon/service/transport/connection_table.h"

namespace berth::service {

// Used on the event loop's thread; constructed before Run(), destroyed after.
class Acceptor {
 public:
  // Passes a connected, non-blocking fd to gRPC, which owns it from then on.
  using HandOver = std::function<void(int fd)>;

  // `loop`, `gate` and `connections` must outlive the acceptor. Operators bypass the gate, and have reserved fds.
  Acceptor(EventLoop* loop, AcceptGate* gate, ConnectionTable* connections, HandOver hand_over);
  ~Acceptor();

  // Records every refused connection in `audit`, which outlives the acceptor.
  void SetAuditLog(AuditLog* audit) { audit_ = audit; }

  // Accepts on a non-blocking listening socket; its peers get the role. Replaces an earlier listener of the same role,
  // which is closed after its pending connections are accepted.
  absl::Status Listen(UniqueFd listener, Peer::Role role);

 private:
  // A range of fd numbers, used in rotation.
  struct Numbers {
    int first;
    // Exclusive end of the range.
    int end;
    int next = first;
  };

  void AcceptOne(UniqueFd socket, Peer::Role role);
  // Logs that a connection of `peer` is refused, and closes it.
  void Refuse(UniqueFd socket, const Peer& peer, const absl::Status& why);
  // Duplicates `socket` to a number of the daemon's own range that was not used recently, so that a late call of an
  // ended connection is not attributed to another connection.
  absl::StatusOr<UniqueFd> DuplicateToFreshNumber(int socket, Numbers& numbers);

  EventLoop& loop_;
  AcceptGate& gate_;
  ConnectionTable& connections_;
  const HandOver hand_over_;
  Numbers client_numbers_;
  Numbers operator_numbers_;
  RefusalLog log_;
  AuditLog* audit_ = nullptr;
  std::map<Peer::Role, std::unique_ptr<ListeningSocket>> listeners_;
  // By gRPC's fd number: the daemon's own duplicate, which reports the hang-up.
  absl::flat_hash_map<int, std::pair<UniqueFd, EventLoop::WatchId>> watched_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_TRANSPORT_ACCEPTOR_H_
