// Effects: what the core wants done outside it. The core decides under the broker's lock and does nothing
// itself; its effects are carried out afterwards, without the lock, in the order of their numbers.

#ifndef DAEMON_CORE_EFFECTS_H_
#define DAEMON_CORE_EFFECTS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/attach_wire.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "common/lane.h"
#include "daemon/core/lease_record.h"
#include "daemon/core/log_record.h"
#include "daemon/core/module_types.h"
#include "daemon/core/response.h"

namespace berth::core {

enum class DeviceOrder {
  // End the worker, which hangs.
  kKill,
  // End the worker, and start another.
  kRestart,
  // Start a worker for a stopped device.
  kEnable,
  // Its memory is lost: move its generation, and replace its worker.
  kReset,
  // It is gone from the node.
  kDrop,
  // Start the context worker, which is idle.
  kStart,
  // End the context worker, which nobody needs.
  kEnd,
  // The driver has lost it: move its generation, and end its workers.
  kLose,
  // Remember, for later brokers too, that it is drained because of `why`; or that it is not.
  kDrain,
  kUndrain,
  // End the monitor, which hangs for this device.
  kKillMonitor,
};

// Answers a call. Exactly one per call.
struct Reply {
  CallId call;
  absl::StatusOr<Response> response;
};

// Has one of the device's workers make a block. Ends in Core::BlockCreated().
struct CreateBlock {
  uint32_t device = 0;
  Lane lane = Lane::kMain;
  BlockId block;
  Bytes bytes;
};

// Takes the block's fd out of custody everywhere and has the device's worker close it last; or has the context worker
// free it. Ends in Core::BlockReleased().
struct ReleaseBlock {
  uint32_t device = 0;
  Lane lane = Lane::kMain;
  BlockId block;
  // The memory went with the worker that made it: there is nothing left to do.
  bool lost = false;
};

// Makes the fence page of a channel, before it is delivered to anyone.
struct MakeFencePage {
  ChannelId channel;
};

// The process is gone: its page's words go to the top, and it leaves custody.
struct DropFencePage {
  ChannelId channel;
};

// Sends a numbered delivery on a channel; with the fd of the block or the page that it names, where it has one.
struct Deliver {
  ChannelId channel;
  attach::Delivery delivery;
  // Send an fd that cannot be written through.
  bool read_only = false;
};

template <typename Archive>
void Fields(Archive& archive, Deliver& value) {
  archive(value.channel, value.delivery, value.read_only);
}

// The channel's connection has ended: it leaves custody. The pidfd, which is to prove the process's death, stays.
struct CloseChannel {
  ChannelId channel;
};

// The channel stands for nothing any more, as a rule because its process is gone: pidfd and connection leave custody.
struct DropChannel {
  ChannelId channel;
};

// The session is over: its lifeline leaves custody.
struct DropSession {
  SessionId session;
};

// Has the vault do something with a device. Ends in Core::WorkerDown(), WorkerUp(), ReportDevice(), as it comes.
struct OrderDevice {
  uint32_t device = 0;
  DeviceOrder order = DeviceOrder::kKill;
  // Of kKill and kRestart: which worker. The others are about the device, or say it themselves.
  Lane lane = Lane::kMain;
  // For people.
  std::string why;
};

// Has the keeper of compiled modules do something.
struct ModuleWork {
  enum class What {
    // Make a place for a compile to write to, before it is delivered.
    kMakePlace,
    // That compile is over.
    kEndPlace,
    // Take over what was written there, and look whether it is what `record` says. Ends in Core::ModuleStored().
    kStore,
    // Read it from disk, and look whether it is what `record` says. Ends in Core::ModuleLoaded().
    kLoad,
    // Forget it, on disk too.
    kDrop,
  };
  What what = What::kMakePlace;
  // kStore, kLoad, kDrop; of a module that was never in the cache 0.
  ModuleId module;
  // kMakePlace, kEndPlace, kStore.
  CompileId compile;
  // kStore, kLoad, kDrop.
  ModuleRecord record;
};

// What ListDevices() shows, but for the bytes, is not what it was.
struct DevicesChanged {};

// LogRecord and LeaseRecord are for whoever keeps logs and histories: nothing waits for them.

// One effect with its number: 1, 2, 3, … over the core's life.
struct Effect {
  uint64_t number = 0;
  std::variant<Reply, CreateBlock, ReleaseBlock, MakeFencePage, DropFencePage, Deliver, CloseChannel,
               DropChannel, DropSession, OrderDevice, DevicesChanged, LogRecord, LeaseRecord, ModuleWork>
      what;
};

using Effects = std::vector<Effect>;

}  // namespace berth::core

#endif  // DAEMON_CORE_EFFECTS_H_
