// The messages between vault and broker, on one SEQPACKET socket pair: what the vault keeps for the broker,
// and what it tells of the other processes.
//
//   vault → broker  Facts, then Give + fd for everything held, then GiveEnd;
//                   later Give + fd for a restarted worker, WorkerGone, Dropped, Stop
//   broker → vault  Put + fd, Drop, Ready
//
// Structs are sent as they lie in memory: both ends are one program. The first word of every message is its
// kind. A Put that sendmsg took is in custody: the vault reads a dead broker's socket to its end before it
// starts the next. A message of another kind, size or fd count than stated here is a defect of the sender;
// the vault ends a broker that sends one.

#ifndef DAEMON_VAULT_CUSTODY_WIRE_H_
#define DAEMON_VAULT_CUSTODY_WIRE_H_

#include <compare>
#include <cstdint>
#include <type_traits>

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
};

enum class Listener : uint64_t {
  // berthd.sock, SOCK_STREAM.
  kBerthd = 1,
  // admin.sock, SOCK_STREAM.
  kAdmin,
  // attach.sock, SOCK_SEQPACKET.
  kAttach,
};

// Names one held fd.
struct Key {
  Kind kind = Kind::kListener;
  uint32_t padding = 0;
  uint64_t id = 0;

  friend auto operator<=>(const Key&, const Key&) = default;
};

constexpr Key KeyOf(Kind kind, uint64_t id = 0) { return Key{.kind = kind, .id = id}; }
constexpr Key KeyOf(Listener listener) { return KeyOf(Kind::kListener, static_cast<uint64_t>(listener)); }

enum class MessageKind : uint32_t {
  kFacts = 1,
  kGive,
  kGiveEnd,
  kWorkerGone,
  kDropped,
  kStop,
  kPut,
  kDrop,
  kReady,
};

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
};

// Give, Put (one fd each), Dropped, Drop (none): about one held fd.
struct KeyMessage {
  MessageKind kind = MessageKind::kGive;
  uint32_t padding = 0;
  Key key;
};

// A device's worker is gone; the next Give of its socket, if any, ends that state.
struct WorkerGone {
  MessageKind kind = MessageKind::kWorkerGone;
  uint32_t device = 0;
  // 1 if it will not be started again.
  uint32_t stopped = 0;
};

// GiveEnd: everything held has been given. Stop: please end. Ready: the broker serves.
struct Signal {
  MessageKind kind = MessageKind::kGiveEnd;
};

static_assert(std::is_trivially_copyable_v<Facts> && std::is_trivially_copyable_v<KeyMessage> &&
              std::is_trivially_copyable_v<WorkerGone> && std::is_trivially_copyable_v<Signal>);

}  // namespace berth::custody

#endif  // DAEMON_VAULT_CUSTODY_WIRE_H_
