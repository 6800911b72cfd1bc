// Budgets: a block's bytes are charged to its device, and within that to whose they are: a session and its tenant while
// it is theirs, from its freeing or its owner's end on the tenants that still map it.

#include <algorithm>
#include <set>
#include <utility>

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {

ByteBudget& Core::Impl::SessionBudget(SessionId session, uint32_t device) {
  const auto [budget, fresh] = sessions_.BudgetsOf(session).try_emplace(device, config_.session_budget);
  return fresh ? Enlist(budget->second, session, device) : budget->second;
}

ByteBudget& Core::Impl::TenantBudget(const Tenant& tenant, uint32_t device) {
  const auto [budget, fresh] = tenants_[tenant].budgets.try_emplace(device, config_.tenant_budget);
  return fresh ? Enlist(budget->second, tenant, device) : budget->second;
}

ByteBudget& Core::Impl::Enlist(ByteBudget& budget, const BudgetOwner& of, uint32_t device) {
  journal_.Touch(RowKind::kMemoryCounters);
  budgets_.emplace(++last_budget_, BudgetPlace{.of = of, .device = device});
  budget.Enlist(last_budget_, &journal_);
  return budget;
}

void Core::Impl::Delist(const std::map<uint32_t, ByteBudget>& budgets) {
  for (const auto& [device, budget] : budgets) {
    budgets_.erase(budget.number());
    journal_.Touch(RowKind::kBudget, budget.number());
  }
}

std::array<LayerBudget, 3> Core::Impl::LayersOf(uint32_t device, SessionId session, const Tenant& tenant) {
  return {LayerBudget{Layer::kSession, &SessionBudget(session, device)},
          LayerBudget{Layer::kTenant, &TenantBudget(tenant, device)},
          LayerBudget{Layer::kDevice, &devices_.at(device).account}};
}

void Core::Impl::ForEachBudget(const Block& block, absl::FunctionRef<void(ByteBudget&)> visit) {
  visit(devices_.at(block.device).account);
  if (block.charged_session) visit(SessionBudget(block.charged_session, block.device));
  for (const Tenant& tenant : block.charged_tenants) visit(TenantBudget(tenant, block.device));
}

void Core::Impl::ChargeTo(Block& block, SessionId session, std::vector<Tenant> tenants) {
  const auto discharge = [&](ByteBudget& budget) {
    NoteRoom();
    if (block.stuck) budget.UnmarkStuck(block.bytes);
    if (block.busy) budget.UnmarkBusy(block.bytes);
    budget.Move(block.phase, BlockPhase::kGone, block.bytes);
  };
  const auto charge = [&](ByteBudget& budget) {
    budget.Add(block.phase, block.bytes);
    if (block.stuck) budget.MarkStuck(block.bytes);
    if (block.busy) budget.MarkBusy(block.bytes);
  };
  if (block.charged_session != session) {
    if (block.charged_session) discharge(SessionBudget(block.charged_session, block.device));
    if (session) charge(SessionBudget(session, block.device));
    block.charged_session = session;
  }
  if (block.charged_tenants != tenants) {
    const std::vector<Tenant> before = std::exchange(block.charged_tenants, std::move(tenants));
    for (const Tenant& tenant : before) discharge(TenantBudget(tenant, block.device));
    for (const Tenant& tenant : block.charged_tenants) charge(TenantBudget(tenant, block.device));
    for (const Tenant& tenant : before) EraseIfIdle(tenant);
  }
}

void Core::Impl::ChargeImporters(Block& block) {
  std::set<Tenant> tenants;
  for (const auto& [id, import] : block.imports) tenants.insert(import.tenant);
  // What goes back to a reservation stays its session's: else others take its room in between.
  const SessionId session = block.drawn_from ? block.charged_session : SessionId();
  ChargeTo(block, session, {tenants.begin(), tenants.end()});
}

void Core::Impl::EraseIfIdle(const Tenant& tenant) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end() || found->second.sessions > 0 || found->second.limited) return;
  for (const auto& [device, budget] : found->second.budgets) {
    if (budget.charged().count() > 0) return;
  }
  Delist(found->second.budgets);
  tenants_.erase(found);
}

