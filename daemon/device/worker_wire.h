// The messages between broker and worker, on one SEQPACKET socket pair, answered in their order.
//
//   broker → worker  Begin; Create; Hold + fd, Release
//   worker → broker  Released…, Begun; Created (+ fd if it went well); Released
//
// A context worker exports by handles, so that what it made stays with it until the Release; it is never sent a Hold.
//
//   broker → context worker  Begin; Create; Release
//   context worker → broker  Kept…, Begun; Created; Released
//
// The socket outlives the broker. What comes before a broker's own Begun answers an earlier one: after it the broker
// knows that whatever was not answered was never asked. Both may be asked again: a context worker that has a block
// still answers with that, and what is not there is released. Several brokers may have begun before a worker that is
// slow, or has just been started, gets to answer the first of them: each Begun says whose it is.
//
// Structs are sent as they lie in memory: both ends are one program. The first word of every message is its
// kind. Each end's only peer is the other: a message of another kind, size or fd count than stated here is a
// defect, and ends the worker.

#ifndef DAEMON_DEVICE_WORKER_WIRE_H_
#define DAEMON_DEVICE_WORKER_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "common/ipc_handle.h"

namespace berth::worker {

enum class Kind : uint32_t {
  kCreate = 1,
  kCreated,
  kHold,
  kRelease,
  kReleased,
  kBegin,
  kKept,
  kBegun,
};

// Asks for a block of `bytes`.
struct Create {
  Kind kind = Kind::kCreate;
  uint32_t padding = 0;
  uint64_t block = 0;
  uint64_t bytes = 0;
};

// A status.
struct Outcome {
  // An absl::StatusCode and a berth::Reason, 0 for none.
  int32_t code = 0;
  int32_t reason = 0;
  // Zero-terminated, cut where it is too long.
  char text[512] = {};
  // The refusal's figures: name and value in turn, each zero-terminated, up to an empty name. What does not
  // fit is left out.
  char figures[512] = {};
};

// Answers Create; if it went well with one fd, or by_handle.
struct Created {
  Kind kind = Kind::kCreated;
  // 1 if the block is exported by `handle`.
  uint32_t by_handle = 0;
  uint64_t block = 0;
  IpcHandle handle;
  Outcome outcome;
};

// A broker's first: close the fds that an earlier broker left held, as it did not live to send the Release.
struct Begin {
  Kind kind = Kind::kBegin;
  uint32_t padding = 0;
  // The broker's, which no other one has that this worker hears.
  uint64_t epoch = 0;
};

// Hold (with one fd): keep the block's fd. Release: close it. Kept answers Begin for each block that was exported by a
// handle and is there.
struct BlockMessage {
  Kind kind = Kind::kHold;
  uint32_t padding = 0;
  uint64_t block = 0;
};

// Answers Release, and Begin for each fd held: the block is closed, or the driver did not take it and it is kept, to
// be released again.
struct Released {
  Kind kind = Kind::kReleased;
  uint32_t padding = 0;
  uint64_t block = 0;
  Outcome outcome;
};

// Answers Begin at last.
struct Begun {
  Kind kind = Kind::kBegun;
  uint32_t padding = 0;
  // That of the Begin.
  uint64_t epoch = 0;
  // What the worker's context takes of the device's memory; 0 where it has none.
  uint64_t context_bytes = 0;
};

static_assert(std::is_trivially_copyable_v<Create> && std::is_trivially_copyable_v<Created> &&
              std::is_trivially_copyable_v<Begin> && std::is_trivially_copyable_v<BlockMessage> &&
              std::is_trivially_copyable_v<Released> && std::is_trivially_copyable_v<Begun>);

// Writes `status`, with its reason and figures, into `outcome`.
void SetStatus(const absl::Status& status, Outcome* outcome);
// What SetStatus() wrote.
absl::Status GetStatus(const Outcome& outcome);

}  // namespace berth::worker

#endif  // DAEMON_DEVICE_WORKER_WIRE_H_
