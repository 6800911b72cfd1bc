#include "daemon/core/types/block_phase.h"

namespace berth::core {

std::optional<BlockPhase> NextPhase(BlockPhase phase, BlockEvent event) {
  using P = BlockPhase;
  constexpr std::optional<P> kNo = std::nullopt;
  // Columns in the order of BlockEvent: made, not made, taken, unwanted, freed mapped, freed unmapped, last import
  // ended, released.
  static constexpr std::optional<P> kTable[kBlockPhases][kBlockEvents] = {
      /* warming     */ {P::kWarm, P::kGone, P::kReserved, P::kAbandoned, kNo, kNo, kNo, kNo},
      /* warm        */ {kNo, kNo, P::kLive, P::kRetired, kNo, kNo, kNo, kNo},
      /* reserved    */ {P::kLive, P::kGone, kNo, P::kAbandoned, kNo, kNo, kNo, kNo},
      /* abandoned   */ {P::kRetired, P::kGone, kNo, kNo, kNo, kNo, kNo, kNo},
      /* live        */ {kNo, kNo, kNo, kNo, P::kQuarantined, P::kRetired, kNo, kNo},
      /* quarantined */ {kNo, kNo, kNo, kNo, kNo, kNo, P::kRetired, kNo},
      /* retired     */ {kNo, kNo, kNo, kNo, kNo, kNo, kNo, P::kGone},
      /* gone        */ {kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo},
  };
  return kTable[static_cast<int>(phase)][static_cast<int>(event)];
}

bool InTheMaking(BlockPhase phase) {
  return phase == BlockPhase::kWarming || phase == BlockPhase::kReserved || phase == BlockPhase::kAbandoned;
}

std::optional<BlockState> VisibleState(BlockPhase phase) {
  switch (phase) {
    case BlockPhase::kWarming:
    case BlockPhase::kWarm:
    case BlockPhase::kGone:
      return std::nullopt;
    case BlockPhase::kReserved:
    case BlockPhase::kAbandoned:
      return BlockState::kReserved;
    case BlockPhase::kLive:
      return BlockState::kLive;
    case BlockPhase::kQuarantined:
      return BlockState::kQuarantined;
    case BlockPhase::kRetired:
      return BlockState::kRetired;
  }
  return std::nullopt;
}

absl::string_view PhaseName(BlockPhase phase) {
  static constexpr absl::string_view kNames[kBlockPhases] = {
      "warming", "warm", "reserved", "abandoned", "live", "quarantined", "retired", "gone"};
  return kNames[static_cast<int>(phase)];
}

}  // namespace berth::core