absl::StatusOr<std::vector<BudgetView>> Core::SetBudget(absl::Time now, const Caller& caller,
                                                        const SetBudgetRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_RETURN_IF_ERROR(impl_->Authenticate(caller).status());
  std::vector<Device*> devices;
  if (request.device.has_value()) {
    BERTH_ASSIGN_OR_RETURN(Device* const device, impl_->FindDevice(*request.device, ""));
    devices.push_back(device);
  } else {
    for (auto& [ordinal, device] : impl_->devices_) devices.push_back(&device);
  }
  for (const Device* const device : devices) BERTH_RETURN_IF_ERROR(impl_->CheckLimit(*device, request));
  BERTH_RETURN_IF_ERROR(impl_->CheckMaySet(caller, request));
  std::vector<BudgetView> views;
  const bool by_hand = request.limit.has_value();
  const auto* const tenant = std::get_if<Tenant>(&request.of);
  for (Device* const device : devices) {
    const uint32_t ordinal = device->config.ordinal;
    if (tenant != nullptr) {
      impl_->TenantBudget(*tenant, ordinal)
          .set_limit(by_hand ? request.limit : impl_->config_.tenant_budget, by_hand);
    } else if (const auto* const session = std::get_if<SessionId>(&request.of)) {
      impl_->SessionBudget(*session, ordinal)
          .set_limit(by_hand ? request.limit : impl_->config_.session_budget, by_hand);
    } else {
      impl_->SetDeviceLimit(step, *device, *request.limit, by_hand);
    }
  }
  if (tenant != nullptr) {
    TenantAccount& account = impl_->tenants_[*tenant];
    account.limited = std::any_of(account.budgets.begin(), account.budgets.end(),
                                  [](const auto& budget) { return budget.second.limit_by_hand(); });
  }
  impl_->NoteRoom();
  for (const Device* const device : devices) {
    views.push_back(impl_->ViewBudget(request.of, device->config.ordinal));
  }
  if (tenant != nullptr) impl_->EraseIfIdle(*tenant);
  return views;
}

void Core::ConfigureBudget(absl::Time now, uint32_t device, Bytes limit, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(device);
  if (found == impl_->devices_.end()) return;
  impl_->SetDeviceLimit(step, found->second, limit, /*by_hand=*/false);
  impl_->NoteRoom();
}

void Core::Impl::SetDeviceLimit(const Step& step, Device& device, Bytes limit, bool by_hand) {
  device.account.set_limit(limit, by_hand);
  Emit(step, DevicesChanged());
  // What nobody holds goes first.
  Trim(step, device, Bytes(0));
}

absl::Status Core::Impl::CheckMaySet(const Caller& caller, const SetBudgetRequest& request) {
  const auto* const session = std::get_if<SessionId>(&request.of);
  const bool own = session != nullptr && *session == caller.credentials.session;
  if (!caller.admin) {
    bool lowers = own && request.limit.has_value();
    for (const auto& [ordinal, device] : devices_) {
      if (!lowers || (request.device.has_value() && *request.device != ordinal)) continue;
      const std::optional<Bytes>& limit = SessionBudget(*session, ordinal).limit();
      lowers = !limit.has_value() || *request.limit <= *limit;
    }
    if (!lowers) {
      return Refuse(Reason::kAdminOnly,
                    "{verb}, but for a session that lowers its own, is served on admin.sock only",
                    {{"verb", "SetBudget"}});
    }
  }
  if (session != nullptr && sessions_.Find(*session) == nullptr) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "session"}, {"id", session->value()}});
  }
  const auto* const tenant = std::get_if<Tenant>(&request.of);
  if (tenant == nullptr || tenants_.contains(*tenant)) return absl::OkStatus();
  uint64_t absent = 0;
  for (const auto& [known, account] : tenants_) absent += account.sessions == 0 ? 1 : 0;
  const uint64_t limit = config_.limits.absent_tenants;
  if (absent < limit) return absl::OkStatus();
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                {{"what", "absent_tenants"}, {"current", absent}, {"limit", limit}});
}

absl::Status Core::Impl::CheckLimit(const Device& device, const SetBudgetRequest& request) const {
  if (!request.limit.has_value()) {
    if (!std::holds_alternative<std::monostate>(request.of)) return absl::OkStatus();
    return Refuse(Reason::kInvalidField, "{field}: {value}; a device's budget is {limit}",
                  {{"field", "limit_bytes"}, {"value", "none"}, {"limit", "at most what the device has"}});
  }
  if (*request.limit <= device.config.total) return absl::OkStatus();
  return Refuse(
      Reason::kOutOfRange, "{field} is {value}, the most is {limit}",
      {{"field", "limit_bytes"}, {"value", request.limit->count()}, {"limit", device.config.total.count()}});
}

BudgetView Core::Impl::ViewBudget(const BudgetOwner& of, uint32_t device) {
  if (const auto* const tenant = std::get_if<Tenant>(&of)) {
    BudgetView view = ViewBudget(Layer::kTenant, device, TenantBudget(*tenant, device));
    view.tenant = *tenant;
    return view;
  }
  if (const auto* const session = std::get_if<SessionId>(&of)) {
    BudgetView view = ViewBudget(Layer::kSession, device, SessionBudget(*session, device));
    view.tenant = sessions_.Find(*session)->tenant;
    view.session = *session;
    return view;
  }
  return ViewBudget(Layer::kDevice, device, devices_.at(device).account);
}

BudgetView Core::Impl::ViewBudget(Layer layer, uint32_t device, const ByteBudget& budget) {
  return {.layer = layer,
          .device = device,
          .limit = budget.limit(),
          .bytes = budget.counts(),
          .peak = budget.peak(),
          .allocations = budget.allocations(),
          .refusals = budget.refusals(),
          .failed_releases = budget.failed_releases(),
          .stuck = budget.stuck(),
          .busy = budget.busy()};
}

}  // namespace berth::core
