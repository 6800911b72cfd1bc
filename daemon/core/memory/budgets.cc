#include "daemon/core/memory/budgets.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <berth/error.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/types/invariant.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {
namespace {

// One budget and its owner.
struct ListedBudget {
  Layer layer = Layer::kDevice;
  uint32_t device = 0;
  const ByteBudget* budget = nullptr;
  // Empty for the device's own budget.
  Tenant tenant = {};
  SessionId session = {};
};

}  // namespace

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

// ---- Views, ledger records and the check of budgets ----------------------------------------------------------

Account Budgets::AccountNamed(const Account& named) const {
  for (const Session* const session : core_.sessions.table().List()) {
    if (session->tenant == TenantNamedAs(named)) return session->tenant;
  }
  return named;
}

BudgetView Budgets::ViewBudget(const BudgetOwner& of, uint32_t device) {
  if (const auto* const account = std::get_if<Account>(&of)) {
    BudgetView view = ViewBudget(Layer::kTenant, device, TenantBudget(*account, device));
    view.tenant = TenantNamedAs(*account);
    return view;
  }
  if (const auto* const session = std::get_if<SessionId>(&of)) {
    BudgetView view = ViewBudget(Layer::kSession, device, SessionBudget(*session, device));
    view.tenant = core_.sessions.table().Find(*session)->tenant;
    view.session = *session;
    return view;
  }
  return ViewBudget(Layer::kDevice, device, core_.devices.At(device).account);
}

