// Looking.

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

using UsageKey = std::tuple<uint32_t, Tenant, SessionId, std::string>;

void AddTo(Bytes bytes, Bytes* sum) { *sum = Bytes(sum->count() + bytes.count()); }

void AddTo(BlockState state, Bytes bytes, ByteCounts* counts) {
  switch (state) {
    case BlockState::kReserved:
      return AddTo(bytes, &counts->reserved);
    case BlockState::kLive:
      return AddTo(bytes, &counts->live);
    case BlockState::kRetired:
      return AddTo(bytes, &counts->retired);
    case BlockState::kQuarantined:
      return AddTo(bytes, &counts->quarantined);
  }
}

// One account, and whose it is.
struct BudgetRow {
  Layer layer = Layer::kDevice;
  uint32_t device = 0;
  const ByteBudget* budget = nullptr;
  const Tenant* tenant = nullptr;
  SessionId session = {};
};

ImportView ViewOf(const Import& import) {
  return ImportView{.id = import.id,
                    .session = import.session,
                    .process = import.process,
                    .read_only = import.read_only,
                    .since = import.since,
                    .recalled = import.recalled};
}

}  // namespace

absl::Status Core::Authenticate(const Caller& caller) const {
  // The kernel and the socket's mode have said that it may look, and it may do nothing else.
  return caller.observer ? absl::OkStatus() : impl_->Authenticate(caller).status();
}

absl::StatusOr<SessionView> Core::GetSession(const Caller& caller, SessionId session) const {
  const SessionId id = session ? session : caller.credentials.session;
  const Session* const found = impl_->sessions_.Find(id);
  if (found == nullptr || (!caller.sees_all() && found->tenant != caller.tenant)) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "session"}, {"id", id.value()}});
  }
  return impl_->ViewSession(*found);
}

Page<SessionView> Core::ListSessions(const Caller& caller, const PageRequest& page) const {
  PageBuilder<SessionView> builder(page);
  impl_->sessions_.ForEachAfter(page.after, [&](const Session& session) {
    if (!caller.sees_all() && session.tenant != caller.tenant) return true;
    if (builder.Full()) return false;
    builder.Add(session.number, session.channels.size(), impl_->ViewSession(session));
    return true;
  });
  return builder.Build();
}

Page<PoolView> Core::ListPools(const PageRequest& page) const {
  PageBuilder<PoolView> builder(page);
  // Pools neither come nor go, so their place is their key.
  uint64_t place = 0;
  for (const auto& [name, pool] : impl_->pools_) {
    if (++place <= page.after) continue;
    if (builder.Full()) break;
    builder.Add(place, 0, pool.View());
  }
  return builder.Build();
}

Page<PermitView> Core::ListPermits(const Caller& caller, absl::string_view pool,
                                   const PageRequest& page) const {
  const auto visible = [&](SessionId session) {
    return caller.sees_all() || impl_->sessions_.Find(session)->tenant == caller.tenant;
  };
  // Pools are walked by name; ids rise with the time of the grant, so that the first of each are the first of all.
  const uint64_t most = page.rows == UINT64_MAX ? page.rows : page.rows + 1;
  std::vector<PermitView> found;
  for (const auto& [name, one] : impl_->pools_) {
    if (pool.empty() || pool == name) one.AddPermits(PermitId(page.after), most, visible, &found);
  }
  std::sort(found.begin(), found.end(), [](const PermitView& a, const PermitView& b) { return a.id < b.id; });
  PageBuilder<PermitView> builder(page);
  for (PermitView& view : found) {
    if (builder.Full()) break;
    const uint64_t id = view.id.value();
    impl_->SetReadings(&view);
    builder.Add(id, 0, std::move(view));
  }
  return builder.Build();
}

std::vector<WaiterView> Core::ListWaiters(const Caller& caller, absl::string_view pool, uint64_t most) const {
  const auto visible = [&](SessionId session) {
    return caller.sees_all() || impl_->sessions_.Find(session)->tenant == caller.tenant;
  };
  std::vector<WaiterView> views;
  for (const auto& [name, one] : impl_->pools_) {
    if (pool.empty() || pool == name) one.AddWaiters(most, visible, &views);
  }
  return views;
}

