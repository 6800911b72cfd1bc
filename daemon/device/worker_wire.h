// The messages between broker and worker, on one SEQPACKET socket pair, answered in their order.
//
//   broker → worker  Begin; Create; Hold + fd, Release
//   worker → broker  Created (+ fd if it went well); Released
//
// Structs are sent as they lie in memory: both ends are one program. The first word of every message is its
// kind. Each end's only peer is the other: a message of another kind, size or fd count than stated here is a
// defect, and ends the worker.

#ifndef DAEMON_DEVICE_WORKER_WIRE_H_
#define DAEMON_DEVICE_WORKER_WIRE_H_

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"

namespace berth::worker {

enum class Kind : uint32_t {
  kCreate = 1,
  kCreated,
  kHold,
  kRelease,
  kReleased,
  kBegin,
};

// Asks for a block of `bytes`.
struct Create {
  Kind kind = Kind::kCreate;
  uint32_t padding = 0;
  uint64_t block = 0;
  uint64_t bytes = 0;
};

// Answers Create; with one fd if `code` is OK.
struct Created {
  Kind kind = Kind::kCreated;
  // An absl::StatusCode and a berth::Reason, 0 for none.
  int32_t code = 0;
  int32_t reason = 0;
  uint32_t padding = 0;
  uint64_t block = 0;
  // Zero-terminated, cut where it is too long.
  char text[512] = {};
  // The refusal's figures: name and value in turn, each zero-terminated, up to an empty name. What does not
  // fit is left out.
  char figures[512] = {};
};

// Hold (with one fd): keep the block's fd. Release: close it. Released: it is closed, or, with a `code`, the driver did
// not take it and it is kept, to be released again. Begin (of no block), a broker's
// first: close what an earlier broker left held; it did not live to send the Release. Not answered.
struct BlockMessage {
  Kind kind = Kind::kHold;
  // Of Released: an absl::StatusCode.
  int32_t code = 0;
  uint64_t block = 0;
};

static_assert(std::is_trivially_copyable_v<Create> && std::is_trivially_copyable_v<Created> &&
              std::is_trivially_copyable_v<BlockMessage>);

// Writes `status`, with its reason and figures, into `created`.
void SetStatus(const absl::Status& status, Created* created);
// What SetStatus() wrote.
absl::Status GetStatus(const Created& created);

}  // namespace berth::worker

#endif  // DAEMON_DEVICE_WORKER_WIRE_H_
