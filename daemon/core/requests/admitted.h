// Admitted: a request that the core has admitted. A plain value.

#ifndef DAEMON_CORE_REQUESTS_ADMITTED_H_
#define DAEMON_CORE_REQUESTS_ADMITTED_H_

#include "daemon/core/requests/request_memory.h"
#include "daemon/core/sessions/session_table.h"

namespace berth::core {

// An admitted request with its session and channel.
struct Admitted {
  RequestId request;
  const Session& session;
  const Channel& channel;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_REQUESTS_ADMITTED_H_
