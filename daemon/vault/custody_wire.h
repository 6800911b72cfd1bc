// The messages between vault and broker, on one SEQPACKET socket pair: what the vault keeps for the broker,
// and what it tells of the other processes.
//
//   vault → broker  Facts, then Give + fds for everything held, then GiveEnd;
//                   later Give + fds for a restarted worker or monitor, WorkerStatus, Dropped, Reload, Stop
//   broker → vault  Put + fd, Drop, Bound, Ready, Order, Reset
//
// Custody is mutual: the broker has all of that, too, and hands it to the vault that follows one that is gone, or to
// the program that takes a vault's place in its process and asks for it:
//
//   vault → broker  HandOver
//   broker → vault  Facts, then Give + fds for everything held, WorkerStatus for each worker, then GiveEnd;
//                   what an earlier vault did not answer follows: Drop, Order
//
// Structs are sent as they lie in memory: both ends are one program. The first word of every message is its
// kind. A Put that sendmsg took is in custody: the vault reads a dead broker's socket to its end before it
// starts the next. A message of another kind, size or fd count than stated here is a defect of the sender;
// the vault ends a broker that sends one.

#ifndef DAEMON_VAULT_CUSTODY_WIRE_H_
#define DAEMON_VAULT_CUSTODY_WIRE_H_

#include <string.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/fd_passing.h"
#include "common/lane.h"
#include "common/struct_message.h"

namespace berth::custody {

// What a held fd is; beside it, what its id means.
enum class Kind : uint32_t {
  // A listening socket; the id is a Listener.
  kListener = 1,
  // The node's state page, writable (common/state_page.h); id 0.
  kStatePage,
  // A sealed memfd of DeviceRecords (daemon/device/device_record.h); id 0.
  kDeviceTable,
  // A session's lifeline; the id is the session's.
  kLifeline,
  // A process's channel, until it hangs up; the id is the channel's.
  kChannel,
  // The pidfd of a channel's process, until the channel stands for nothing any more; the id is the channel's.
  kPidfd,
  // A block's memory; the id is the block's.
  kBlock,
  // The broker's end of a worker's socket; the id is the device's ordinal. Put and dropped by the vault
  // alone.
  kWorker,
  // A process's fence page, writable (common/fence_page.h); the id is its channel's.
  kFencePage,
  // The same as kWorker, of a device's context worker.
  kContextWorker,
  // The broker's end of the monitor's socket (daemon/device/monitor_wire.h); id 0. Put and dropped by the vault alone.
  kMonitor,
  // What a vault needs to go on where another ended, put and dropped by the vault alone. The folder's lock, id 0; the
  // pidfds of a device's worker and context worker, the id is the device's ordinal; of the monitor, id 0.
  kFolderLock,
  kWorkerProcess,
  kContextProcess,
  kMonitorProcess,
  // The pidfd of the broker that hands over; id 0.
  kBroker,
  // A sealed memfd of the configuration file's text as it was last read without a mistake; the greatest id is the last.
  kConfiguration,
  // What the service manager has, and whose it is (store_record.h), put by the vault alone; id 0.
  kStoreRecord,
};

enum class Listener : uint64_t {
  // berthd.sock, SOCK_STREAM.
  kBerthd = 1,
  // admin.sock, SOCK_STREAM.
  kAdmin,
  // attach.sock, SOCK_SEQPACKET.
  kAttach,
  // observer.sock, SOCK_STREAM.
  kObserver,
  // admin-attach.sock, SOCK_SEQPACKET.
  kAdminAttach,
};

// Names one held fd.
struct Key {
  Kind kind = Kind::kListener;
  uint32_t padding = 0;
  uint64_t id = 0;

