// Plans: as they are asked for and looked at. What they come to is PlanRun's.

#include <utility>

#include "common/error.h"
#include "daemon/core/core_impl.h"
#include "daemon/core/fingerprint.h"

namespace berth::core {

void Core::MakePlan(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                    const PlanRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  // Only permits are waited for until then.
  const absl::Time deadline = request.pool.empty() ? absl::InfiniteFuture() : request.deadline;
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request), deadline);
  if (admitted.has_value()) PlanRun(impl_.get(), &step).Make(*admitted, request);
}

void Core::Replan(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                  const ReplanRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (admitted.has_value()) PlanRun(impl_.get(), &step).Replan(*admitted, request);
}

void Core::ReleasePlan(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag, PlanId plan,
                       Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(plan));
  if (admitted.has_value()) PlanRun(impl_.get(), &step).Release(*admitted, plan);
}

Page<PlanView> Core::ListPlans(const Caller& caller, const PageRequest& page) const {
  PageBuilder<PlanView> builder(page);
  impl_->plans_.ForEachAfter(page.after, [&](const Plan& plan) {
    if (!caller.sees_all() && plan.layout->tenant != caller.tenant) return true;
    if (builder.Full()) return false;
    builder.Add(plan.number, plan.layout->devices.size() + plan.layout->tiles.size(), PlanRun::View(plan));
    return true;
  });
  return builder.Build();
}

absl::StatusOr<PlanView> Core::GetPlan(const Caller& caller, PlanId plan) const {
  const Plan* const found = impl_->plans_.Find(plan);
  if (found == nullptr || (!caller.sees_all() && found->layout->tenant != caller.tenant)) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "plan"}, {"id", plan.value()}});
  }
  return PlanRun::View(*found);
}

}  // namespace berth::core
