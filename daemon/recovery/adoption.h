// Adoption: how a new broker takes over the leases of an earlier broker. A lease with both a ledger record in the core
// and an fd in the supervisor continues unchanged. A record without its fd has ended; an fd without a record is closed.
//
// After a loss (the daemon was stopped, or all its processes were killed) a missing fd does not prove that a record has
// ended. The broker finds processes again by pid and start time, and they may reconnect their side channels. Sessions
// stay while a process holds their credentials. Leases of processes that cannot be found stay counted until an operator
// ends them.

#ifndef DAEMON_RECOVERY_ADOPTION_H_
#define DAEMON_RECOVERY_ADOPTION_H_

#include <vector>

#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "daemon/broker/block_manager.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/fence_page_manager.h"
#include "daemon/core/core.h"
#include "daemon/core/types/restored_state.h"
#include "daemon/service/attach/attach_server.h"
#include "daemon/supervisor/broker_link.h"
#include "daemon/supervisor/fd_store/supervisor_fd_store.h"

namespace berth {

// The objects that take over the fds.
struct Adopters {
  Broker& broker;
  service::AttachServer& attach;
  BlockManager& blocks;
  // Holds the existing fence pages.
  FencePageManager& fences;
  SupervisorFdStore& fd_store;
  // A missing fd may have existed: supervisor and broker ended at the same time.
  bool after_a_loss = false;
  // The recorded pids are valid in this PID namespace.
  bool pids_are_known = true;
};

// The losses to report to the core.
struct Losses {
  std::vector<SessionId> hung_up_sessions;
  std::vector<ChannelId> hung_up_channels;
  // Processes that are dead. Either the broker died before their pidfds were in the fd store, so the processes received
  // nothing; or they ended while no daemon ran.
  std::vector<ChannelId> gone_processes;
  // Sessions and processes that continue without the lost fds.
  core::Core::Detached detached;
  // Blocks without an fd. The core knows whether they need one.
  std::vector<BlockId> blocks;
};

// Moves the fds of the objects in `restored_state` from `held` to the adopters, and returns the missing ones. Does not
// change the core. Errors: those of the system; the broker cannot serve then.
absl::StatusOr<Losses> AdoptLeases(const core::RestoredState& restored_state, const Adopters& adopters, HeldFds* held);

// Reports the losses to the core, and the deaths since then.
void NotifyLosses(const Losses& losses, const Adopters& adopters);

}  // namespace berth

#endif  // DAEMON_RECOVERY_ADOPTION_H_
