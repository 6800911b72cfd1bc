// Sessions, and the forgetting of requests: views and results. Plain values.

#ifndef DAEMON_CORE_TYPES_SESSION_TYPES_H_
#define DAEMON_CORE_TYPES_SESSION_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/time/time.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/request_traits.h"

namespace berth::core {

enum class SessionState { kActive = 1, kEnding = 2 };
constexpr auto ArchivedValues(SessionState) { return std::pair(SessionState::kActive, SessionState::kEnding); }

struct SessionView {
  SessionId id;
  Tenant tenant;
  std::string label;
  SessionState state = SessionState::kActive;
  absl::Time opened_at;
  ProcessInfo opener;
  std::vector<ProcessInfo> processes;
  uint64_t permit_units = 0;
  uint64_t waiters = 0;
  Bytes live;
};

enum class ForgetOutcome { kCancelled = 1, kUndone = 2, kRemembered = 3, kNothingToDo = 4 };
constexpr auto ArchivedValues(ForgetOutcome) {
  return std::pair(ForgetOutcome::kCancelled, ForgetOutcome::kNothingToDo);
}

struct ForgetResult {
  static constexpr size_t kResponseIndex = 11;

  ForgetOutcome outcome = ForgetOutcome::kNothingToDo;
};

template <typename Archive>
void Fields(Archive& archive, ForgetResult& value) {
  archive(value.outcome);
}
inline bool Undo(const UndoStep&, const ForgetResult&) { return false; }

// Totals of what is out on the whole node.
struct OutCounts {
  // Sessions that have permits or live blocks.
  uint64_t sessions = 0;
  uint64_t units = 0;
  uint64_t waiters = 0;
  // Live blocks, including published ones.
  uint64_t blocks = 0;
  Bytes bytes;
};

// Answer to a drain before a stop.
struct DrainResult {
  static constexpr size_t kResponseIndex = 24;

  OutCounts out;
};
template <typename Archive>
void Fields(Archive& archive, DrainResult& value) {
  OutCounts& out = value.out;
  archive(out.sessions, out.units, out.waiters, out.blocks, out.bytes);
}
inline bool Undo(const UndoStep&, const DrainResult&) { return false; }

using SessionResults = ResultList<ForgetResult, DrainResult>;

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_SESSION_TYPES_H_
