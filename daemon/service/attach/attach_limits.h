// AttachLimits: limits for connections to attach.sock.

#ifndef DAEMON_SERVICE_ATTACH_ATTACH_LIMITS_H_
#define DAEMON_SERVICE_ATTACH_ATTACH_LIMITS_H_

#include <cstdint>

#include "daemon/service/limits/accept_gate.h"

namespace berth::service {

struct AttachLimits {
  // File descriptors of one user. A lifeline takes one. A channel takes one, and another for its process, which remains
  // after the channel hangs up. The default suffices for 4,096 sessions of one process each.
  uint32_t fds_per_uid = 3 * 4096;
  // File descriptors of all users together; each user has a share.
  uint32_t fds = UINT32_MAX;
  AcceptRates accepts;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_ATTACH_ATTACH_LIMITS_H_