  friend auto operator<=>(const Key&, const Key&) = default;
};

constexpr Key KeyOf(Kind kind, uint64_t id = 0) { return Key{.kind = kind, .id = id}; }
// Of a worker's socket.
constexpr Key KeyOf(Lane lane, uint32_t device) {
  return KeyOf(lane == Lane::kMain ? Kind::kWorker : Kind::kContextWorker, device);
}
// Of its process.
constexpr Key ProcessKeyOf(Lane lane, uint32_t device) {
  return KeyOf(lane == Lane::kMain ? Kind::kWorkerProcess : Kind::kContextProcess, device);
}
constexpr Key KeyOf(Listener listener) { return KeyOf(Kind::kListener, static_cast<uint64_t>(listener)); }

enum class MessageKind : uint32_t {
  kFacts = 1,
  kGive,
  kGiveEnd,
  kWorkerStatus,
  kDropped,
  kStop,
  kPut,
  kDrop,
  kReady,
  kOrder,
  kHandOver,
  kReset,
  kReload,
  kBound,
};

inline constexpr uint64_t kBegun = 1;
inline constexpr uint64_t kBegunBeforeALoss = 2;

// The first message: what a broker is told of the life it begins.
struct Facts {
  MessageKind kind = MessageKind::kFacts;
  // Records in the device table.
  uint32_t device_count = 0;
  uint64_t node = 0;
  uint64_t incarnation = 0;
  uint64_t epoch = 0;
  // The most fds that the vault holds at once, all kinds together.
  uint64_t custody_limit = 0;
  // Whether a broker of this incarnation has served: what it kept is to be gone on with. kBegunBeforeALoss if vault and
  // broker have died at once since, or a Put came without its fd: what is not held then may have been, and is not
  // proved gone by that.
  uint64_t begun = 0;
};

// Give: as many held fds as one message carries, each with its key at the same place.
struct GiveMessage {
  MessageKind kind = MessageKind::kGive;
  uint32_t padding = 0;
  Key keys[kMaxMessageFds];
};

// The message as a Give of the fds that came with it, one at least.
inline std::optional<GiveMessage> AsGive(const Message& message) {
  if (message.fds.empty()) return std::nullopt;
  return AsStruct<GiveMessage>(message, MessageKind::kGive, message.fds.size());
}

// Put (one fd), Dropped, Drop (none): about one held fd.
struct KeyMessage {
  MessageKind kind = MessageKind::kPut;
  uint32_t padding = 0;
  Key key;
};

// What the broker bounds its own memory to.
struct BoundMessage {
  MessageKind kind = MessageKind::kBound;
  uint32_t padding = 0;
  uint64_t bytes = 0;
};

enum class WorkerState : uint32_t {
  // There is one, or it is being started: the socket comes by a Give.
  kRunning = 1,
  // It is gone, and another is being started.
  kGone,
  // It is gone, and there will be no other until the device is enabled.
  kStopped,
  // The same, but it is not gone: SIGKILL did not end it. A kStopped follows when it is.
  kAbandoned,
  // There is none, and none is started until one is ordered: of context workers.
  kIdle,
  // There is none, and a process looks whether the device works: one is started if it does, else kStopped follows. Of
  // main workers.
  kTesting,
  // As kStopped, and it is because the device is lost: it may be enabled once the driver has it again.
  kLost,
};

inline constexpr uint32_t kReasonBytes = 240;

// What becomes of one of a device's workers: sent whenever it changes, and to a new broker for each.
struct WorkerStatus {
  MessageKind kind = MessageKind::kWorkerStatus;
  uint32_t device = 0;
  WorkerState state = WorkerState::kRunning;
  uint32_t restarts_left = 0;
  // Of the memory that it makes; the state page has the same.
  uint64_t generation = 0;
  uint32_t dropped = 0;
  Lane lane = Lane::kMain;
  // Why the last worker ended; zero-terminated, cut where it is too long.
  char last_failure[kReasonBytes] = {};
  // Why an operator drains the device; empty where nobody does. Of main workers; the same.
  char drain_reason[kReasonBytes] = {};
};

// What the vault is to do with a device.
enum class OrderKind : uint32_t {
  // End the worker: it hangs. What follows is as if it had ended by itself.
  kKill = 1,
  // End the worker, and start another that does not count; a context worker when it is wanted.
  kRestart,
  // Bring a worker that was stopped back: a main worker once the device has passed its self-test.
  kEnable,
  // The device's memory is lost: its generation moves, and its workers are replaced.
  kReset,
  // The device is gone from the node: its workers end and none follows.
  kDrop,
  // Start the context worker, if it is idle.
  kStart,
  // End the context worker: it is idle then.
  kEnd,
  // The driver has lost the device: its generation moves, its workers end, and none follows.
  kLose,
  // Remember for later brokers that the device is drained, and why; or that it is not.
  kDrain,
  kUndrain,
  // End the monitor: it hangs. Another one follows.
  kKillMonitor,
  // Have every process be one of the program that is installed by now: the vault by taking its place, then the broker,
  // the main workers one by one, and the monitor. Of no device.
  kUpgrade,
};

struct Order {
  MessageKind kind = MessageKind::kOrder;
  uint32_t device = 0;
  OrderKind order = OrderKind::kKill;
  // Of kKill, kRestart and kEnable: which worker.
  Lane lane = Lane::kMain;
  // As WorkerStatus::last_failure will say it; zero-terminated.
  char why[kReasonBytes] = {};
};

// GiveEnd: everything held has been given. Stop: please end. Ready: the broker serves. HandOver: please give back
// everything. Reset: the next broker shall begin a new incarnation; this one is about to end. Reload: please read the
// configuration file anew.
struct Signal {
  MessageKind kind = MessageKind::kGiveEnd;
};

static_assert(std::is_trivially_copyable_v<Facts> && std::is_trivially_copyable_v<GiveMessage> &&
              std::is_trivially_copyable_v<KeyMessage> && std::is_trivially_copyable_v<BoundMessage> &&
              std::is_trivially_copyable_v<WorkerStatus> && std::is_trivially_copyable_v<Order> &&
              std::is_trivially_copyable_v<Signal>);

// Writes `text` into a zero-terminated field, cut where it is too long.
inline void SetReason(std::string_view text, char (&field)[kReasonBytes]) {
  field[text.copy(field, kReasonBytes - 1)] = '\0';
}
// What SetReason() wrote.
inline std::string ReasonOf(const char (&field)[kReasonBytes]) {
  return std::string(field, strnlen(field, kReasonBytes));
}

}  // namespace berth::custody

#endif  // DAEMON_VAULT_CUSTODY_WIRE_H_
