// The messages of attach.sock (SEQPACKET): how a process opens or joins a session, and which messages its side channel
// then carries.
//
//   opener   → Hello                → broker, which reads the peer's credentials
//   opener   ← Welcome + credentials fd ← the connection is now the session's lifeline: silent, inheritable
//   process  → Join                 → broker, on a separate connection; the broker opens the process's pidfd
//   process  ← Joined + page fd     ←   the connection is now the process's channel
//   channel: broker -> Delivery (numbered; a block's, a page's or a module's fd, a recall, a request), process -> Ack,
//            LetGo, HandedOver
//   channel: process → GiveBack, broker → GaveBack
//   channel: process → Ask, broker → Answer
//   channel: a broker that succeeds another broker → Resumed
//
//   process  → Rejoin               → a later daemon, on a new connection, after the previous daemon ended
//   process  ← Joined + page fd     ←   the connection is the process's channel, or the session's lifeline, again
//
// Structs travel in memory representation: both ends are on one machine. The first 32-bit value of every message is its
// kind. The broker answers a message of another kind, size or fd count than stated here with a Refused that names the
// mismatch, closes its fds, and continues. After 16 such messages on one connection the broker closes the connection.

#ifndef COMMON_WIRE_ATTACH_WIRE_H_
#define COMMON_WIRE_ATTACH_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "common/secret.h"

namespace berth::attach {

inline constexpr uint32_t kVersion = 1;
// Longest label, holder key and Berth tag, in bytes.
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
  kRejoin,
  kAsk,
  kAnswer,
};

// Requests a session.
struct Hello {
  Kind kind = Kind::kHello;
  uint32_t version = kVersion;
  // Printable text, zero-padded; not terminated when full.
  char label[kMaxLabelBytes] = {};
};

// Answers Hello, with one fd: the session credentials (common/wire/session_credentials.h).
struct Welcome {
  Kind kind = Kind::kWelcome;
  uint32_t version = kVersion;
};

// Requests a channel of the session for the sending process.
struct Join {
  Kind kind = Kind::kJoin;
  uint32_t version = kVersion;
  uint64_t session = 0;
  Secret secret;
};

// Requests from a later daemon the channel that the sending process had before the daemon was stopped, or killed with
// all its sockets. Without a channel, requests the session's lifeline. The answer is Joined, with the same channel. The
// session's permits and plans are unchanged. Blocks and streams ended with the previous daemon.
struct Rejoin {
  Kind kind = Kind::kRejoin;
  uint32_t version = kVersion;
  uint64_t session = 0;
  Secret secret;
  // 0 requests the lifeline.
  uint64_t channel = 0;
};

// Answers Join or Rejoin, with one fd: the node's state page, read-only (common/wire/state_page.h).
struct Joined {
  Kind kind = Kind::kJoined;
  uint32_t version = kVersion;
  uint64_t channel = 0;
  uint64_t node = 0;
  uint64_t incarnation = 0;
};

// Rejects a Hello, a Join, a Rejoin or an invalid message. The request changed nothing.
struct Refused {
  Kind kind = Kind::kRefused;
  uint32_t version = kVersion;
  // An absl::StatusCode and a berth::Reason.
  int32_t code = 0;
  int32_t reason = 0;
  // Zero-terminated text.
  char text[508] = {};
  // Milliseconds after which the sender may retry, if too many messages came and this one was not evaluated; else 0.
  uint32_t retry_after = 0;
};

