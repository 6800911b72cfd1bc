// Adoption: how a new broker goes on with an earlier one's leases. What the core's rows say and the vault holds is
// taken up as it is; what only one of the two has is over: a row whose fd is gone has ended, an fd without a row is
// let go of.

#ifndef DAEMON_ADOPTION_H_
#define DAEMON_ADOPTION_H_

#include "absl/status/status.h"
#include "daemon/broker/block_keeper.h"
#include "daemon/broker/broker.h"
#include "daemon/core/standing.h"
#include "daemon/service/attach_front.h"
#include "daemon/vault/broker_link.h"

namespace berth {

// Those who have the fds in hand.
struct Adopters {
  Broker& broker;
  service::AttachFront& attach;
  BlockKeeper& blocks;
};

// Takes out of `held` what `standing` stands for, then tells the core what has lost its fd and who has died meanwhile.
// Errors: those of the system; the broker cannot serve then.
absl::Status AdoptLeases(const core::Standing& standing, const Adopters& adopters, HeldFds* held);

}  // namespace berth

#endif  // DAEMON_ADOPTION_H_
