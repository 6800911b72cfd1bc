// What the core answers a request with.

#ifndef DAEMON_CORE_RESPONSE_H_
#define DAEMON_CORE_RESPONSE_H_

#include <variant>

#include "daemon/core/block_types.h"
#include "daemon/core/budget_types.h"
#include "daemon/core/fence_types.h"
#include "daemon/core/gang_types.h"
#include "daemon/core/module_types.h"
#include "daemon/core/permit_types.h"
#include "daemon/core/plan_types.h"
#include "daemon/core/session_types.h"

namespace berth::core {

using Response =
    std::variant<AcquireResult, ReleaseResult, AllocateResult, FreeResult, GrantResult, ImportResult,
                 PublishResult, UnpublishResult, ReserveResult, ReleaseReservationResult, ReapResult,
                 ForgetResult, OpenStreamResult, CloseStreamResult, Prepared, FinishUseResult,
                 AbandonUseResult, GangResult, KeepPermitsResult, PlanResult, ReleasePlanResult,
                 ObtainModuleResult, StoreModuleResult, AbandonModuleResult>;

}  // namespace berth::core

#endif  // DAEMON_CORE_RESPONSE_H_
