// Views, ledger records and the check of budgets.

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/managers.h"
#include "daemon/core/memory/budgets.h"

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

absl::Status Broken(const absl::AlphaNum& what) { return absl::InternalError(what.Piece()); }

}  // namespace

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
