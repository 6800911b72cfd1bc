// HandoverState: the handover state that a supervisor receives from the broker to continue after another supervisor
// (fd_store_wire.h).

#ifndef DAEMON_SUPERVISOR_HANDOVER_STATE_H_
#define DAEMON_SUPERVISOR_HANDOVER_STATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "daemon/supervisor/broker_link.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"
#include "daemon/supervisor/processes/restart_policy.h"

namespace berth {

struct HandoverState {
  fd_store::Facts facts;
  // All fds of the fd store, including those that only supervisors need.
  HeldFds held;
  // The last status that the broker received for each worker; workers without a status are absent.
  std::vector<fd_store::WorkerStatus> statuses;
  // The pidfd of the broker that hands over.
  UniqueFd broker;
};

// Receives the handover state on `socket`, which from then on is the broker's. Messages that the broker had sent to an
// earlier program are part of the state or follow it.
// Errors: kDeadlineExceeded; kUnavailable if the broker ends meanwhile; kInternal if the broker breaks the protocol or
// omits an fd that every supervisor needs.
absl::StatusOr<HandoverState> ReceiveHandoverState(int socket, MonotonicTime deadline);

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_HANDOVER_STATE_H_
