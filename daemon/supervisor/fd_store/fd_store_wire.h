// Messages between supervisor and broker, on one SEQPACKET socket pair. They carry the fds that the supervisor holds
// for the broker, and the state of the other processes.
//
//   supervisor → broker  Facts, then Give + fds for everything held, the ledger first, then GiveEnd;
//                        later Give + fds for a restarted worker or monitor and for listening sockets made again,
//                        WorkerStatus, Dropped, Reload, FolderChanged, Stop; Exec + pidfd, ExecFailed
//   broker → supervisor  Put + fd, Drop, Bound, Ready, Command, Reset
//
// The fd store works both ways: the broker also has all of this state. The broker gives that state to the supervisor
// that replaces an ended one, or to the program that takes over the supervisor's process and requests it:
//
//   supervisor → broker  HandOver
//   broker → supervisor  Facts, then Give + fds for everything held, WorkerStatus for each worker, then GiveEnd;
//                        then what an earlier supervisor did not answer: Drop, Command
//
// Structs are sent in their memory layout: both ends are the same program. The first 32-bit value of every message is
// its kind. A Put is held from the moment that sendmsg accepts it, because the supervisor reads a dead broker's socket
// to its end before the next start. A message with a kind, size or fd count other than stated here is a defect of the
// sender. The supervisor kills a broker that sends such a message.

#ifndef DAEMON_SUPERVISOR_FD_STORE_FD_STORE_WIRE_H_
#define DAEMON_SUPERVISOR_FD_STORE_FD_STORE_WIRE_H_

#include <string.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/os/fd_passing.h"
#include "daemon/base/struct_message.h"
#include "daemon/base/worker_command.h"
#include "daemon/base/worker_kind.h"

namespace berth::fd_store {

// Kind of a held fd; each comment also defines the meaning of Key::id.
enum class Kind : uint32_t {
  // A listening socket; the id is a Listener.
  kListener = 1,
  // The node's state page, writable (common/wire/state_page.h); id 0.
  kStatePage,
  // A sealed memfd of DeviceRecords (daemon/device/monitor/device_record.h); id 0.
  kDeviceTable,
  // A session's lifeline; the id is the session's.
  kLifeline,
  // A process's channel, until it hangs up; the id is the channel's.
  kChannel,
  // The pidfd of a channel's process, until the channel no longer stands for any state; the id is the channel's.
  kPidfd,
  // A block's memory; the id is the block's.
  kBlock,
  // The broker's end of a worker's socket; the id is the device's ordinal. Put and dropped by the supervisor alone.
  kWorker,
  // A process's fence page, writable (common/wire/fence_page.h); the id is its channel's.
  kFencePage,
  // As kWorker, for a device's context worker.
  kContextWorker,
  // The broker's end of the monitor's socket (daemon/device/monitor/monitor_wire.h); id 0. Put and dropped by the
  // supervisor alone.
  kMonitor,
  // Fds that a supervisor needs to continue after another one, put and dropped by the supervisor alone. The folder's
  // lock, id 0; the pidfds of a device's worker and context worker, the id is the device's ordinal; the pidfd of the
  // monitor, id 0.
  kFolderLock,
  kWorkerProcess,
  kContextProcess,
  kMonitorProcess,
  // The pidfd of the broker that hands over; id 0.
  kBroker,
  // A sealed memfd with the text of the last valid configuration file; the greatest id is the latest.
  kConfiguration,
  // The list of fds that the service manager has, and the daemon they belong to (store_record.h). Put by the supervisor
  // alone; id 0.
  kStoreRecord,
  // The claims on the folder's path, id 0, and on its node id, id kNodeClaim (folder_claim.h), for supervisors only, as
  // kFolderLock.
  kFolderClaim,
  // The ledger's file. Among ledgers without the superseded mark, the ledger with the greatest id is current.
  kLedger,
  // An fd that was open for writing when the daemon was started, for `log.file`; the id is its number then. Put by the
  // supervisor alone; the broker drops those that its settings do not name.
  kInheritedOutput,
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

// Id of the kFolderClaim on the node id.
constexpr uint64_t kNodeClaim = 1;

// Names one held fd.
struct Key {
  Kind kind = Kind::kListener;
  uint32_t padding = 0;
  uint64_t id = 0;

