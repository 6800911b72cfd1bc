#include "daemon/core/types/block_phase.h"

#include <map>
#include <utility>

#include "gtest/gtest.h"

namespace berth::core {
namespace {

using P = BlockPhase;
using E = BlockEvent;

// All allowed transitions; any other event does not apply to the phase.
const std::map<std::pair<P, E>, P>& Allowed() {
  static const auto* const kAllowed = new std::map<std::pair<P, E>, P>{
      {{P::kWarming, E::kMade}, P::kWarm},
      {{P::kWarming, E::kNotMade}, P::kGone},
      {{P::kWarming, E::kTaken}, P::kReserved},
      {{P::kWarming, E::kUnwanted}, P::kAbandoned},
      {{P::kWarm, E::kTaken}, P::kLive},
      {{P::kWarm, E::kUnwanted}, P::kRetired},
      {{P::kReserved, E::kMade}, P::kLive},
      {{P::kReserved, E::kNotMade}, P::kGone},
      {{P::kReserved, E::kUnwanted}, P::kAbandoned},
      {{P::kAbandoned, E::kMade}, P::kRetired},
      {{P::kAbandoned, E::kNotMade}, P::kGone},
      {{P::kLive, E::kFreedMapped}, P::kQuarantined},
      {{P::kLive, E::kFreedUnmapped}, P::kRetired},
      {{P::kQuarantined, E::kLastImportEnded}, P::kRetired},
      {{P::kRetired, E::kReleased}, P::kGone},
  };
  return *kAllowed;
}

TEST(BlockPhaseTest, EachPhaseAndEventHasExpectedNextPhase) {
  for (int phase = 0; phase < kBlockPhases; ++phase) {
    for (int event = 0; event < kBlockEvents; ++event) {
      const auto allowed = Allowed().find({P(phase), E(event)});
      const std::optional<P> expected =
          allowed == Allowed().end() ? std::nullopt : std::optional<P>(allowed->second);
      EXPECT_EQ(NextPhase(P(phase), E(event)), expected) << PhaseName(P(phase)) << ", event " << event;
    }
  }
}

TEST(BlockPhaseTest, LiveBlockNeverBecomesWarmOrLiveAgain) {
  for (const P phase : {P::kLive, P::kQuarantined, P::kRetired, P::kGone}) {
    for (int event = 0; event < kBlockEvents; ++event) {
      const std::optional<P> next = NextPhase(phase, E(event));
      if (!next.has_value()) continue;
      EXPECT_TRUE(*next == P::kQuarantined || *next == P::kRetired || *next == P::kGone) << PhaseName(phase);
    }
  }
}

TEST(BlockPhaseTest, WarmOrGoneBlockHasNoVisibleState) {
  for (const P phase : {P::kWarming, P::kWarm, P::kGone}) EXPECT_FALSE(VisibleState(phase).has_value());
  EXPECT_EQ(VisibleState(P::kReserved), BlockState::kReserved);
  EXPECT_EQ(VisibleState(P::kAbandoned), BlockState::kReserved);
  EXPECT_EQ(VisibleState(P::kLive), BlockState::kLive);
  EXPECT_EQ(VisibleState(P::kQuarantined), BlockState::kQuarantined);
  EXPECT_EQ(VisibleState(P::kRetired), BlockState::kRetired);
}

}  // namespace
}  // namespace berth::core
