// EndNotice: why a lease ended before its holder released it, and who ended it. The daemon sends it to the holder as
// numbers in a Delivery (common/wire/attach_wire.h).

#ifndef BERTH_END_NOTICE_H_
#define BERTH_END_NOTICE_H_

#include <cstdint>
#include <string>

namespace berth {

enum class EndReason : uint32_t {
  // The daemon gives no reason: an older daemon, or an end that the receiving process asked for.
  kUnknown = 0,
  // An operator revoked the permit.
  kRevoked = 1,
  // The permit was held past the hold limit of its pool.
  kHoldLimit = 2,
  // An operator ended the session.
  kSessionEnded = 3,
  // Another process of the session ended it.
  kEndedByOwnProcess = 4,
  // The last process that held the session's lifeline closed it.
  kLifelineClosed = 5,
  // An operator stopped the daemon and ended all leases.
  kStopped = 6,
  // An operator reset the daemon.
  kReset = 7,
  // The daemon lost the file descriptors that the lease depended on.
  kStateLost = 8,
  // The daemon, or a daemon that started since, does not know the session. Never sent: the client detects it.
  kNotResumed = 9,
  // The side channel between process and daemon broke: it carried an unreadable message, or an end could not continue.
  kChannelBroken = 10,
  // The memory of a block was lost: its device was reset, lost or dropped, or the context worker that made it ended.
  kMemoryLost = 11,
};

// Why a block is stale whose memory the daemon lost. A phrase for people.
inline constexpr char kLostWithDaemon[] = "lost: its memory ended with the daemon that held it";

struct EndNotice {
  EndReason reason = EndReason::kUnknown;
  // The operator's uid; 0 for reasons that no operator causes.
  uint32_t uid = 0;

  friend bool operator==(const EndNotice&, const EndNotice&) = default;
};

// Returns whether another holder may use the lease's units at once. Otherwise the units return when the session's
// processes have ended.
bool FreesUnits(EndReason reason);

// Returns a clause for people, such as "an operator (uid 0) revoked it", where "it" is the lease.
std::string Describe(const EndNotice& end);

}  // namespace berth

#endif  // BERTH_END_NOTICE_H_
