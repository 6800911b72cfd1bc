// Read-only views of blocks and of what tenants use.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "daemon/core/managers.h"
#include "daemon/core/memory/blocks.h"

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

ImportView ViewOf(const Import& import) {
  return ImportView{.id = import.id,
                    .session = import.session,
                    .process = import.process,
                    .read_only = import.read_only,
                    .since = import.since,
                    .recalled = import.recalled};
}

}  // namespace

BlockView Blocks::DescribeBlock(const Block& block) const {
  const bool owned = block.phase == BlockPhase::kReserved || block.phase == BlockPhase::kLive;
  const MemoryKind kind = core_.devices.At(block.device).config.kind;
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
          .torn = core_.fences.table().Torn(block.id),
          .lost = block.lost || (owned && WhyStale(block) != nullptr),
          .release_error = block.release_error};
}

BlockView Blocks::ViewBlock(const Block& block, const Tenant* viewer) const {
  BlockView view = DescribeBlock(block);
  if (viewer == nullptr || *viewer == block.tenant) view.name = block.name;
  for (const auto& [id, import] : block.imports) {
    if (viewer != nullptr && *viewer != block.tenant && *viewer != import.tenant) continue;
    view.imports.push_back(ViewOf(import));
  }
  return view;
}

BlockView Blocks::ViewImported(const Block& block, const core::Import& import) const {
  BlockView view = DescribeBlock(block);
  view.imports.push_back(ViewOf(import));
  return view;
}

Page<BlockView> Blocks::ListBlocks(const Caller& caller, const PageRequest& page) const {
  PageBuilder<BlockView> builder(page);
  blocks_.ForEachAfter(page.after, [&](const Block& block) {
    if (!VisibleState(block.phase).has_value()) return true;
    bool visible = caller.sees_all() || (block.owned() && block.tenant == caller.tenant);
    for (auto it = block.imports.begin(); !visible && it != block.imports.end(); ++it) {
      visible = it->second.tenant == caller.tenant;
    }
    if (!visible) return true;
    if (builder.Full()) return false;
    BlockView view = ViewBlock(block, caller.sees_all() ? nullptr : &caller.tenant);
    const uint64_t parts = view.imports.size();
    builder.Add(block.generation, parts, std::move(view));
    return true;
  });
  return builder.Build();
}

UsageView Blocks::GetUsage(const Caller& caller) const {
  std::map<UsageKey, ByteCounts> rows;
  blocks_.ForEach([&](const Block& block) {
    const std::optional<BlockState> state = VisibleState(block.phase);
    // Warm blocks appear only in the device's own lines until their release has ended.
    if (!state.has_value() || !block.owned()) return;
    for (const Tenant& tenant : block.charged_tenants) {
      if (!caller.sees_all() && tenant != caller.tenant) continue;
      AddTo(*state, block.bytes, &rows[UsageKey(block.device, tenant, block.charged_session, block.label)]);
    }
  });
  core_.reservations.table().ForEach([&](const Reservation& reservation) {
    if (!caller.sees_all() && reservation.tenant != caller.tenant) return;
    for (const auto& [device, claim] : reservation.claims) {
      if (claim.left.count() == 0) continue;
      AddTo(claim.left, &rows[UsageKey(device, reservation.tenant, reservation.session, reservation.label)].reserved);
    }
  });
  UsageView view{.devices = core_.devices.ListDevices()};
  for (const auto& [key, bytes] : rows) {
    const auto& [device, tenant, session, label] = key;
    view.rows.push_back({.device = device, .tenant = tenant, .session = session, .label = label, .bytes = bytes});
  }
  return view;
}

}  // namespace berth::core
