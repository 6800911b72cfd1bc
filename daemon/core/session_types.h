// Sessions, and the forgetting of requests: what is told and what is answered. Plain values.

#ifndef DAEMON_CORE_SESSION_TYPES_H_
#define DAEMON_CORE_SESSION_TYPES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "daemon/core/caller.h"

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
  ForgetOutcome outcome = ForgetOutcome::kNothingToDo;
};

template <typename Archive>
void Fields(Archive& archive, ForgetResult& value) {
  archive(value.outcome);
}

}  // namespace berth::core

#endif  // DAEMON_CORE_SESSION_TYPES_H_