BudgetView Budgets::ViewBudget(Layer layer, uint32_t device, const ByteBudget& budget) {
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

Page<BudgetView> Budgets::ListBudgets(const Caller& caller, const PageRequest& page) const {
  std::map<uint64_t, ListedBudget> rows;
  const auto collect = [&](ListedBudget row) {
    if (row.budget->number() > page.after) rows.emplace(row.budget->number(), row);
  };
  for (const auto& [ordinal, device] : core_.devices.all()) {
    collect({.layer = Layer::kDevice, .device = ordinal, .budget = &device.account});
  }
  for (const auto& [account, holdings] : tenants_) {
    if (!caller.sees_all() && account != caller.tenant.account()) continue;
    for (const auto& [ordinal, budget] : holdings.budgets) {
      collect({.layer = Layer::kTenant, .device = ordinal, .budget = &budget, .tenant = TenantNamedAs(account)});
    }
  }
  for (const Session* const session : core_.sessions.table().List()) {
    if (!caller.sees_all() && session->tenant != caller.tenant) continue;
    for (const auto& [ordinal, budget] : session->budgets) {
      collect({.layer = Layer::kSession,
               .device = ordinal,
               .budget = &budget,
               .tenant = session->tenant,
               .session = session->id});
    }
  }
  PageBuilder<BudgetView> builder(page);
  for (const auto& [number, row] : rows) {
    if (builder.Full()) break;
    BudgetView view = ViewBudget(row.layer, row.device, *row.budget);
    view.tenant = row.tenant;
    view.session = row.session;
    builder.Add(number, 0, std::move(view));
  }
  return builder.Build();
}

bool Budgets::WriteBudget(uint64_t number, ArchiveWriter& archive) const {
  const auto found = budgets_.find(number);
  if (found == budgets_.end()) return false;
  const auto& [of, device] = found->second;
  const ByteBudget* budget = nullptr;
  if (const auto* const account = std::get_if<Account>(&of)) {
    budget = &tenants_.at(*account).budgets.at(device);
  } else if (const auto* const session = std::get_if<SessionId>(&of)) {
    budget = &core_.sessions.table().Find(*session)->budgets.at(device);
  } else {
    budget = &core_.devices.At(device).account;
  }
  archive(of, device, budget->persisted());
  return true;
}

void Budgets::ReadBudget(uint64_t number, ArchiveReader& archive) {
  Place place;
  ByteBudget::Persisted persisted;
  archive(place.of, place.device, persisted);
  const auto* const account = std::get_if<Account>(&place.of);
  const auto* const session = std::get_if<SessionId>(&place.of);
  const bool of_device = account == nullptr && session == nullptr;
  if (!archive.failed() && core_.devices.HasDeparted(place.device)) {
    // Erases the record.
    return core_.journal.Touch(RecordKind::kBudget, number);
  }
  if (archive.failed() || !core_.devices.Has(place.device) || number > last_budget_ ||
      of_device != budgets_.contains(number) ||
      (session != nullptr && core_.sessions.table().Find(*session) == nullptr)) {
    return archive.Fail();
  }
  if (of_device) return core_.devices.At(place.device).account.Restore(persisted);
  ByteBudget& budget =
      account != nullptr
          ? tenants_[*account].budgets.try_emplace(place.device, core_.config.tenant_budget).first->second
          : core_.sessions.BudgetsOf(*session).try_emplace(place.device, core_.config.session_budget).first->second;
  budget.Enlist(number, &core_.journal, core_.byte_queue.changes());
  budget.Restore(persisted);
  if (account != nullptr && persisted.by_hand) tenants_.at(*account).limited = true;
  budgets_.emplace(number, std::move(place));
}

absl::Status Budgets::CheckBudgets() const {
  using Key = std::tuple<Layer, uint32_t, Account, SessionId>;
  absl::flat_hash_map<Key, ByteBudget> sums;
  const auto charge = [&](const Block& block, const Key& key) {
    ByteBudget& sum = sums[key];
    sum.Add(block.phase, block.bytes);
    if (block.stuck) sum.MarkStuck(block.bytes);
    if (block.busy) sum.MarkBusy(block.bytes);
  };
  core_.blocks.table().ForEach([&](const Block& block) {
    charge(block, {Layer::kDevice, block.device, {}, {}});
    if (block.charged_session) charge(block, {Layer::kSession, block.device, {}, block.charged_session});
    for (const Tenant& tenant : block.charged_tenants) charge(block, {Layer::kTenant, block.device, tenant, {}});
  });
  const auto claim = [&](SessionId session, const Tenant& tenant, uint32_t device, Bytes bytes) {
    sums[{Layer::kDevice, device, {}, {}}].Claim(bytes);
    sums[{Layer::kTenant, device, tenant, {}}].Claim(bytes);
    sums[{Layer::kSession, device, {}, session}].Claim(bytes);
  };
  for (const auto& [ordinal, device] : core_.devices.all()) {
    sums[{Layer::kDevice, ordinal, {}, {}}].set_daemon(device.account.counts().daemon);
  }
  core_.reservations.table().ForEach([&](const Reservation& reservation) {
    for (const auto& [device, part] : reservation.claims) {
      claim(reservation.session, reservation.tenant, device, part.left);
    }
  });
  core_.byte_queue.table().ForEach([&](const Waiting& waiting) {
    if (!waiting.drawn_from) return;
    claim(waiting.session, waiting.tenant, waiting.asks.front().device, waiting.asks.front().bytes);
  });
  std::vector<std::pair<Key, const ByteBudget*>> known;
  for (const auto& [ordinal, device] : core_.devices.all()) {
    known.push_back({{Layer::kDevice, ordinal, {}, {}}, &device.account});
    for (const auto& [tenant, account] : tenants_) {
      const auto budget = account.budgets.find(ordinal);
      if (budget != account.budgets.end()) known.push_back({{Layer::kTenant, ordinal, tenant, {}}, &budget->second});
    }
    for (const Session* const session : core_.sessions.table().List()) {
      const auto budget = session->budgets.find(ordinal);
      if (budget != session->budgets.end()) {
        known.push_back({{Layer::kSession, ordinal, {}, session->id}, &budget->second});
      }
    }
  }
  for (const auto& [key, budget] : known) {
    const ByteBudget& sum = sums[key];
    if (sum.counts() != budget->counts() || sum.coming() != budget->coming() || sum.stuck() != budget->stuck() ||
        sum.busy() != budget->busy()) {
      return Broken(absl::StrCat("device ", std::get<uint32_t>(key), ": the ", LayerName(std::get<Layer>(key)),
                                 "'s account is not the sum of its charges"));
    }
  }
  return sums.size() <= known.size() ? absl::OkStatus() : Broken("a charge has no account");
}

}  // namespace berth::core
