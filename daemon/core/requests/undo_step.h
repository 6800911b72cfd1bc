// UndoStep: the step in which a client forgets a request that succeeded, or the daemon withdraws its grant. Undo() of
// the result reverts the request (request_traits.h).

#ifndef DAEMON_CORE_REQUESTS_UNDO_STEP_H_
#define DAEMON_CORE_REQUESTS_UNDO_STEP_H_

#include "daemon/core/managers.h"
#include "daemon/core/sessions/session_table.h"
#include "daemon/core/types/lease_record.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct UndoStep {
  Managers& core;
  StepContext& step;
  // The channel of the request.
  const Channel& channel;
  // How leases of the request end.
  LeaseEnd end = LeaseEnd::kForgotten;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_REQUESTS_UNDO_STEP_H_
