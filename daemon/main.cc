// berthd: Berth's daemon. Without --role it is the supervisor, which starts the other roles from this same binary.

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <new>
#include <optional>

#include "absl/synchronization/mutex.h"
#include "common/os/nonblocking_write.h"
#include "common/os/stack_limit.h"
#include "daemon/base/control_signals.h"
#include "daemon/base/standard_fds.h"
#include "daemon/config/options.h"
#include "daemon/server/memory_scrub_checks.h"
#include "daemon/server/roles.h"
#include "daemon/server/run_broker.h"
#include "daemon/supervisor/processes/child_process.h"

namespace {

// Ends a process at once if it gets no memory, wherever that happens; the next process continues from the persisted
// state. A thrown std::bad_alloc could be caught by a library, which would then continue with an incomplete step
// (docs/design/0017).
void EndWithoutMemory() {
  constexpr char kWhy[] = "berthd: out of memory; this process exits\n";
  berth::WriteWithoutBlocking(STDERR_FILENO, kWhy, sizeof(kWhy) - 1);
  ::_exit(berth::kExitForWant);
}

void HandleWantOfMemory() { std::set_new_handler(EndWithoutMemory); }

// Run before the libraries' initializers, which allocate memory, and take longer than the rest of the start.
__attribute__((section(".preinit_array"), used)) void (*g_before_initializers[])() = {
    &HandleWantOfMemory, &berth::BlockControlSignals, &berth::OpenStandardFds};

// Further initializers need a part of the stack.
[[gnu::constructor(101)]] void CheckStacks() {
  berth::BoundStacks();
  char why[128] = "";
  if (!berth::LacksStack(why, sizeof(why))) return;
  char text[192];
  const int size = snprintf(text, sizeof(text), "berthd: %s, or LimitSTACK= of the service\n", why);
  berth::WriteWithoutBlocking(STDERR_FILENO, text, static_cast<size_t>(size));
  ::_exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  // Libraries write to stderr, too: that must not block, end or stop a process. Opening a pipe or terminal again may
  // need privileges that the process gives up later.
  berth::MakeOwnNonBlocking(STDERR_FILENO);
  // Likewise a file or memory above RLIMIT_FSIZE is an error of the call that grows it.
  for (const int number : {SIGPIPE, SIGTTOU, SIGXFSZ}) ::signal(number, SIG_IGN);
  // A parent may leave it ignored: the kernel would then report no exit codes of the daemon's processes.
  ::signal(SIGCHLD, SIG_DFL);
  // Debian's abseil checks every lock for deadlocks; clang and TSan already check our lock order.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  berth::Options options;
  if (const std::optional<int> code = berth::ParseOptions(argc, argv, &options); code.has_value())
    return *code;
  if (options.version) {
    printf("%s\n", berth::VersionText().c_str());
    return 0;
  }
  if (options.role != berth::Role::kSupervisor) berth::LeaveControlSignals();
  switch (options.role) {
    case berth::Role::kSupervisor:
      return berth::RunSupervisorRole(options);
    case berth::Role::kBroker:
      return berth::RunBroker(options);
    case berth::Role::kWorker:
    case berth::Role::kContextWorker:
      return berth::RunWorkerRole(options);
    case berth::Role::kInventory:
      return berth::RunInventoryRole(options);
    case berth::Role::kMemoryScrubCheck:
      return berth::RunMemoryScrubCheckRole(options);
    case berth::Role::kMonitor:
      return berth::RunMonitorRole(options);
    case berth::Role::kSelfTest:
      return berth::RunSelfTestRole(options);
  }
  return 1;
}