enum class DeliveryKind : uint32_t {
  // A block for the request `sequence`, with one fd.
  kBlock = 1,
  // `block` ended: its importers must unmap it. `why` is kStateLost (end_notice.h) if the daemon lost the memory,
  // kMemoryLost if the device or the context worker lost it, and 0 if the block was freed. A free can follow a loss.
  kRecall = 2,
  // The process's own fence page (common/wire/fence_page.h), for the request `sequence`: one writable fd, or none if
  // the page could not be created.
  kOwnPage = 3,
  // The fence page of the channel `owner`, sent before the first answer that names the channel: one read-only fd, or
  // none if that process has ended.
  kForeignPage = 4,
  // Another process is about to map `block`, whose uses this process has tracked alone: the process must answer
  // HandedOver.
  kHandOver = 5,
  // The session has ended, and with it every lease of the process. The process unmaps its mappings as usual. `why` and
  // `owner` are the reason and the operator's uid; both are 0 if the process requested the end.
  kEnded = 6,
  // A block for the request `sequence`, whose handle is in the request's answer: no fd.
  kHandleBlock = 7,
  // Requests the importers of `block` to unmap it; the block does not end.
  kAskBack = 8,
  // `permit`, of the process's session, is held for longer than its pool's hold limit.
  kOverdue = 9,
  // `permit`, of the process's session, was revoked; `why` and `owner` are the reason and the operator's uid.
  kRevoked = 10,
  // `plan`, of the process's session, is no longer valid.
  kPlanStale = 11,
  // A compiled module for the request `sequence`: one sealed read-only fd, or none if the cache has evicted the module
  // meanwhile; the process then requests the module again.
  kModule = 13,
  // The file to write a compiled module to, for the request `sequence`: one writable fd. No fd if the file could not be
  // created or the right to compile has expired.
  kModulePlace = 14,
};
constexpr auto ArchivedValues(DeliveryKind) { return std::pair(DeliveryKind::kBlock, DeliveryKind::kModulePlace); }

// Notifies the process. A restarted broker sends unacknowledged deliveries again. Per channel, at most 8 unacknowledged
// deliveries with fds are in flight.
struct Delivery {
  Kind kind = Kind::kDelivery;
  DeliveryKind what = DeliveryKind::kBlock;
  // Rises by one per delivery of this channel, from 1.
  uint64_t number = 0;
  // The request's sequence (kBlock, kHandleBlock, kOwnPage, kModule, kModulePlace), else 0.
  uint64_t sequence = 0;
  // A block; for kModule the module, for kModulePlace the right to compile.
  uint64_t block = 0;
  uint64_t import = 0;
  // A channel (kForeignPage); the uid of the operator who ended the lease (kEnded, kRevoked); else 0.
  uint64_t owner = 0;
  // Set for kOverdue and kRevoked; else 0.
  uint64_t permit = 0;
  // For a block (kBlock, kHandleBlock): 1 if the daemon tracks its fences, 0 if this process alone does.
  uint64_t shared = 0;
  // kPlanStale: the plan, its revision, the reason (Plan.Stale of proto/berth/v1/plan.proto), and the ordinal of the
  // device concerned. kEnded, kRevoked, kRecall: `why` is an EndReason (end_notice.h), or 0 from a daemon that sends
  // none. Else 0.
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

// Acknowledges every delivery up to `number`.
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

// A use of a block that the process made on a stream of its own and that may not have ended.
struct HandedMark {
  uint32_t slot = 0;
  // Bit mask: 1 reads, 2 writes.
  uint32_t access = 0;
  uint64_t value = 0;
};

// Transfers the tracking of a block from the process to the daemon. No use of the block is open; the marks are uses
// that may not have ended. Sent without the marks past `count`.
struct HandedOver {
  // One mark per slot of a page for the reads, and one for the last write.
  static constexpr uint32_t kMaxMarks = 253;
  Kind kind = Kind::kHandedOver;
  uint32_t count = 0;
  uint64_t block = 0;
  HandedMark marks[kMaxMarks] = {};

