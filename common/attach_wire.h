// The messages of attach.sock (SEQPACKET): how a process opens or joins a session, and what then travels on its
// channel.
//
//   opener   → Hello                → broker, which looks at the peer's credentials
//   opener   ← Welcome + capsule fd ←   the connection is now the session's lifeline: silent, inheritable
//   process  → Join                 → broker, on a connection of its own, which takes the process's pidfd
//   process  ← Joined + page fd     ←   the connection is now the process's channel
//   channel: broker → Delivery (numbered; a block's fd, or a recall), process → Ack, LetGo
//
// Structs are sent as they lie in memory: both ends are on one machine. The first word of every message is its kind.
// The broker answers a message of another kind, size or fd count than stated here by a Refused that says so, drops
// its fds, and goes on; after 16 such on one connection it ends it.

#ifndef COMMON_ATTACH_WIRE_H_
#define COMMON_ATTACH_WIRE_H_

#include <cstdint>
#include <type_traits>

#include "common/secret.h"

namespace berth::attach {

inline constexpr uint32_t kVersion = 1;
// Longest label, holder key and tag of Berth's, in bytes.
inline constexpr uint32_t kMaxLabelBytes = 128;

enum class Kind : uint32_t {
  kHello = 1,
  kWelcome,
  kJoin,
  kJoined,
  kRefused,
  kDelivery,
  kAck,
  kLetGo,
};

// Asks for a session.
struct Hello {
  Kind kind = Kind::kHello;
  uint32_t version = kVersion;
  // Printable text, zero-padded; not terminated when full.
  char label[kMaxLabelBytes] = {};
};

// Answers Hello, with one fd: the session's capsule (common/session_capsule.h).
struct Welcome {
  Kind kind = Kind::kWelcome;
  uint32_t version = kVersion;
};

// Asks for a channel of the session for the sending process.
struct Join {
  Kind kind = Kind::kJoin;
  uint32_t version = kVersion;
  uint64_t session = 0;
  Secret secret;
};

// Answers Join, with one fd: the node's state page, read-only (common/state_page.h).
struct Joined {
  Kind kind = Kind::kJoined;
  uint32_t version = kVersion;
  uint64_t channel = 0;
  uint64_t node = 0;
  uint64_t incarnation = 0;
};

// Answers Hello or Join instead, and what is no message at all. Changes nothing.
struct Refused {
  Kind kind = Kind::kRefused;
  uint32_t version = kVersion;
  // An absl::StatusCode and a berth::Reason.
  int32_t code = 0;
  int32_t reason = 0;
  // Zero-terminated text.
  char text[512] = {};
};

enum class DeliveryKind : uint32_t {
  // A block for the request `sequence`, with one fd.
  kBlock = 1,
  // The owner freed `block`: its importers shall let go.
  kRecall = 2,
};

// Tells the process something. Sent again after a restart of the broker until acknowledged; at most 8 with
// unacknowledged fds are under way per channel.
struct Delivery {
  Kind kind = Kind::kDelivery;
  DeliveryKind what = DeliveryKind::kBlock;
  // Rises by one per delivery of this channel, from 1.
  uint64_t number = 0;
  // The request's sequence (kBlock), else 0.
  uint64_t sequence = 0;
  uint64_t block = 0;
  uint64_t import = 0;
};

// Every delivery up to `number` has been received.
struct Ack {
  Kind kind = Kind::kAck;
  uint32_t padding = 0;
  uint64_t number = 0;
};

// The process has unmapped the import and closed its fd.
struct LetGo {
  Kind kind = Kind::kLetGo;
  uint32_t padding = 0;
  uint64_t import = 0;
};

static_assert(std::is_trivially_copyable_v<Hello> && std::is_trivially_copyable_v<Join> &&
              std::is_trivially_copyable_v<Joined> && std::is_trivially_copyable_v<Refused> &&
              std::is_trivially_copyable_v<Delivery> && std::is_trivially_copyable_v<Ack> &&
              std::is_trivially_copyable_v<LetGo>);

}  // namespace berth::attach

#endif  // COMMON_ATTACH_WIRE_H_
