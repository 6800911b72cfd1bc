#include <berth/arena.h>
#include <berth/session.h>

#include "common/status_macros.h"
#include "tests/bench/arena_loops.h"
#include "tests/bench/measurements/measurements.h"

namespace berth::bench {

absl::StatusOr<std::vector<Measurement>> ArenaMeasurements(const Programs& programs) {
  // Uses host memory on any machine: an arena never touches its memory.
  Programs host = programs;
  host.backend = "host";
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(host));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Arena> arena, Arena::Create(session, {.label = "bench"}));
  // On the host a stream is a plain number.
  ArenaStreams setup;
  for (int i = 0; i < kArenaThreads; ++i) setup.streams.push_back(static_cast<ArenaStream>(i));
  return ArenaMeasurementsOf(*arena, setup);
}

}  // namespace berth::bench
