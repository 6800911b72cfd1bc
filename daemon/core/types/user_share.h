// UserShare: the limit of one user in a count that all users share.
//
// A user may have half of what the other users leave. So one user alone can take half, two users a third each if both
// press, and n users 1 / (n + 1) each. A user that has places cannot take the last one, however many requests it sends.
// A user without any place finds one as long as one is free. docs/concepts/limits.md lists the counts that follow this
// rule.

#ifndef DAEMON_CORE_TYPES_USER_SHARE_H_
#define DAEMON_CORE_TYPES_USER_SHARE_H_

#include <algorithm>
#include <cstdint>

namespace berth::core {

// `others` is the other users' part of `limit`. Rounds up, so that the last free place can be taken.
constexpr uint64_t UserShare(uint64_t limit, uint64_t others) {
  const uint64_t left = limit - std::min(limit, others);
  return left - left / 2;
}

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_USER_SHARE_H_
