// Standing: what a core's rows stand for outside of it. Who starts a core from rows must have each of these in hand, or
// tell the core of its loss. Plain values.

#ifndef DAEMON_CORE_STANDING_H_
#define DAEMON_CORE_STANDING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/lane.h"
#include "common/secret.h"
#include "daemon/core/block_phase.h"
#include "daemon/core/caller.h"

namespace berth::core {

struct Standing {
  // A session, behind its lifeline.
  struct Lifeline {
    SessionId session;
    Tenant tenant;
    std::string label;
    ProcessInfo opener;
    Secret secret;
    // Some process has.
    bool joined = false;
  };
  // A process of a session, behind its pidfd and, until it has hung up, its channel.
  struct Process {
    ChannelId channel;
    SessionId session;
    Tenant tenant;
    ProcessInfo process;
    bool hung_up = false;
    bool has_page = false;
    // Since when the first of its requests waits that are absent; InfiniteFuture where none of them says so.
    std::optional<absl::Time> waits_since;
  };
  // A block: behind an fd, being made, or its worker's own.
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

#endif  // DAEMON_CORE_STANDING_H_