Page<BlockView> Core::ListBlocks(const Caller& caller, const PageRequest& page) const {
  PageBuilder<BlockView> builder(page);
  impl_->blocks_.ForEachAfter(page.after, [&](const Block& block) {
    if (!VisibleState(block.phase).has_value()) return true;
    bool visible = caller.sees_all() || (block.owned() && block.tenant == caller.tenant);
    for (auto it = block.imports.begin(); !visible && it != block.imports.end(); ++it) {
      visible = it->second.tenant == caller.tenant;
    }
    if (!visible) return true;
    if (builder.Full()) return false;
    BlockView view = impl_->ViewBlock(block, caller.sees_all() ? nullptr : &caller.tenant);
    const uint64_t parts = view.imports.size();
    builder.Add(block.generation, parts, std::move(view));
    return true;
  });
  return builder.Build();
}

Page<ReservationView> Core::ListReservations(const Caller& caller, const PageRequest& page) const {
  PageBuilder<ReservationView> builder(page);
  impl_->reservations_.ForEachAfter(page.after, [&](const Reservation& reservation) {
    if (!caller.sees_all() && reservation.tenant != caller.tenant) return true;
    if (builder.Full()) return false;
    builder.Add(reservation.number, reservation.claims.size(), impl_->ViewReservation(reservation));
    return true;
  });
  return builder.Build();
}

Page<BudgetView> Core::ListBudgets(const Caller& caller, const PageRequest& page) const {
  std::map<uint64_t, BudgetRow> rows;
  const auto collect = [&](BudgetRow row) {
    if (row.budget->number() > page.after) rows.emplace(row.budget->number(), row);
  };
  for (const auto& [ordinal, device] : impl_->devices_) {
    collect({.layer = Layer::kDevice, .device = ordinal, .budget = &device.account});
  }
  for (const auto& [tenant, account] : impl_->tenants_) {
    if (!caller.sees_all() && tenant != caller.tenant) continue;
    for (const auto& [ordinal, budget] : account.budgets) {
      collect({.layer = Layer::kTenant, .device = ordinal, .budget = &budget, .tenant = &tenant});
    }
  }
  for (const Session* const session : impl_->sessions_.List()) {
    if (!caller.sees_all() && session->tenant != caller.tenant) continue;
    for (const auto& [ordinal, budget] : session->budgets) {
      collect({.layer = Layer::kSession,
               .device = ordinal,
               .budget = &budget,
               .tenant = &session->tenant,
               .session = session->id});
    }
  }
  PageBuilder<BudgetView> builder(page);
  for (const auto& [number, row] : rows) {
    if (builder.Full()) break;
    BudgetView view = Impl::ViewBudget(row.layer, row.device, *row.budget);
    if (row.tenant != nullptr) view.tenant = *row.tenant;
    view.session = row.session;
    builder.Add(number, 0, std::move(view));
  }
  return builder.Build();
}

UsageView Core::GetUsage(const Caller& caller) const {
  std::map<UsageKey, ByteCounts> rows;
  impl_->blocks_.ForEach([&](const Block& block) {
    const std::optional<BlockState> state = VisibleState(block.phase);
    // What was made ahead is in the device's own lines alone, until it is gone.
    if (!state.has_value() || !block.owned()) return;
    for (const Tenant& tenant : block.charged_tenants) {
      if (!caller.sees_all() && tenant != caller.tenant) continue;
      AddTo(*state, block.bytes, &rows[UsageKey(block.device, tenant, block.charged_session, block.label)]);
    }
  });
  impl_->reservations_.ForEach([&](const Reservation& reservation) {
    if (!caller.sees_all() && reservation.tenant != caller.tenant) return;
    for (const auto& [device, claim] : reservation.claims) {
      if (claim.left.count() == 0) continue;
      AddTo(claim.left,
            &rows[UsageKey(device, reservation.tenant, reservation.session, reservation.label)].reserved);
    }
  });
  UsageView view{.devices = ListDevices()};
  for (const auto& [key, bytes] : rows) {
    const auto& [device, tenant, session, label] = key;
    view.rows.push_back(
        {.device = device, .tenant = tenant, .session = session, .label = label, .bytes = bytes});
  }
  return view;
}

