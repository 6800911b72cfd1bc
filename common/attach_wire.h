// The messages of attach.sock (SEQPACKET): how a process opens or joins a session, and what then travels on its
// channel.
//
//   opener   → Hello                → broker, which looks at the peer's credentials
//   opener   ← Welcome + capsule fd ←   the connection is now the session's lifeline: silent, inheritable
//   process  → Join                 → broker, on a connection of its own, which takes the process's pidfd
//   process  ← Joined + page fd     ←   the connection is now the process's channel
//   channel: broker → Delivery (numbered; a block's, a page's or a module's fd, a recall, a wish), process → Ack,
//            LetGo, HandedOver
//   channel: process → GiveBack, broker → GaveBack
//   channel: a broker that follows another one → Resumed
//
// Structs are sent as they lie in memory: both ends are on one machine. The first word of every message is its kind.
// The broker answers a message of another kind, size or fd count than stated here by a Refused that says so, drops
// its fds, and goes on; after 16 such on one connection it ends it.

#ifndef COMMON_ATTACH_WIRE_H_
#define COMMON_ATTACH_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

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
  kHandedOver,
  kResumed,
  kGiveBack,
  kGaveBack,
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
  char text[508] = {};
  // Of one that was not looked at because too many came at once: milliseconds after which to come again. Else 0.
  uint32_t retry_after = 0;
};

enum class DeliveryKind : uint32_t {
  // A block for the request `sequence`, with one fd.
  kBlock = 1,
  // The owner freed `block`: its importers shall let go.
  kRecall = 2,
  // The process's own fence page (common/fence_page.h), for the request `sequence`: one writable fd, or none where it
  // could not be made.
  kOwnPage = 3,
  // The fence page of the channel `owner`, before the first answer that names it: one fd that can only be
  // read, or none where that process is gone.
  kForeignPage = 4,
  // Another process is about to map `block`, which this one has tracked alone: it shall answer HandedOver.
  kHandOver = 5,
  // The session has ended, and with it every lease of the process. What it has mapped it lets go as before.
  kEnded = 6,
  // A block for the request `sequence`, whose handle is in the request's answer: no fd.
  kHandleBlock = 7,
  // Somebody asks the importers of `block`, which stays, to let go of it.
  kAskBack = 8,
  // `permit`, of the process's session, is held for longer than its pool would have it.
  kOverdue = 9,
  // `permit`, of the process's session, was taken away.
  kRevoked = 10,
  // `plan`, of the process's session, does not hold any more.
  kPlanStale = 11,
  // A compiled module for the request `sequence`: one sealed fd that can only be read, or none where the module has
  // left the cache meanwhile, so that it is to be asked for again.
  kModule = 13,
  // The place to write a compiled module to, for the request `sequence`: one writable fd, or none where it could not be
  // made, or the right to compile is over.
  kModulePlace = 14,
};
constexpr auto ArchivedValues(DeliveryKind) { return std::pair(DeliveryKind::kBlock, DeliveryKind::kModulePlace); }

// Tells the process something. Sent again after a restart of the broker until acknowledged; at most 8 with
// unacknowledged fds are under way per channel.
struct Delivery {
  Kind kind = Kind::kDelivery;
  DeliveryKind what = DeliveryKind::kBlock;
  // Rises by one per delivery of this channel, from 1.
  uint64_t number = 0;
  // The request's sequence (kBlock, kHandleBlock, kOwnPage, kModule, kModulePlace), else 0.
  uint64_t sequence = 0;
  // A block; of kModule the module, of kModulePlace the right to compile.
  uint64_t block = 0;
  uint64_t import = 0;
  // A channel (kForeignPage), else 0.
  uint64_t owner = 0;
  // kOverdue, kRevoked; else 0.
  uint64_t permit = 0;
  // With a block (kBlock, kHandleBlock): 1 if its fences are the daemon's to track, 0 if this process's alone.
  uint64_t shared = 0;
  // kPlanStale: the plan, which of its revisions, why (Plan.Stale of proto/berth/v1/plan.proto), and the ordinal of the
  // device that it is about; else 0.
  uint64_t plan = 0;
  uint64_t revision = 0;
  uint64_t why = 0;
  uint64_t device = 0;
};

template <typename Archive>
void Fields(Archive& archive, Delivery& value) {
  archive(value.what, value.number, value.sequence, value.block, value.import, value.owner, value.permit,
          value.shared, value.plan, value.revision, value.why, value.device);
}

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

// A use that the process made of a block on a stream of its own and that may not have ended.
struct HandedMark {
  uint32_t slot = 0;
  // Two bits: 1 reads, 2 writes.
  uint32_t access = 0;
  uint64_t value = 0;
};

// Hands over what the process has tracked of a block by itself: no use of it is open, and these may not have
// ended. Sent without the marks past `count`.
struct HandedOver {
  // One per slot of a page for the reads, and the last write.
  static constexpr uint32_t kMaxMarks = 253;
  Kind kind = Kind::kHandedOver;
  uint32_t count = 0;
  uint64_t block = 0;
  HandedMark marks[kMaxMarks] = {};

  static constexpr size_t kHeadBytes = 16;
  static constexpr size_t BytesOf(uint32_t count) { return kHeadBytes + count * sizeof(HandedMark); }
};
static_assert(sizeof(HandedOver) == HandedOver::BytesOf(HandedOver::kMaxMarks));

// Gives an acquisition of a permit back, as PermitService.ReleasePermit does, for a fraction of what a call costs. Said
// once: a broker that ends before it has heard it leaves it to the next one.
struct GiveBack {
  Kind kind = Kind::kGiveBack;
  // 1: only if the process keeps the permit and its word says IDLE; else 0.
  uint32_t if_idle = 0;
  uint64_t acquisition = 0;
};

// Answers a GiveBack; perhaps twice, where a broker ended at it.
struct GaveBack {
  Kind kind = Kind::kGaveBack;
  // 1: what there was to give back is back. 0: nothing is taken now, and ReleasePermit says why.
  uint32_t taken = 0;
  uint64_t acquisition = 0;
};

// A broker that took the channel over from another one serves. In place of a Joined: that one ended while it answered,
// and the process is to join anew.
struct Resumed {
  Kind kind = Kind::kResumed;
  // Milliseconds after which calls that waited already are to come again, so that they do not all come at once.
  uint32_t return_after = 0;
};

static_assert(std::is_trivially_copyable_v<Hello> && std::is_trivially_copyable_v<Join> &&
              std::is_trivially_copyable_v<Joined> && std::is_trivially_copyable_v<Refused> &&
              std::is_trivially_copyable_v<Delivery> && std::is_trivially_copyable_v<Ack> &&
              std::is_trivially_copyable_v<LetGo> && std::is_trivially_copyable_v<HandedOver> &&
              std::is_trivially_copyable_v<Resumed> && std::is_trivially_copyable_v<GiveBack> &&
              std::is_trivially_copyable_v<GaveBack>);

}  // namespace berth::attach

#endif  // COMMON_ATTACH_WIRE_H_
