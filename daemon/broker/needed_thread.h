// NeededThread: a thread that the broker cannot run without.

#ifndef DAEMON_BROKER_NEEDED_THREAD_H_
#define DAEMON_BROKER_NEEDED_THREAD_H_

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/thread.h"
#include "daemon/supervisor/processes/child_process.h"
#include "spdlog/spdlog.h"

namespace berth {

// Runs `run` on a thread. Ends the process if no thread can be created, as if memory were exhausted: the next broker
// continues from the persisted state (docs/design/0017). For threads started with the broker, not for threads that a
// request starts.
template <typename Run>
Thread NeededThread(absl::string_view purpose, Run&& run) {
  absl::StatusOr<Thread> thread = Thread::Start(purpose, std::forward<Run>(run));
  if (thread.ok()) return *std::move(thread);
  spdlog::critical("cannot start a thread: {}; restarting the broker", std::string(thread.status().message()));
  ::_exit(kExitForWant);
}

}  // namespace berth

#endif  // DAEMON_BROKER_NEEDED_THREAD_H_
