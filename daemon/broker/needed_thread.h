// NeededThread: a thread that the broker cannot run without.

#ifndef DAEMON_BROKER_NEEDED_THREAD_H_
#define DAEMON_BROKER_NEEDED_THREAD_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/thread.h"

namespace berth {

// Logs why a needed thread cannot be created, and ends the process.
[[noreturn]] void EndWithoutThread(const absl::Status& status);

// Runs `run` on a thread. Ends the process if no thread can be created, as if memory were exhausted: the next broker
// continues from the persisted state (docs/design/0017). For threads started with the broker, not for threads that a
// request starts.
template <typename Run>
Thread NeededThread(absl::string_view purpose, Run&& run) {
  absl::StatusOr<Thread> thread = Thread::Start(purpose, std::forward<Run>(run));
  if (!thread.ok()) EndWithoutThread(thread.status());
  return *std::move(thread);
}

}  // namespace berth

#endif  // DAEMON_BROKER_NEEDED_THREAD_H_
