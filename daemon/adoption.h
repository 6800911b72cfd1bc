// Adoption: how a new broker goes on with an earlier one's leases. What the core's rows say and the vault holds is
// taken up as it is; what only one of the two has is over: a row whose fd is gone has ended, an fd without a row is
// let go of. But after vault and broker died at once a process whose pidfd was lost is not gone by that: it is looked
// for.

#ifndef DAEMON_ADOPTION_H_
#define DAEMON_ADOPTION_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "daemon/broker/block_keeper.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/fence_keeper.h"
#include "daemon/core/standing.h"
#include "daemon/service/attach_front.h"
#include "daemon/vault/broker_link.h"
#include "daemon/vault/custody.h"

namespace berth {

// Those who have the fds in hand.
struct Adopters {
  Broker& broker;
  service::AttachFront& attach;
  BlockKeeper& blocks;
  // It has the pages that are there.
  FenceKeeper& fences;
  Custody& custody;
  // Vault and broker have died at once, and what is not held may have been.
  bool after_a_loss = false;
};

// What the core is to be told.
struct Losses {
  std::vector<SessionId> hung_up_sessions;
  std::vector<ChannelId> hung_up_channels;
  // They got nothing: the broker died before it had their pidfds in custody.
  std::vector<ChannelId> gone_processes;
  // Without an fd, which the core knows whether they need.
  std::vector<BlockId> blocks;
};

// Takes out of `held` what `standing` stands for, and returns what is not there. Does nothing to the core.
// Errors: those of the system; the broker cannot serve then.
absl::StatusOr<Losses> AdoptLeases(const core::Standing& standing, const Adopters& adopters, HeldFds* held);

// Tells the core of those, and of who has died meanwhile.
void TellLosses(const Losses& losses, const Adopters& adopters);

}  // namespace berth

#endif  // DAEMON_ADOPTION_H_
