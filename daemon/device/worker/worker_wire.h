// Messages between broker and worker, on one SEQPACKET socket pair, answered in order.
//
//   broker → worker  Begin; Create; Hold + fd, Release
//   worker → broker  Released…, Begun; Created (+ fd if it went well); Released
//
// A context worker exports by handles, so a block stays with it until the Release; it is never sent a Hold.
//
//   broker → context worker  Begin; Create; Release
//   context worker → broker  Retained…, Begun; Created; Released
//
// The socket outlives the broker. Messages before a broker's own Begun answer an earlier broker's requests. After its
// Begun the broker knows that any unanswered request was never received. Both Create and Release may be repeated. A
// context worker that still has a block answers a repeated Create with that block. A Release of a missing block
// succeeds. Several brokers may have sent a Begin before a slow or just started worker answers the first of them: each
// Begun names its Begin's epoch.
//
// Structs are sent in their memory layout: both ends are the same program. The first 32-bit value of every message is
// its kind. Each end has no other peer. A message with a kind, size or fd count other than stated here is a defect, and
// ends the worker.

#ifndef DAEMON_DEVICE_WORKER_WORKER_WIRE_H_
#define DAEMON_DEVICE_WORKER_WORKER_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "common/wire/ipc_handle.h"

namespace berth::worker {

enum class Kind : uint32_t {
  kCreate = 1,
  kCreated,
  kHold,
  kRelease,
  kReleased,
  kBegin,
  kRetained,
  kBegun,
};

// Requests a block of `bytes`.
struct Create {
  Kind kind = Kind::kCreate;
  uint32_t padding = 0;
  uint64_t block = 0;
  uint64_t bytes = 0;
};

// A serialised status.
struct Outcome {
  // An absl::StatusCode and a berth::Reason; 0 for none.
  int32_t code = 0;
  int32_t reason = 0;
  // Zero-terminated, truncated if too long.
  char text[512] = {};
  // The error's details: names and values alternating, each zero-terminated, up to an empty name. Pairs that do not fit
  // are omitted.
  char named_values[512] = {};
};

// Answers Create; on success with one fd, or with by_handle set.
struct Created {
  Kind kind = Kind::kCreated;
  // 1 if the block is exported by `handle`.
  uint32_t by_handle = 0;
  uint64_t block = 0;
  IpcHandle handle;
  Outcome outcome;
};

// A broker's first message: close the fds that an earlier broker left held because it died before the Release.
struct Begin {
  Kind kind = Kind::kBegin;
  uint32_t padding = 0;
  // The broker's epoch; no other broker uses it with this worker.
  uint64_t epoch = 0;
};

// Hold (with one fd): hold the block's fd. Release: close it. Retained answers Begin for each block that was exported
// by a handle and still exists.
struct BlockMessage {
  Kind kind = Kind::kHold;
  uint32_t padding = 0;
  uint64_t block = 0;
};

// Answers Release, and Begin for each held fd. The block is closed, or the driver failed to close it and the worker
// still holds it for another Release.
struct Released {
  Kind kind = Kind::kReleased;
  uint32_t padding = 0;
  uint64_t block = 0;
  Outcome outcome;
};

// Last answer to Begin.
struct Begun {
  Kind kind = Kind::kBegun;
  uint32_t padding = 0;
  // Epoch of the Begin.
  uint64_t epoch = 0;
  // Device memory that the worker's context takes, in bytes; 0 without a context.
  uint64_t context_bytes = 0;
};

static_assert(std::is_trivially_copyable_v<Create> && std::is_trivially_copyable_v<Created> &&
              std::is_trivially_copyable_v<Begin> && std::is_trivially_copyable_v<BlockMessage> &&
              std::is_trivially_copyable_v<Released> && std::is_trivially_copyable_v<Begun>);

// Writes `status`, with its reason and details, into `outcome`.
void SetStatus(const absl::Status& status, Outcome* outcome);
// Returns the status that SetStatus() wrote.
absl::Status GetStatus(const Outcome& outcome);

}  // namespace berth::worker

#endif  // DAEMON_DEVICE_WORKER_WORKER_WIRE_H_
