// BlockPhase: the life cycle of a block and its transitions. The whole transition table is here; the core asks it for
// every step.

#ifndef DAEMON_CORE_TYPES_BLOCK_PHASE_H_
#define DAEMON_CORE_TYPES_BLOCK_PHASE_H_

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/string_view.h"
#include "daemon/core/types/block_types.h"

namespace berth::core {

enum class BlockPhase {
  // Being made ahead of demand.
  kWarming = 0,
  // Made ahead, without an owner, never delivered to any process.
  kWarm,
  // Being made for a request.
  kReserved,
  // Being made and no longer wanted: released as soon as it is made.
  kAbandoned,
  kLive,
  // Freed, still mapped by an importer.
  kQuarantined,
  // Without an owner; the driver is taking its memory back.
  kRetired,
  kGone,
};
constexpr auto ArchivedValues(BlockPhase) { return std::pair(BlockPhase::kWarming, BlockPhase::kGone); }
inline constexpr int kBlockPhases = 8;

enum class BlockEvent {
  // The worker made it, or could not.
  kMade = 0,
  kNotMade,
  // A request takes a warm block.
  kTaken,
  // The request left, or the warm block's memory is needed elsewhere.
  kUnwanted,
  // The block's owner freed it or ended, with and without imports left.
  kFreedMapped,
  kFreedUnmapped,
  kLastImportEnded,
  // The driver has its memory back.
  kReleased,
};
inline constexpr int kBlockEvents = 8;

// Returns the phase after `event`; nothing where the event does not apply to a block in that phase.
std::optional<BlockPhase> NextPhase(BlockPhase phase, BlockEvent event);

// Whether a worker makes the block, or is to make it.
bool InTheMaking(BlockPhase phase);

// Returns the state shown to clients; nothing for a block without an owner yet, or a gone block.
std::optional<BlockState> VisibleState(BlockPhase phase);

absl::string_view PhaseName(BlockPhase phase);

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_BLOCK_PHASE_H_
