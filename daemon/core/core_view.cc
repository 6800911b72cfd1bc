// Looking.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

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

// The session that pays for the block; 0 for none any more.
SessionId ChargedSession(const Block& block) {
  return block.phase == BlockPhase::kReserved || block.phase == BlockPhase::kLive ? block.owner : SessionId();
}

// Who pays for the block: its owner's tenant, or while it is quarantined those of its importers.
std::set<Tenant> ChargedTenants(const Block& block) {
  if (block.phase != BlockPhase::kQuarantined) return {block.tenant};
  std::set<Tenant> tenants;
  for (const auto& [id, import] : block.imports) tenants.insert(import.tenant);
  return tenants;
}

}  // namespace

absl::Status Core::Authenticate(const Caller& caller) const { return impl_->Authenticate(caller).status(); }

absl::StatusOr<SessionView> Core::GetSession(const Caller& caller, SessionId session) const {
  const SessionId id = session ? session : caller.credentials.session;
  const Session* const found = impl_->sessions_.Find(id);
  if (found == nullptr || (!caller.admin && found->tenant != caller.tenant)) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "session"}, {"id", id.value()}});
  }
  return impl_->ViewSession(*found);
}

std::vector<SessionView> Core::ListSessions(const Caller& caller) const {
  std::vector<SessionView> views;
  for (const Session* const session : impl_->sessions_.List()) {
    if (caller.admin || session->tenant == caller.tenant) views.push_back(impl_->ViewSession(*session));
  }
  return views;
}

std::vector<PoolView> Core::ListPools() const {
  std::vector<PoolView> views;
  for (const auto& [name, pool] : impl_->pools_) views.push_back(pool.View());
  return views;
}

std::vector<PermitView> Core::ListPermits(const Caller& caller, absl::string_view pool) const {
  std::vector<PermitView> views;
  for (const auto& [name, found] : impl_->pools_) {
    if (!pool.empty() && pool != name) continue;
    for (PermitView& view : found.Permits()) {
      const Session& session = *impl_->sessions_.Find(view.session);
      if (caller.admin || session.tenant == caller.tenant) views.push_back(std::move(view));
    }
  }
  // Pools are walked by name; ids rise with the time of the grant.
  std::sort(views.begin(), views.end(), [](const PermitView& a, const PermitView& b) { return a.id < b.id; });
  return views;
}

std::vector<WaiterView> Core::ListWaiters(const Caller& caller, absl::string_view pool) const {
  std::vector<WaiterView> views;
  for (const auto& [name, found] : impl_->pools_) {
    if (!pool.empty() && pool != name) continue;
    for (WaiterView& view : found.Waiters()) {
      const Session& session = *impl_->sessions_.Find(view.session);
      if (caller.admin || session.tenant == caller.tenant) views.push_back(std::move(view));
    }
  }
  return views;
}

std::vector<BlockView> Core::ListBlocks(const Caller& caller) const {
  std::vector<BlockView> views;
  impl_->blocks_.ForEach([&](const Block& block) {
    if (!VisibleState(block.phase).has_value()) return;
    bool visible = caller.admin || (block.owner && block.tenant == caller.tenant);
    for (const auto& [id, import] : block.imports) visible = visible || import.tenant == caller.tenant;
    if (visible) views.push_back(impl_->ViewBlock(block, caller.admin ? nullptr : &caller.tenant));
  });
  return views;
}

UsageView Core::GetUsage(const Caller& caller) const {
  std::map<UsageKey, ByteCounts> rows;
  impl_->blocks_.ForEach([&](const Block& block) {
    const std::optional<BlockState> state = VisibleState(block.phase);
    // What was made ahead is in the device's own lines alone, until it is gone.
    if (!state.has_value() || !block.owner) return;
    for (const Tenant& tenant : ChargedTenants(block)) {
      if (!caller.admin && tenant != caller.tenant) continue;
      AddTo(*state, block.bytes, &rows[UsageKey(block.device, tenant, ChargedSession(block), block.label)]);
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

BlockView Core::Impl::ViewBlock(const Block& block, const Tenant* viewer) const {
  BlockView view{.handle = HandleOf(block),
                 .device = block.device,
                 .bytes = block.bytes,
                 .kind = devices_.at(block.device).config.kind,
                 .state = VisibleState(block.phase).value_or(BlockState::kReserved),
                 .owner = ChargedSession(block),
                 .tenant = block.tenant,
                 .label = block.label,
                 .live_since = block.live_since};
  for (const auto& [id, import] : block.imports) {
    if (viewer != nullptr && *viewer != block.tenant && *viewer != import.tenant) continue;
    view.imports.push_back(ImportView{.id = id,
                                      .session = import.session,
                                      .process = import.process,
                                      .read_only = import.read_only,
                                      .since = import.since,
                                      .recalled = import.recalled});
  }
  return view;
}

DeviceView Core::Impl::ViewDevice(const Device& device) const {
  return DeviceView{.ordinal = device.config.ordinal,
                    .uuid = device.config.uuid,
                    .name = device.config.name,
                    .kind = device.config.kind,
                    .state = device.state,
                    .generation = device.config.generation,
                    .total = device.config.total,
                    .budget = device.account.budget(),
                    .granularity = device.config.granularity,
                    .bytes = device.account.counts(),
                    .failed_releases = device.failed_releases};
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
