// Effects: the actions that the core requests from the broker. The core decides under the broker's lock and performs no
// I/O. The broker executes the effects afterwards, without the lock, in the order of their numbers.

#ifndef DAEMON_CORE_TYPES_EFFECTS_H_
#define DAEMON_CORE_TYPES_EFFECTS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "common/wire/attach_wire.h"
#include "daemon/base/worker_command.h"
#include "daemon/base/worker_kind.h"
#include "daemon/core/types/lease_record.h"
#include "daemon/core/types/log_record.h"
#include "daemon/core/types/module_types.h"
#include "daemon/core/types/response.h"

namespace berth::core {

// Answers a call. Exactly one per call.
struct Reply {
  CallId call;
  absl::StatusOr<Response> response;
};

// Creates a block in one of the device's workers. The result arrives through Core::BlockCreated().
struct CreateBlock {
  uint32_t device = 0;
  WorkerKind worker_kind = WorkerKind::kMain;
  BlockId block;
  Bytes bytes;
};

// Removes the block's fd from every fd store and then closes it in the device's worker, or frees the block in the
// context worker. The result arrives through Core::BlockReleased().
struct ReleaseBlock {
  uint32_t device = 0;
  WorkerKind worker_kind = WorkerKind::kMain;
  BlockId block;
  // The memory was lost with the worker that made it: no worker has anything to release.
  bool lost = false;
};

// Creates the fence page of a channel. Precedes every delivery of the page.
struct MakeFencePage {
  ChannelId channel;
};

// The process has died: sets its page's fence values to the maximum and removes the page from the fd store.
struct DropFencePage {
  ChannelId channel;
};

// Sends a numbered delivery on a channel, with the fd of the block or page that it names, if any.
struct Deliver {
  ChannelId channel;
  attach::Delivery delivery;
  // Send a read-only fd.
  bool read_only = false;
};

template <typename Archive>
void Fields(Archive& archive, Deliver& value) {
  archive(value.channel, value.delivery, value.read_only);
}

// The channel's connection has ended: removes it from the fd store. The pidfd stays there to prove the process's death.
struct CloseChannel {
  ChannelId channel;
};

// Removes the pidfd and the connection of an unused channel from the fd store, usually because its process has died.
struct DropChannel {
  ChannelId channel;
};

// The session has ended: removes its lifeline from the fd store.
struct DropSession {
  SessionId session;
};

// Sends the supervisor a command for a device. Core::WorkerDown(), WorkerUp() and ReportDevice() report the
// consequences.
struct SendWorkerCommand {
  uint32_t device = 0;
  WorkerCommand command = WorkerCommand::kKill;
  // For kKill and kRestart: the worker. The other commands concern the whole device or imply the worker.
  WorkerKind worker_kind = WorkerKind::kMain;
  // Reason, for people.
  std::string why;
};

// Work for the store of compiled modules.
struct ModuleWork {
  enum class What {
    // Create a place for a compile's output, before the place is delivered.
    kMakePlace,
    // End the place of a finished compile.
    kEndPlace,
    // Take over the compile's output and verify it against `record`. The result arrives through Core::ModuleStored().
    kStore,
    // Load the module from disk and verify it against `record`. The result arrives through Core::ModuleLoaded().
    kLoad,
    // Delete the module, also on disk.
    kDrop,
  };
  What what = What::kMakePlace;
  // For kStore, kLoad, kDrop; 0 for a module that was never in the cache.
  ModuleId module;
  // For kMakePlace, kEndPlace, kStore.
  CompileId compile;
  // For kStore, kLoad, kDrop; for kEndPlace only its tenant is set.
  ModuleRecord record;
};

// Requests wait: find out which of these processes are stopped or frozen, and report them by Core::ProcessesStopped().
struct LookAtProcesses {
  struct Process {
    ChannelId channel;
    // In the daemon's PID namespace.
    int32_t pid = 0;
  };
  std::vector<Process> processes;
};

// The result of ListDevices(), apart from its byte counts, has changed.
struct DevicesChanged {};

// LogRecord and LeaseRecord feed logs and histories; no request waits for them.

namespace effects_internal {

using Variant =
    std::variant<Reply, CreateBlock, ReleaseBlock, MakeFencePage, DropFencePage, Deliver, CloseChannel, DropChannel,
                 DropSession, SendWorkerCommand, DevicesChanged, LogRecord, LeaseRecord, ModuleWork, LookAtProcesses>;

}  // namespace effects_internal

// A variant of all kinds of effects. One source compiles what visits all of them.
struct AnyEffect : effects_internal::Variant {
  using effects_internal::Variant::Variant;
  AnyEffect();
  AnyEffect(const AnyEffect& other);
  AnyEffect(AnyEffect&& other) noexcept;
  AnyEffect& operator=(const AnyEffect& other);
  AnyEffect& operator=(AnyEffect&& other) noexcept;
  ~AnyEffect();
};

// One effect with its number: 1, 2, 3, … over the core's life.
struct Effect {
  uint64_t number = 0;
  AnyEffect what;
};

using Effects = std::vector<Effect>;

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_EFFECTS_H_
