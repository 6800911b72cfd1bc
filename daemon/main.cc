// berthd: Berth's daemon. Without --role it is the vault, which starts the other roles from this same binary.

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <new>
#include <optional>

#include "absl/synchronization/mutex.h"
#include "daemon/clears_checks.h"
#include "daemon/options.h"
#include "daemon/roles.h"
#include "daemon/run_broker.h"
#include "daemon/vault/child_process.h"

namespace {

// Whoever gets no memory ends at once, wherever it is: the one that follows goes on from what is kept. Libraries would
// catch what is thrown else, and go on with half a step (docs/design/0017).
void EndWithoutMemory() {
  constexpr char kWhy[] = "berthd: there is no memory: this process ends\n";
  // That nobody reads it changes nothing.
  [[maybe_unused]] const ssize_t said = ::write(STDERR_FILENO, kWhy, sizeof(kWhy) - 1);
  ::_exit(berth::kExitForWant);
}

int RunBrokerRole(const berth::Options& options) {
  return berth::RunBroker({.folder = options.folder,
                           .state = options.state,
                           .config = options.config,
                           .pools = options.pools,
                           .device_budget = options.device_budget,
                           .warm_blocks = options.warm_blocks,
                           .streams_per_device = options.streams_per_device,
                           .call_deadline = options.call_deadline,
                           .context_idle = options.context_idle,
                           .max_connections = options.max_connections,
                           .custody_fd = berth::kChildFd,
                           .vault_flags = berth::FlagsForChildren(options)});
}

}  // namespace

int main(int argc, char** argv) {
  std::set_new_handler(EndWithoutMemory);
  // Debian's abseil looks for deadlocks at every lock; what the order of ours is, clang and TSan check.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  berth::Options options;
  if (const std::optional<int> code = berth::ParseOptions(argc, argv, &options); code.has_value())
    return *code;
  if (options.version) {
    printf("%s\n", berth::VersionText().c_str());
    return 0;
  }
  // The vault's to hear: whoever sends it to all of them means that one.
  if (options.role != berth::Role::kVault) ::signal(SIGHUP, SIG_IGN);
  switch (options.role) {
    case berth::Role::kVault:
      return berth::RunVaultRole(options);
    case berth::Role::kBroker:
      return RunBrokerRole(options);
    case berth::Role::kWorker:
    case berth::Role::kContextWorker:
      return berth::RunWorkerRole(options);
    case berth::Role::kInventory:
      return berth::RunInventoryRole(options);
    case berth::Role::kClearsCheck:
      return berth::RunClearsCheckRole(options);
    case berth::Role::kMonitor:
      return berth::RunMonitorRole(options);
    case berth::Role::kSelfTest:
      return berth::RunSelfTestRole(options);
  }
  return 1;
}
