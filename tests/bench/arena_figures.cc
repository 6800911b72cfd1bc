#include "client/arena.h"
#include "client/session.h"
#include "common/status_macros.h"
#include "tests/bench/arena_loops.h"
#include "tests/bench/figures.h"

namespace berth::bench {

absl::StatusOr<std::vector<Figure>> ArenaFigures(const Programs& programs) {
  // Host memory whatever the machine: an arena never touches it.
  Programs host = programs;
  host.backend = "host";
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(host));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Arena> arena, Arena::Create(session, {.label = "bench"}));
  // On the host a stream is a mere number.
  ArenaLanes lanes;
  for (int i = 0; i < kArenaThreads; ++i) lanes.streams.push_back(static_cast<ArenaStream>(i));
  return ArenaFiguresOf(*arena, lanes);
}

}  // namespace berth::bench
