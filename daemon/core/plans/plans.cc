#include "daemon/core/plans/plans.h"

#include <utility>

#include <berth/error.h>

#include "absl/time/time.h"
#include "daemon/core/managers.h"
#include "daemon/core/plans/plan_transaction.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"

namespace berth::core {

Plans::Plans(Managers& core)
    : core_(core), plans_(&core.journal, core.config.limits.plans, core.config.limits.operator_plans) {}

void Plans::MakePlan(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                     const PlanRequest& request) {
  // Until the deadline a plan waits only for permits.
  const absl::Time deadline = request.pool.empty() ? absl::InfiniteFuture() : request.deadline;
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request), deadline);
  if (admitted.has_value()) PlanTransaction(core_, &step).Make(*admitted, request);
}

void Plans::Replan(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                   const ReplanRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (admitted.has_value()) PlanTransaction(core_, &step).Replan(*admitted, request);
}

void Plans::ReleasePlan(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag, PlanId plan) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(plan));
  if (admitted.has_value()) PlanTransaction(core_, &step).Release(*admitted, plan);
}

Page<PlanView> Plans::ListPlans(const Caller& caller, const PageRequest& page) const {
  PageBuilder<PlanView> builder(page);
  plans_.ForEachAfter(page.after, [&](const Plan& plan) {
    if (!caller.sees_all() && plan.layout->tenant != caller.tenant) return true;
    if (builder.Full()) return false;
    builder.Add(plan.number, plan.layout->devices.size() + plan.layout->tiles.size(), PlanTransaction::View(plan));
    return true;
  });
  return builder.Build();
}

absl::StatusOr<PlanView> Plans::GetPlan(const Caller& caller, PlanId plan) const {
  const Plan* const found = plans_.Find(plan);
  if (found == nullptr || (!caller.sees_all() && found->layout->tenant != caller.tenant)) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "plan"}, {"id", plan.value()}});
  }
  return PlanTransaction::View(*found);
}

void Plans::EndAllOf(StepContext& step, SessionId session) {
  for (const Plan* const plan : plans_.OfSession(session)) {
    core_.leases.RecordEnd(step.now, core_.leases.LeaseOf(*plan), LeaseEnd::kSessionEnd);
    plans_.Erase(*plan);
  }
}

bool Plans::WriteRecord(const RecordKey& key, ArchiveWriter& archive) const {
  const Plan* const plan = plans_.Find(PlanId(key.id));
  if (plan == nullptr) return false;
  archive(*plan);
  return true;
}

void Plans::ReadRecord(const RecordKey& key, ArchiveReader& archive) {
  Plan plan;
  archive(plan);
  if (archive.failed() || plan.id() != PlanId(key.id)) return archive.Fail();
  const Session* const session = core_.sessions.table().Find(plan.session());
  if (session == nullptr) return archive.Fail();
  plan.claimant = session->claimant();
  if (!plans_.Restore(std::move(plan))) archive.Fail();
}

bool Undo(const UndoStep& undo, const PlanResult& result) {
  // A re-plan stays: the resources of the earlier revision may be gone.
  const Plan* const plan = result.from_revision == 0 ? undo.core.plans.table().Find(result.layout->id) : nullptr;
  if (plan == nullptr) return false;
  PlanTransaction(undo.core, &undo.step).End(*plan, LeaseEnd::kForgotten);
  return true;
}

}  // namespace berth::core