  friend auto operator<=>(const Key&, const Key&) = default;
};

constexpr Key KeyOf(Kind kind, uint64_t id = 0) { return Key{.kind = kind, .id = id}; }
// Names a worker's socket.
constexpr Key KeyOf(WorkerKind worker_kind, uint32_t device) {
  return KeyOf(worker_kind == WorkerKind::kMain ? Kind::kWorker : Kind::kContextWorker, device);
}
// Names a worker's process.
constexpr Key ProcessKeyOf(WorkerKind worker_kind, uint32_t device) {
  return KeyOf(worker_kind == WorkerKind::kMain ? Kind::kWorkerProcess : Kind::kContextProcess, device);
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
  kCommand,
  kHandOver,
  kReset,
  kReload,
  kBound,
  kFolderChanged,
  kExec,
  kExecFailed,
};

inline constexpr uint64_t kBegun = 1;
inline constexpr uint64_t kBegunBeforeALoss = 2;
// As kBegunBeforeALoss, and the recorded pids are from another PID namespace.
inline constexpr uint64_t kBegunElsewhere = 3;
// As kBegunBeforeALoss, but the node record is missing or damaged. The broker grants nothing while the ledger has
// leases.
inline constexpr uint64_t kBegunUnrecorded = 4;

// The first message: the parameters of the broker's life.
struct Facts {
  MessageKind kind = MessageKind::kFacts;
  // Records in the device table.
  uint32_t device_count = 0;
  uint64_t node = 0;
  uint64_t incarnation = 0;
  uint64_t epoch = 0;
  // Limit on fds in the supervisor's fd store, all kinds together.
  uint64_t fd_store_limit = 0;
  // Non-zero if a broker of this incarnation has served: the broker restores its persisted state. kBegunBeforeALoss if
  // supervisor and broker have died together since, or a Put arrived without its fd. A missing fd then does not prove
  // that its object is gone. kBegunElsewhere if, in addition, a daemon in another PID namespace recorded the processes.
  // kBegunUnrecorded if no record identifies the daemon of the ledger.
  uint64_t begun = 0;
};

// Give: as many held fds as one message carries. keys[i] names fd i of the message.
struct GiveMessage {
  MessageKind kind = MessageKind::kGive;
  uint32_t padding = 0;
  Key keys[kMaxMessageFds];
};

// Returns the message as a Give of the fds that came with it, at least one.
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

// The memory limit that the broker sets itself, in bytes.
struct BoundMessage {
  MessageKind kind = MessageKind::kBound;
  uint32_t padding = 0;
  uint64_t bytes = 0;
};

enum class WorkerState : uint32_t {
  // The worker runs or is being started: the socket arrives by a Give.
  kRunning = 1,
  // The worker has ended, and another is being started.
  kGone,
  // The worker has ended, and no other starts until the device is enabled.
  kStopped,
  // As kStopped, but the worker still exists: SIGKILL did not end it. A kStopped follows its end.
  kAbandoned,
  // No worker runs; the next one starts on a worker command. Context workers only.
  kIdle,
  // No worker runs; a process tests whether the device works. On success a worker starts, otherwise kStopped follows.
  // Main workers only.
  kTesting,
  // As kStopped, because the device is lost. The device may be enabled once the driver has it again.
  kLost,
};

inline constexpr uint32_t kReasonBytes = 240;

// State of one of a device's workers. Sent on every change, and to a new broker for each worker.
struct WorkerStatus {
  MessageKind kind = MessageKind::kWorkerStatus;
  uint32_t device = 0;
  WorkerState state = WorkerState::kRunning;
  uint32_t restarts_left = 0;
  // Generation of the memory that the worker makes; the state page has the same value.
  uint64_t generation = 0;
  uint32_t dropped = 0;
  WorkerKind worker_kind = WorkerKind::kMain;
  // Why the last worker ended; zero-terminated, truncated if too long.
  char last_failure[kReasonBytes] = {};
  // Why an operator drains the device; empty if not drained. Main workers only; zero-terminated, truncated if too long.
  char drain_reason[kReasonBytes] = {};
};

struct CommandMessage {
  MessageKind kind = MessageKind::kCommand;
  uint32_t device = 0;
  WorkerCommand command = WorkerCommand::kKill;
  // The worker that kKill, kRestart and kEnable address.
  WorkerKind worker_kind = WorkerKind::kMain;
  // The reason, as WorkerStatus::last_failure will report it; zero-terminated.
  char why[kReasonBytes] = {};
};

// The supervisor could not execute the program that it had announced by Exec, and continues.
struct ExecFailedMessage {
  MessageKind kind = MessageKind::kExecFailed;
  // The reason; zero-terminated.
  char why[kReasonBytes] = {};
};

// GiveEnd: everything held has been given. Stop: end. Ready: the broker serves. HandOver: give back everything. Reset:
// the next broker begins a new incarnation, and the sender is about to end. Reload: read the configuration file again.
// FolderChanged: check that your files are in the run folder. Exec (one fd): the supervisor is about to execute another
// program in its process, and the fd is the pidfd of that process.
struct Signal {
  MessageKind kind = MessageKind::kGiveEnd;
};

static_assert(std::is_trivially_copyable_v<Facts> && std::is_trivially_copyable_v<GiveMessage> &&
              std::is_trivially_copyable_v<KeyMessage> && std::is_trivially_copyable_v<BoundMessage> &&
              std::is_trivially_copyable_v<WorkerStatus> && std::is_trivially_copyable_v<CommandMessage> &&
              std::is_trivially_copyable_v<ExecFailedMessage> && std::is_trivially_copyable_v<Signal>);

// Writes `text` into a zero-terminated field, truncated if too long.
inline void SetReason(std::string_view text, char (&field)[kReasonBytes]) {
  field[text.copy(field, kReasonBytes - 1)] = '\0';
}
// Returns the text that SetReason() wrote.
inline std::string ReasonOf(const char (&field)[kReasonBytes]) {
  return std::string(field, strnlen(field, kReasonBytes));
}

}  // namespace berth::fd_store

#endif  // DAEMON_SUPERVISOR_FD_STORE_FD_STORE_WIRE_H_
