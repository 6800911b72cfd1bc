#include "daemon/core/memory/budgets.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include <berth/error.h>

#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {

ByteBudget& Budgets::SessionBudget(SessionId session, uint32_t device) {
  const auto [budget, fresh] = core_.sessions.BudgetsOf(session).try_emplace(device, core_.config.session_budget);
  return fresh ? Enlist(budget->second, session, device) : budget->second;
}

ByteBudget& Budgets::TenantBudget(const Account& account, uint32_t device) {
  const auto [budget, fresh] = tenants_[account].budgets.try_emplace(device, core_.config.tenant_budget);
  return fresh ? Enlist(budget->second, account, device) : budget->second;
}

ByteBudget& Budgets::Enlist(ByteBudget& budget, const BudgetOwner& of, uint32_t device) {
  core_.journal.Touch(RecordKind::kMemoryCounters);
  budgets_.emplace(++last_budget_, Place{.of = of, .device = device});
  budget.Enlist(last_budget_, &core_.journal, core_.byte_queue.changes());
  return budget;
}

void Budgets::Delist(const std::map<uint32_t, ByteBudget>& budgets) {
  for (const auto& [device, budget] : budgets) {
    budgets_.erase(budget.number());
    core_.byte_queue.changes()->Forget(&budget);
    core_.journal.Touch(RecordKind::kBudget, budget.number());
  }
}

std::array<LayerBudget, 3> Budgets::LayersOf(uint32_t device, SessionId session, const Account& account) {
  return {LayerBudget{Layer::kSession, &SessionBudget(session, device)},
          LayerBudget{Layer::kTenant, &TenantBudget(account, device)},
          LayerBudget{Layer::kDevice, &core_.devices.At(device).account}};
}

void Budgets::ForEachBudget(const Block& block, absl::FunctionRef<void(ByteBudget&)> visit) {
  visit(core_.devices.At(block.device).account);
  if (block.charged_session) visit(SessionBudget(block.charged_session, block.device));
  for (const Tenant& tenant : block.charged_tenants) visit(TenantBudget(tenant, block.device));
}

