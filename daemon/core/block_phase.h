// BlockPhase: where a block stands between its making and its end, and what each event makes of it. The whole
// table is here; the core asks it for every step.

#ifndef DAEMON_CORE_BLOCK_PHASE_H_
#define DAEMON_CORE_BLOCK_PHASE_H_

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/string_view.h"
#include "daemon/core/block_types.h"

namespace berth::core {

enum class BlockPhase {
  // Being made ahead of demand.
  kWarming = 0,
  // Made, nobody's, never delivered to anyone.
  kWarm,
  // Being made for a request.
  kReserved,
  // Being made, and nobody wants it any more: it goes back as soon as it is there.
  kAbandoned,
  kLive,
  // Freed, still mapped by somebody.
  kQuarantined,
  // Nobody's, on its way back to the driver.
  kRetired,
  kGone,
};
constexpr auto ArchivedValues(BlockPhase) { return std::pair(BlockPhase::kWarming, BlockPhase::kGone); }
inline constexpr int kBlockPhases = 8;

enum class BlockEvent {
  // The worker made it, or could not.
  kMade = 0,
  kNotMade,
  // A request takes what was made ahead.
  kTaken,
  // Its request left, or what was kept warm is needed elsewhere.
  kUnwanted,
  // Its owner freed it or ended, with and without imports left.
  kFreedMapped,
  kFreedUnmapped,
  kLastImportEnded,
  // The driver has its memory back.
  kReleased,
};
inline constexpr int kBlockEvents = 8;

// Returns the phase after `event`, or nothing where the event says nothing about a block in that phase.
std::optional<BlockPhase> NextPhase(BlockPhase phase, BlockEvent event);

// Whether a worker makes it or shall.
bool InTheMaking(BlockPhase phase);

// What is shown; nothing for what is nobody's yet, or gone.
std::optional<BlockState> VisibleState(BlockPhase phase);

absl::string_view PhaseName(BlockPhase phase);

}  // namespace berth::core

#endif  // DAEMON_CORE_BLOCK_PHASE_H_
