// Arena commands of the test actor.

#ifndef TESTS_SUPPORT_ACTOR_ACTOR_ARENA_H_
#define TESTS_SUPPORT_ACTOR_ACTOR_ARENA_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/arena.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace berth::testing {

class ActorArena {
 public:
  explicit ActorArena(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  // arena [limit=BYTES] [device=N]             creates the arena, replacing an earlier arena
  // arena-allocate NAME BYTES [STREAM]         arena-free NAME
  // arena-trim                                 returns the bytes freed
  // arena-stats                                prints "leased live cached free chunks"
  // arena-drop                                 destroys the arena
  // arena-churn COUNT SEED                     allocates, fills, checks, frees; some through a pmr container
  // arena-pmr BYTES                            fills a pmr vector
  // Errors: kUnimplemented for a verb of another command group.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);

 private:
  absl::StatusOr<std::string> Create(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Allocate(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Free(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Churn(uint64_t count, uint64_t seed);
  absl::StatusOr<std::string> FillVector(uint64_t bytes);

  const std::shared_ptr<Session> session_;
  std::shared_ptr<Arena> arena_;
  std::map<std::string, ArenaBuffer> buffers_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_ACTOR_ARENA_H_
