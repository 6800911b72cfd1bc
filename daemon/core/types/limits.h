// Limits of the core's tables that its configuration names (core.h).

#ifndef DAEMON_CORE_TYPES_LIMITS_H_
#define DAEMON_CORE_TYPES_LIMITS_H_

#include <cstdint>

#include <berth/bytes.h>

namespace berth::core {

// Bounds of one channel's memory of requests (request_memory.h), and of its session's.
struct AnswerLimits {
  // Limit of requests, and separately of tombstones of requests that never arrived.
  uint64_t per_channel = 1'024;
  Bytes bytes_per_channel = MiB(1);
  Bytes bytes_per_session = MiB(4);
};

// Bounds of the table of fences (fence_table.h).
struct FenceLimits {
  // Streams in addition to the default stream; at least 1.
  uint32_t streams_per_device = 16;
  // Each limit bounds the cost that one process can impose on the steps of other processes.
  uint64_t blocks_per_use = 256;
  uint64_t open_uses_per_channel = 256;
  uint64_t queued_prepares_per_channel = 64;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_LIMITS_H_
