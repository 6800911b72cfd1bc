// Estate: what a vault needs to go on where another one ended, out of the broker's hands (custody_wire.h).

#ifndef DAEMON_VAULT_ESTATE_H_
#define DAEMON_VAULT_ESTATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/vault/broker_link.h"
#include "daemon/vault/custody_wire.h"
#include "daemon/vault/restart_policy.h"

namespace berth {

struct Estate {
  custody::Facts facts;
  // All that was in custody, and what only vaults need.
  HeldFds held;
  // What the broker was told last of each worker; of none that it was told nothing of.
  std::vector<custody::WorkerStatus> statuses;
  // The broker that handed it over.
  UniqueFd broker;
};

// Receives the estate on `socket`, which is the broker's from then on. What the broker had said to a program that was
// here before is in it, or follows it.
// Errors: kDeadlineExceeded; kUnavailable if the broker ends meanwhile; kInternal if it breaks the protocol or leaves
// out what no vault can be without.
absl::StatusOr<Estate> ReceiveEstate(int socket, MonotonicTime deadline);

}  // namespace berth

#endif  // DAEMON_VAULT_ESTATE_H_