  static constexpr size_t kHeadBytes = 16;
  static constexpr size_t BytesOf(uint32_t count) { return kHeadBytes + count * sizeof(HandedMark); }
};
static_assert(sizeof(HandedOver) == HandedOver::BytesOf(HandedOver::kMaxMarks));

// Returns an acquisition of a permit, as PermitService.ReleasePermit does, at a fraction of an RPC's cost. Sent once:
// the socket holds the message until a broker has processed it, so it survives a broker that ends first.
struct GiveBack {
  Kind kind = Kind::kGiveBack;
  // 1: only if the process caches the permit and its slot is IDLE; else 0.
  uint32_t if_idle = 0;
  uint64_t acquisition = 0;
};

// Answers a GiveBack; may arrive twice if a broker ended while it answered.
struct GaveBack {
  Kind kind = Kind::kGaveBack;
  // 1: the acquisition is returned, if it still existed. 0: the broker could not return it now, and ReleasePermit
  // reports the reason.
  uint32_t taken = 0;
  uint64_t acquisition = 0;
};

// The RPCs that an Ask may call. The bodies are those messages of proto/berth/v1.
enum class Method : uint32_t {
  // PermitService.AcquirePermit. At most one such Ask of a channel may wait for its Answer.
  kAcquirePermit = 1,
  // PermitService.ExplainWait, of the channel's waiting kAcquirePermit. The request's body is empty.
  kExplainWait = 2,
  // SessionService.EndSession, of the process's own session.
  kEndSession = 3,
  // Cancels the channel's waiting kAcquirePermit, as the end of an RPC's connection does. The request's body is empty.
  // Has no Answer of its own.
  kCancel = 4,
  // The process is about to stop: sets its waiting requests aside (PROCESS_STOPPED of proto/berth/v1/errors.proto), so
  // that nothing is granted to it meanwhile. Request and answer have empty bodies.
  kSkip = 5,
};

// Calls an RPC for a process that has not started gRPC, which costs such a process a multiple of a short command. A
// broker that ends before its answer forgets the call: the process asks the next broker, with the same request tag.
// Sent without the body past `bytes`.
struct Ask {
  static constexpr uint32_t kMaxBytes = 4032;
  Kind kind = Kind::kAsk;
  Method method = Method::kAcquirePermit;
  // Number of the Ask, chosen by the process; the Answer repeats the number.
  uint64_t number = 0;
  uint64_t session = 0;
  Secret secret;
  uint32_t padding = 0;
  uint32_t bytes = 0;
  char body[kMaxBytes] = {};

  static constexpr size_t kHeadBytes = 48;
  static constexpr size_t BytesOf(uint32_t bytes) { return kHeadBytes + bytes; }
};
static_assert(sizeof(Ask) == Ask::BytesOf(Ask::kMaxBytes));

// Answers an Ask. Sent without the body past `bytes`.
struct Answer {
  static constexpr uint32_t kMaxBytes = 4072;
  enum class Outcome : uint32_t {
    // The body is the RPC's response.
    kDone = 0,
    // The body is a google.rpc.Status.
    kRefused = 1,
    // The answer is too long for this message, and the body is empty: the RPC returns it.
    kTooLong = 2,
  };
  Kind kind = Kind::kAnswer;
  Outcome outcome = Outcome::kDone;
  uint64_t number = 0;
  uint32_t padding = 0;
  uint32_t bytes = 0;
  char body[kMaxBytes] = {};

  static constexpr size_t kHeadBytes = 24;
  static constexpr size_t BytesOf(uint32_t bytes) { return kHeadBytes + bytes; }
};
static_assert(sizeof(Answer) == Answer::BytesOf(Answer::kMaxBytes));

// Reports that a broker which took the channel over from another broker now serves. If it arrives in place of a Joined,
// the previous broker ended while it answered, and the process must join again.
struct Resumed {
  Kind kind = Kind::kResumed;
  // Milliseconds after which waiting calls retry, so that they do not all arrive at once.
  uint32_t return_after = 0;
};

static_assert(std::is_trivially_copyable_v<Hello> && std::is_trivially_copyable_v<Join> &&
              std::is_trivially_copyable_v<Rejoin> &&
              std::is_trivially_copyable_v<Joined> && std::is_trivially_copyable_v<Refused> &&
              std::is_trivially_copyable_v<Delivery> && std::is_trivially_copyable_v<Ack> &&
              std::is_trivially_copyable_v<LetGo> && std::is_trivially_copyable_v<HandedOver> &&
              std::is_trivially_copyable_v<Resumed> && std::is_trivially_copyable_v<GiveBack> &&
              std::is_trivially_copyable_v<GaveBack> && std::is_trivially_copyable_v<Ask> &&
              std::is_trivially_copyable_v<Answer>);

}  // namespace berth::attach

#endif  // COMMON_WIRE_ATTACH_WIRE_H_
