// Admitted: a request on its way through the core. A plain value.

#ifndef DAEMON_CORE_ADMITTED_H_
#define DAEMON_CORE_ADMITTED_H_

#include "daemon/core/request_memory.h"
#include "daemon/core/session_table.h"

namespace berth::core {

// A request that was taken in.
struct Admitted {
  RequestId request;
  const Session& session;
  const Channel& channel;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_ADMITTED_H_
