// Permits.

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"
#include "daemon/core/fingerprint.h"

namespace berth::core {
namespace {

absl::Status NoPool(absl::string_view name) {
  return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "permit pool"}, {"id", name}});
}

}  // namespace

void Core::Acquire(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const AcquireRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request), request.deadline);
  if (!admitted.has_value()) return;
  PermitPool* const pool = impl_->FindPool(request.pool);
  if (pool == nullptr) return impl_->Answer(step, admitted->request, NoPool(request.pool));
  const Asker asker{.session = admitted->session.id,
                    .tenant = admitted->session.tenant,
                    .process = admitted->channel.process};
  impl_->pending_.at(admitted->request).place = pool;
  AcquireOutcomes outcomes;
  pool->Acquire(now, admitted->request, asker, request, &outcomes);
  impl_->AnswerAll(step, std::move(outcomes));
}

void Core::Release(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   AcquisitionId acquisition, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(acquisition));
  if (!admitted.has_value()) return;
  const absl::StatusOr<ReleaseResult> result =
      impl_->ReleaseAcquisition(step, admitted->session.id, acquisition);
  if (result.ok()) {
    impl_->Answer(step, admitted->request, Response(*result));
  } else {
    impl_->Answer(step, admitted->request, result.status());
  }
}

absl::StatusOr<PoolView> Core::SetPoolCap(absl::Time now, absl::string_view pool, uint64_t cap,
                                          Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  PermitPool* const found = impl_->FindPool(pool);
  if (found == nullptr) return NoPool(pool);
  if (cap == 0) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "cap"}, {"value", cap}, {"limit", 1}});
  }
  AcquireOutcomes outcomes;
  found->SetCap(now, cap, &outcomes);
  impl_->AnswerAll(step, std::move(outcomes));
  return found->View();
}

absl::StatusOr<PoolView> Core::GetPool(absl::string_view pool) const {
  const PermitPool* const found = impl_->FindPool(pool);
  if (found == nullptr) return NoPool(pool);
  return found->View();
}

PermitPool* Core::Impl::FindPool(absl::string_view name) {
  const auto found = pools_.find(std::string(name));
  return found == pools_.end() ? nullptr : &found->second;
}

absl::StatusOr<ReleaseResult> Core::Impl::ReleaseAcquisition(const Step& step, SessionId session,
                                                             AcquisitionId acquisition) {
  for (auto& [name, pool] : pools_) {
    if (!pool.Holds(session, acquisition)) continue;
    AcquireOutcomes outcomes;
    const ReleaseResult result = pool.Release(step.now, acquisition, &outcomes);
    AnswerAll(step, std::move(outcomes));
    return result;
  }
  return Refuse(Reason::kNotFound, "no {kind} {id} in this session",
                {{"kind", "acquisition"}, {"id", acquisition.value()}});
}

}  // namespace berth::core
