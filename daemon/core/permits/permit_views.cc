// Read-only views of pools, permits and waiters, and the check of permits.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/core/managers.h"
#include "daemon/core/permits/permit_transaction.h"
#include "daemon/core/permits/permits.h"

namespace berth::core {
namespace {

absl::Status NoPool(absl::string_view name) {
  return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "permit pool"}, {"id", name}});
}

absl::Status Broken(const absl::AlphaNum& what) { return absl::InternalError(what.Piece()); }

}  // namespace

absl::StatusOr<WaitView> Permits::ExplainWait(const Caller& caller, uint64_t waiter) {
  PermitTransaction transaction(core_, nullptr);
  std::optional<WaitView> elsewhere;
  for (const auto& [name, pool] : pools_) {
    std::optional<WaitView> view = pool.Explain(waiter, caller.sees_all() ? nullptr : &caller.tenant, &transaction);
    if (!view.has_value()) continue;
    if (view->cause == WaitCause::kDevice && view->waiter.gang.empty()) {
      view->lacking = core_.devices.placement().Lacking(
          {.constraint = view->waiter.device, .units = view->waiter.units, .shares = &pool.shares()});
    }
    // For a gang, reports the first of its pools that lacks something.
    if (view->cause != WaitCause::kElsewhere) return *std::move(view);
    if (!elsewhere.has_value()) elsewhere = std::move(view);
  }
  if (elsewhere.has_value()) {
    for (const auto& [request, gang] : gangs_.gangs()) {
      if (gang.number != waiter) continue;
      elsewhere->cause = transaction.CauseOf(gang);
      const bool all_serve = std::all_of(gang.what.members.begin(), gang.what.members.end(), [&](const auto& member) {
        return member.device.pick == DevicePick::kNone || core_.devices.placement().AnyServes(member.device);
      });
      if (!all_serve) elsewhere->estimate = absl::InfiniteDuration();
    }
    return *std::move(elsewhere);
  }
  return Refuse(Reason::kNotFound, "no {kind} {id}; its request may have been granted or cancelled",
                {{"kind", "waiter"}, {"id", waiter}});
}

std::optional<uint64_t> Permits::FindWaiter(const Caller& caller, uint64_t sequence) const {
  const auto pending = core_.requests.pending().find({.channel = caller.credentials.channel, .sequence = sequence});
  if (pending == core_.requests.pending().end()) return std::nullopt;
  const WaitTicket& ticket = pending->second.ticket;
  return ticket.pool == nullptr || ticket.number == 0 ? std::nullopt : std::optional(ticket.number);
}

uint64_t Permits::CountJudged() const {
  uint64_t judged = 0;
  for (const auto& [name, pool] : pools_) judged += pool.judged();
  return judged;
}

absl::StatusOr<PoolView> Permits::GetPool(absl::string_view pool) {
  const PermitPool* const found = FindPool(pool);
  if (found == nullptr) return NoPool(pool);
  return found->View();
}

Page<PoolView> Permits::ListPools(const PageRequest& page) const {
  PageBuilder<PoolView> builder(page);
  // The set of pools is fixed, so a pool's position is its key.
  uint64_t place = 0;
  for (const auto& [name, pool] : pools_) {
    if (++place <= page.after) continue;
    if (builder.Full()) break;
    builder.Add(place, 0, pool.View());
  }
  return builder.Build();
}

Page<PermitView> Permits::ListPermits(const Caller& caller, absl::string_view pool, const PageRequest& page) const {
  const auto visible = [&](SessionId session) {
    return caller.sees_all() || core_.sessions.table().Find(session)->tenant == caller.tenant;
  };
  // Pools are visited by name. Ids rise with the time of the grant, so the first permits of each pool include the first
  // overall.
  const uint64_t most = page.rows == UINT64_MAX ? page.rows : page.rows + 1;
  std::vector<PermitView> found;
  for (const auto& [name, one] : pools_) {
    if (pool.empty() || pool == name) one.AddPermits(PermitId(page.after), most, visible, &found);
  }
  std::sort(found.begin(), found.end(), [](const PermitView& a, const PermitView& b) { return a.id < b.id; });
  PageBuilder<PermitView> builder(page);
  for (PermitView& view : found) {
    if (builder.Full()) break;
    const uint64_t id = view.id.value();
    core_.devices.SetReadings(&view);
    builder.Add(id, 0, std::move(view));
  }
  return builder.Build();
}

std::vector<WaiterView> Permits::ListWaiters(const Caller& caller, absl::string_view pool, uint64_t most) const {
  const auto visible = [&](SessionId session) {
    return caller.sees_all() || core_.sessions.table().Find(session)->tenant == caller.tenant;
  };
  std::vector<WaiterView> views;
  for (const auto& [name, one] : pools_) {
    if (pool.empty() || pool == name) one.AddWaiters(most, visible, &views);
  }
  return views;
}

absl::Status Permits::CheckPermits() const {
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> placed;
  for (const auto& [ordinal, device] : core_.devices.all()) placed[ordinal];
  for (const auto& [name, pool] : pools_) {
    const auto all = [](SessionId) { return true; };
    std::vector<PermitView> permits;
    pool.AddPermits(PermitId(), UINT64_MAX, all, &permits);
    for (const PermitView& permit : permits) {
      if (core_.sessions.table().Find(permit.session) == nullptr) return Broken("an ended session holds a permit");
      if (!permit.device.has_value()) continue;
      auto& [permits_there, declared_there] = placed[permit.device->ordinal];
      ++permits_there;
      declared_there += permit.declared.count();
    }
    std::vector<WaiterView> waiters;
    pool.AddWaiters(UINT64_MAX, all, &waiters);
    for (const WaiterView& waiter : waiters) {
      const Session* const session = core_.sessions.table().Find(waiter.session);
      if (session == nullptr || session->state != SessionState::kActive) {
        return Broken("an ended session has a waiter");
      }
    }
  }
  for (const auto& [ordinal, sums] : placed) {
    if (sums.first != core_.devices.placement().PermitsOn(ordinal) ||
        sums.second != core_.devices.placement().DeclaredOn(ordinal).count()) {
      return Broken(absl::StrCat("device ", ordinal, ": the bytes declared by permits are miscounted"));
    }
  }
  return absl::OkStatus();
}

}  // namespace berth::core