std::vector<DeviceView> Core::ListDevices() const {
  std::vector<DeviceView> views;
  for (const auto& [ordinal, device] : impl_->devices_) views.push_back(impl_->ViewDevice(device));
  return views;
}

BlockView Core::Impl::DescribeBlock(const Block& block) const {
  const bool owned = block.phase == BlockPhase::kReserved || block.phase == BlockPhase::kLive;
  const MemoryKind kind = devices_.at(block.device).config.kind;
  const bool direct = kind == MemoryKind::kCudaVmm && block.export_kind == ExportKind::kCudaIpc;
  return {.handle = HandleOf(block),
          .device = block.device,
          .bytes = block.bytes,
          .kind = direct ? MemoryKind::kCudaDirect : kind,
          .export_kind = block.export_kind,
          .state = VisibleState(block.phase).value_or(BlockState::kReserved),
          .owner = owned ? block.owner : SessionId(),
          .tenant = block.tenant,
          .label = block.label,
          .live_since = block.live_since,
          .torn = fences_.Torn(block.id),
          .release_error = block.release_error};
}

BlockView Core::Impl::ViewBlock(const Block& block, const Tenant* viewer) const {
  BlockView view = DescribeBlock(block);
  if (viewer == nullptr || *viewer == block.tenant) view.name = block.name;
  for (const auto& [id, import] : block.imports) {
    if (viewer != nullptr && *viewer != block.tenant && *viewer != import.tenant) continue;
    view.imports.push_back(ViewOf(import));
  }
  return view;
}

BlockView Core::Impl::ViewImported(const Block& block, const core::Import& import) const {
  BlockView view = DescribeBlock(block);
  view.imports.push_back(ViewOf(import));
  return view;
}

DeviceView Core::Impl::ViewDevice(const Device& device) const {
  DeviceView view{.ordinal = device.config.ordinal,
                  .uuid = device.config.uuid,
                  .name = device.config.name,
                  .kind = device.config.kind,
                  .state = device.main.state,
                  .generation = device.main.generation,
                  .total = device.config.total,
                  .budget = device.account.limit().value(),
                  .granularity = device.config.granularity,
                  .bytes = device.account.counts(),
                  .failed_releases = device.account.failed_releases(),
                  .restarts_left = device.main.restarts_left,
                  .last_failure = device.main.last_failure,
                  .clears = device.config.clears,
                  .drain_reason = device.drain_reason,
                  .context_cost = device.context_cost(),
                  .score = placement_.ScoreOn(device.config.ordinal)};
  const bool serves = view.state == DeviceState::kReady || view.state == DeviceState::kRebuilding;
  if (serves && !device.drain_reason.empty()) view.state = DeviceState::kDraining;
  if (device.config.cuda_ipc) {
    view.context = DeviceView::ContextWorker{.state = device.context.state,
                                             .generation = device.context.generation,
                                             .restarts_left = device.context.restarts_left,
                                             .last_failure = device.context.last_failure};
  }
  if (device.reading.has_value()) {
    view.reading = DeviceView::Reading{.taken = device.reading->taken,
                                       .free = device.reading->free,
                                       .others = placement_.OthersOn(device.config.ordinal),
                                       .utilisation = device.reading->utilisation};
  }
  return view;
}

SessionView Core::Impl::ViewSession(const Session& session) const {
  SessionView view{.id = session.id,
                   .tenant = session.tenant,
                   .label = session.label,
                   .state = session.state,
                   .opened_at = session.opened_at,
                   .opener = session.opener};
  for (const ChannelId channel : session.channels)
    view.processes.push_back(sessions_.FindChannel(channel)->process);
  for (const auto& [name, pool] : pools_) {
    view.permit_units += pool.UnitsOf(session.id);
    view.waiters += pool.WaitersOf(session.id);
  }
  view.live = blocks_.LiveBytesOf(session.id);
  return view;
}

}  // namespace berth::core
