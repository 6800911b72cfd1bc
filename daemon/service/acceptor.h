// Acceptor: our own accept loop in front of gRPC. gRPC 1.51's listener dies for good at the first EMFILE and knows no
// caller; this one looks at each peer, holds the caps, and hands gRPC a connected fd.

#ifndef DAEMON_SERVICE_ACCEPTOR_H_
#define DAEMON_SERVICE_ACCEPTOR_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/accept_gate.h"
#include "daemon/service/audit_log.h"
#include "daemon/service/connection_table.h"
#include "daemon/service/listening_socket.h"
#include "daemon/service/refusal_log.h"

namespace berth::service {

// Lives on the event loop's thread; constructed before Run(), destroyed after.
class Acceptor {
 public:
  // Gives a connected, non-blocking fd to gRPC, which owns it from then on.
  using HandOver = std::function<void(int fd)>;

  // `loop`, `gate` and `connections` must outlive the acceptor. Operators do not pass the gate, and have fds kept for
  // them.
  Acceptor(EventLoop* loop, AcceptGate* gate, ConnectionTable* connections, HandOver hand_over);
  ~Acceptor();

  // Has every connection that is refused kept there; `audit` outlives the acceptor.
  void KeepAudit(AuditLog* audit) { audit_ = audit; }

  // Accepts on a non-blocking listening socket, whoever comes in on which has that role.
  absl::Status Listen(UniqueFd listener, Peer::Role role);

 private:
  // Numbers that take turns.
  struct Numbers {
    int first;
    // One past the last.
    int end;
    int next = first;
  };

  void AcceptOne(UniqueFd socket, Peer::Role role);
  // Reads who is there, which is the ids alone where it comes too fast: then it is refused.
  absl::Status Admit(int socket, Peer* peer);
  // Says in the logs that a connection of `peer` is refused, and ends it.
  void Refuse(UniqueFd socket, const Peer& peer, const absl::Status& why);
  // Duplicates `socket` to a number in our own range that was not used lately, so that a late call of a connection that
  // ended cannot be taken for another's.
  absl::StatusOr<UniqueFd> DuplicateToFreshNumber(int socket, Numbers& numbers);

  EventLoop& loop_;
  AcceptGate& gate_;
  ConnectionTable& connections_;
  const HandOver hand_over_;
  Numbers client_numbers_;
  Numbers operator_numbers_;
  RefusalLog log_;
  AuditLog* audit_ = nullptr;
  std::vector<std::unique_ptr<ListeningSocket>> listeners_;
  // By gRPC's number: our own duplicate, which tells us of the hang-up.
  absl::flat_hash_map<int, std::pair<UniqueFd, EventLoop::WatchId>> watched_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_ACCEPTOR_H_
