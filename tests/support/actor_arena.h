// The part of an actor that has arenas.

#ifndef TESTS_SUPPORT_ACTOR_ARENA_H_
#define TESTS_SUPPORT_ACTOR_ARENA_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/arena.h"
#include "client/session.h"

namespace berth::testing {

class ActorArena {
 public:
  explicit ActorArena(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  // arena [limit=BYTES] [device=N]             makes it, in place of an earlier one
  // arena-allocate NAME BYTES [STREAM]         arena-free NAME
  // arena-trim   arena-stats   arena-drop      bytes given back; "leased live cached free chunks"; its end
  // arena-churn COUNT SEED                     allocates, fills, checks, frees; some through a pmr container
  // arena-pmr BYTES                            fills a pmr vector
  // Errors: kUnimplemented for a verb that is not about arenas.
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

#endif  // TESTS_SUPPORT_ACTOR_ARENA_H_
