// RestoredState: the restored state that a core's ledger records represent outside the core. A process that starts a
// core from records must hold each of these objects, or report its loss to the core. Plain values.

#ifndef DAEMON_CORE_TYPES_RESTORED_STATE_H_
#define DAEMON_CORE_TYPES_RESTORED_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <berth/ids.h>

#include "absl/time/time.h"
#include "common/secret.h"
#include "daemon/base/worker_kind.h"
#include "daemon/core/types/block_phase.h"
#include "daemon/core/types/caller.h"

namespace berth::core {

struct RestoredState {
  // A session, represented by its lifeline.
  struct Lifeline {
    SessionId session;
    Tenant tenant;
    std::string label;
    ProcessInfo opener;
    Secret secret;
    // A process has joined the session.
    bool joined = false;
    // The session is already ending.
    bool ending = false;
    // As in Session (session_table.h).
    uint64_t session_credentials = 0;
    bool detached = false;
  };
  // A process of a session, represented by its pidfd and, until it has hung up, its channel.
  struct Process {
    ChannelId channel;
    SessionId session;
    Tenant tenant;
    ProcessInfo process;
    bool hung_up = false;
    bool has_page = false;
    // As in Channel and in its Session (session_table.h).
    bool unproven = false;
    bool detached = false;
    // Arrival time of the first of its detached requests; InfiniteFuture if none of them records it. Empty without any.
    std::optional<absl::Time> waits_since;
  };
  // A block: held through an fd, being created, or held by its worker.
  struct LeasedBlock {
    BlockId block;
    uint32_t device = 0;
    BlockPhase phase = BlockPhase::kGone;
  };
  std::vector<Lifeline> lifelines;
  std::vector<Process> processes;
  std::vector<LeasedBlock> blocks;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_RESTORED_STATE_H_