void Budgets::ChargeTo(StepContext& step, Block& block, SessionId session, std::vector<Tenant> tenants) {
  const auto discharge = [&](ByteBudget& budget) {
    step.MarkCapacityChanged();
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

void Budgets::ChargeImporters(StepContext& step, Block& block) {
  // Each account is charged once, however many of its tenants map the block.
  std::map<Account, Tenant> of_account;
  for (const auto& [id, import] : block.imports) of_account.try_emplace(import.tenant, import.tenant);
  std::vector<Tenant> tenants;
  for (const auto& [account, tenant] : of_account) tenants.push_back(tenant);
  // Bytes that return to a reservation stay charged to its session: otherwise others could take its capacity first.
  const SessionId session = block.drawn_from ? block.charged_session : SessionId();
  ChargeTo(step, block, session, std::move(tenants));
}

void Budgets::EraseIfIdle(const Account& account) {
  const auto found = tenants_.find(account);
  if (found == tenants_.end() || found->second.sessions > 0 || found->second.limited) return;
  for (const auto& [device, budget] : found->second.budgets) {
    if (budget.charged().count() > 0) return;
  }
  Delist(found->second.budgets);
  tenants_.erase(found);
}

absl::StatusOr<std::vector<BudgetView>> Budgets::ChangeBudget(StepContext& step, const Caller* caller,
                                                              const SetBudgetRequest& request) {
  if (caller != nullptr) BERTH_RETURN_IF_ERROR(core_.sessions.Authenticate(*caller).status());
  std::vector<Device*> devices;
  if (request.device.has_value()) {
    BERTH_ASSIGN_OR_RETURN(Device* const device, core_.devices.FindDevice(*request.device, ""));
    devices.push_back(device);
  } else {
    for (auto& [ordinal, device] : core_.devices.all()) devices.push_back(&device);
  }
  for (const Device* const device : devices) BERTH_RETURN_IF_ERROR(CheckLimit(*device, request));
  BERTH_RETURN_IF_ERROR(CheckMaySet(caller, request));
  std::vector<BudgetView> views;
  const bool by_hand = request.limit.has_value();
  const auto* const account = std::get_if<Account>(&request.of);
  for (Device* const device : devices) {
    const uint32_t ordinal = device->config.ordinal;
    if (account != nullptr) {
      TenantBudget(*account, ordinal).set_limit(by_hand ? request.limit : core_.config.tenant_budget, by_hand);
    } else if (const auto* const session = std::get_if<SessionId>(&request.of)) {
      SessionBudget(*session, ordinal).set_limit(by_hand ? request.limit : core_.config.session_budget, by_hand);
    } else {
      SetDeviceLimit(step, *device, request.limit.value_or(device->configured_budget), by_hand);
    }
  }
  if (account != nullptr) {
    TenantAccount& holdings = tenants_[*account];
    holdings.limited = std::any_of(holdings.budgets.begin(), holdings.budgets.end(),
                                   [](const auto& budget) { return budget.second.limit_by_hand(); });
  }
  step.MarkCapacityChanged();
  for (const Device* const device : devices) {
    views.push_back(ViewBudget(request.of, device->config.ordinal));
  }
  if (account != nullptr) EraseIfIdle(*account);
  return views;
}

void Budgets::ConfigureBudget(StepContext& step, uint32_t device, Bytes limit) {
  const auto found = core_.devices.all().find(device);
  if (found == core_.devices.all().end()) return;
  found->second.configured_budget = limit;
  SetDeviceLimit(step, found->second, limit, /*by_hand=*/false);
  step.MarkCapacityChanged();
}

void Budgets::SetDeviceLimit(StepContext& step, Device& device, Bytes limit, bool by_hand) {
  device.account.set_limit(limit, by_hand);
  core_.devices.MarkDevicesChanged(step);
  // Memory that no client holds is released first.
  core_.allocations.Trim(step, device, Bytes(0));
}

absl::Status Budgets::CheckMaySet(const Caller* caller, const SetBudgetRequest& request) {
  const auto* const session = std::get_if<SessionId>(&request.of);
  if (caller != nullptr && !caller->admin) {
    const bool own = session != nullptr && *session == caller->credentials.session;
    bool lowers = own && request.limit.has_value();
    for (const auto& [ordinal, device] : core_.devices.all()) {
      if (!lowers || (request.device.has_value() && *request.device != ordinal)) continue;
      const std::optional<Bytes>& limit = SessionBudget(*session, ordinal).limit();
      lowers = !limit.has_value() || *request.limit <= *limit;
    }
    if (!lowers) {
      return Refuse(Reason::kAdminOnly, "{verb} needs admin.sock, except to lower the own session's budget",
                    {{"verb", "SetBudget"}});
    }
  }
  if (session != nullptr && core_.sessions.table().Find(*session) == nullptr) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "session"}, {"id", session->value()}});
  }
  const auto* const account = std::get_if<Account>(&request.of);
  if (account == nullptr || tenants_.contains(*account)) return absl::OkStatus();
  uint64_t absent = 0;
  for (const auto& [known, holdings] : tenants_) absent += holdings.sessions == 0 ? 1 : 0;
  const uint64_t limit = core_.config.limits.detached_tenants;
  if (absent < limit) return absl::OkStatus();
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                {{"what", "absent_tenants"}, {"current", absent}, {"limit", limit}});
}

absl::Status Budgets::CheckLimit(const Device& device, const SetBudgetRequest& request) const {
  if (!request.limit.has_value() || *request.limit <= device.config.total) return absl::OkStatus();
  return Refuse(Reason::kOutOfRange, "{field} is {value}, the most is {limit}",
                {{"field", "limit_bytes"}, {"value", request.limit->count()}, {"limit", device.config.total.count()}});
}

uint64_t Budgets::CountSessionsOf(const Account& account) const {
  const auto known = tenants_.find(account);
  return known == tenants_.end() ? 0 : known->second.sessions;
}

void Budgets::RemoveSession(const Account& account) {
  --tenants_.at(account).sessions;
  EraseIfIdle(account);
}

void Budgets::AddDevice(Device& device) {
  const uint32_t ordinal = device.config.ordinal;
  device.account.Enlist(ordinal + 1, &core_.journal, core_.byte_queue.changes());
  budgets_.emplace(ordinal + 1, Place{.of = {}, .device = ordinal});
}

bool Budgets::RestoreLastNumber(uint64_t number) {
  last_budget_ = number;
  return number >= kMaxDeviceOrdinals;
}

}  // namespace berth::core
