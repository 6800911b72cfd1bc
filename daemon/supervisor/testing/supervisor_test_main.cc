// Main program of the supervisor tests: the daemon's roles when the supervisor or a test starts it with one, otherwise
// the tests.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/os/fd_passing.h"
#include "daemon/config/options.h"
#include "daemon/device/monitor/inventory.h"
#include "daemon/device/worker/worker_channel.h"
#include "daemon/server/roles.h"
#include "daemon/supervisor/processes/child_process.h"
#include "daemon/supervisor/testing/fake_broker.h"
#include "daemon/supervisor/testing/supervisor_test_daemon.h"

namespace berth {

// Makes the worker behind `socket` create a block of 2 MiB. Returns the size of the received block, or "by handle".
std::string CreateBlock(int socket) {
  absl::StatusOr<UniqueFd> copy = DuplicateFd(socket);
  if (!copy.ok()) return copy.status().ToString();
  WorkerChannel worker(*std::move(copy));
  if (const absl::Status sent = worker.SendCreate(BlockId(7), MiB(2)); !sent.ok()) return sent.ToString();
  WaitReadable(worker.fd());
  absl::StatusOr<WorkerReply> reply = worker.Read();
  if (!reply.ok()) return reply.status().ToString();
  const auto* created = std::get_if<CreatedBlock>(&*reply);
  if (created != nullptr && created->handle.has_value()) return "by handle";
  struct stat info = {};
  if (created == nullptr || !created->fd.ok() || ::fstat(created->fd->get(), &info) < 0) return "no block";
  return absl::StrCat(info.st_size);
}

// A worker of device 1 that exits with $BERTH_FAKE_WORKER at its first request.
int RunFakeWorker(const char* code) {
  if (!NameProcess("berth-worker1").ok()) return 1;
  WaitReadable(kChildFd);
  return atoi(code);
}

// Writes the node's devices. With $BERTH_FAKE_STALE device 1's memory was found uncleared, with $BERTH_FAKE_FAILED
// device 1 failed.
int RunInventory(const Options& options) {
  const bool stale = getenv("BERTH_FAKE_STALE") != nullptr;
  const bool failed = getenv("BERTH_FAKE_FAILED") != nullptr;
  if (!stale && !failed) return RunInventoryRole(options);
  absl::StatusOr<std::vector<DeviceRecord>> records =
      TakeInventory({.backend = BackendChoice::kHost, .host_devices = 2, .host_bytes = MiB(64)});
  DeviceRecord& record = (*records)[1];
  if (stale) record.scrub = {.outcome = ScrubOutcome::kStale, .detail = "found 3 stale words in 1 GiB"};
  if (failed) {
    record.fault = DeviceFault::kNotDescribed;
    record.scrub = {.detail = "cuDeviceTotalMem: CUDA_ERROR_UNKNOWN (999)"};
  }
  return WriteInventory(kChildFd, *records).ok() ? 0 : 1;
}

}  // namespace berth

int main(int argc, char** argv) {
  berth::Options options;
  // The daemon's roles, when the supervisor or a test starts them.
  if (argc > 1 &&
      absl::StrContains(absl::StrJoin(std::vector<std::string>(argv + 1, argv + argc), " "), "--role=")) {
    if (const auto code = berth::ParseOptions(argc, argv, &options); code.has_value()) return *code;
    switch (options.role) {
      case berth::Role::kSupervisor:
        return berth::RunSupervisorRole(options);
      case berth::Role::kWorker:
        if (const char* const code = getenv("BERTH_FAKE_WORKER"); code != nullptr && options.device == 1) {
          return berth::RunFakeWorker(code);
        }
        return berth::RunWorkerRole(options);
      case berth::Role::kContextWorker:
        return berth::RunWorkerRole(options);
      case berth::Role::kInventory:
        return berth::RunInventory(options);
      case berth::Role::kMemoryScrubCheck:
        return 1;
      case berth::Role::kMonitor:
        return berth::RunMonitorRole(options);
      case berth::Role::kSelfTest:
        return berth::RunSelfTestRole(options);
      case berth::Role::kBroker:
        if (!berth::NameProcess("berth-broker").ok()) return 1;
        return berth::RunFakeBroker(berth::kChildFd, berth::FlagsForChildren(options), berth::CreateBlock);
    }
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
