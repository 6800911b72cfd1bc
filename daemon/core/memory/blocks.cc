#include "daemon/core/memory/blocks.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/types/invariant.h"

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

Blocks::Blocks(Managers& core)
    : core_(core),
      blocks_(&core.journal, {.blocks = core.config.limits.blocks,
                              .imports = core.config.limits.imports,
                              .grants = core.config.limits.grants,
                              .operator_blocks = core.config.limits.operator_blocks,
                              .operator_imports = core.config.limits.operator_imports,
                              .creates = core.config.limits.creates_per_worker,
                              .operator_creates = core.config.limits.operator_creates_per_worker}) {}

void Blocks::Free(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                  const FreeRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  LogRecord& log_record = core_.memory_log.AddLogRecord(*admitted, LogAction::kFree);
  log_record.block = request.handle.block;
  const absl::StatusOr<Block*> block = FindOwned(admitted->session.id, request.handle);
  if (!block.ok()) return core_.requests.Answer(step, admitted->request, block.status());
  log_record.device = (*block)->device;
  log_record.bytes = (*block)->bytes;
  log_record.label = (*block)->label;
  log_record.block_generation = (*block)->generation;
  EndImports(step, admitted->channel.id, request.let_go);
  const BlockState state = (*block)->imports.empty() ? BlockState::kRetired : BlockState::kQuarantined;
  // Answers first: the release takes system calls that the caller need not wait for.
  core_.requests.Answer(step, admitted->request, Response(FreeResult{.state = state}));
  (*block)->drawn_from = ReservationId();
  FreeBlock(step, **block, LogCause::kNone);
}

absl::StatusOr<Block*> Blocks::FindOwned(SessionId session, const BlockHandle& handle) {
  BERTH_RETURN_IF_ERROR(CheckHandle(handle));
  Block* const block = blocks_.Find(handle.block);
  const bool owned =
      block != nullptr &&
      (block->owner == session || (block->published && block->tenant == core_.sessions.table().Find(session)->tenant));
  if (!owned) {
    return Refuse(Reason::kNotFound, "no {kind} {id} in this session",
                  {{"kind", "block"}, {"id", handle.block.value()}});
  }
  if (HandleOf(*block) != handle) return Stale(handle, "of another generation");
  if (block->freed()) return Stale(handle, WhyFreed(*block));
  if (block->phase != BlockPhase::kLive) return Stale(handle, "not made yet");
  return block;
}

absl::StatusOr<Block*> Blocks::FindById(const Caller& caller, BlockId block) {
  BERTH_RETURN_IF_ERROR(core_.sessions.Authenticate(caller).status());
  Block* const found = blocks_.Find(block);
  const bool there = found != nullptr && (found->phase == BlockPhase::kLive || found->freed());
  if (there && found->owned() && (caller.admin || found->tenant == caller.tenant)) return found;
  return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "block"}, {"id", block.value()}});
}

absl::Status Blocks::CheckHandle(const BlockHandle& handle) const {
  if (handle.node != core_.config.node) return Stale(handle, "of another node");
  if (handle.incarnation != core_.config.incarnation) return Stale(handle, "of another incarnation of this node");
  return absl::OkStatus();
}

absl::Status Blocks::Stale(const BlockHandle& handle, absl::string_view why) {
  return Refuse(Reason::kStale, "block {block} is stale: {why}", {{"block", handle.block.value()}, {"why", why}});
}

BlockHandle Blocks::HandleOf(const Block& block) const {
  const DeviceConfig& device = core_.devices.At(block.device).config;
  return BlockHandle{.node = core_.config.node,
                     .incarnation = core_.config.incarnation,
                     .device_uuid = device.uuid,
                     .block = block.id,
                     .generation = block.memory_generation,
                     .block_generation = block.generation};
}

const char* Blocks::WhyStale(const Block& block) const {
  const Device& device = core_.devices.At(block.device);
  if (device.main.state == DeviceState::kDropped) return "device state dropped";
  return block.memory_generation == device.worker(block.worker_kind()).generation ? nullptr : "context rebuilt";
}

bool Blocks::IsLost(const Block& block) const {
  return block.worker_kind() == WorkerKind::kContext &&
         block.memory_generation < core_.devices.At(block.device).context.lost_before;
}

void Blocks::Apply(StepContext& step, Block& block, BlockEvent event) {
  const std::optional<BlockPhase> next = NextPhase(block.phase, event);
  BERTH_INVARIANT(next.has_value());
  Device& device = core_.devices.DeviceOf(block);
  core_.budgets.ForEachBudget(block, [&](ByteBudget& budget) { budget.Move(block.phase, *next, block.bytes); });
  if (*next == BlockPhase::kWarm) {
    device.warm.MarkMade(block.bytes, block.generation, block.id);
  } else {
    device.warm.Remove(block.bytes, block.generation, block.id);
  }
  blocks_.SetPhase(block, *next);
  if (*next == BlockPhase::kRetired) core_.workers.AskRelease(step, block);
  if (*next != BlockPhase::kGone) return;
  step.MarkCapacityChanged();
  if (block.drawn_from) core_.reservations.ReturnToReservation(block);
  const std::vector<Tenant> charged = std::move(block.charged_tenants);
  if (block.worker_kind() == WorkerKind::kContext) {
    --device.context.blocks;
    core_.workers.MarkContextNeed(step, device);
  }
  core_.fences.Erase(block.id);
  blocks_.Erase(block);
  for (const Tenant& tenant : charged) core_.budgets.EraseIfIdle(tenant);
}

void Blocks::Abandon(StepContext& step, Block& block) {
  const bool unasked = InTheMaking(block.phase) && !block.asked;
  Apply(step, block, BlockEvent::kUnwanted);
  if (unasked) Unmake(step, block);
}

void Blocks::Unmake(StepContext& step, Block& block) {
  if (!block.asked_earlier) return Apply(step, block, BlockEvent::kNotMade);
  if (block.phase != BlockPhase::kAbandoned) Apply(step, block, BlockEvent::kUnwanted);
  Apply(step, block, BlockEvent::kMade);
}

void Blocks::FreeBlock(StepContext& step, Block& block, LogCause cause) {
  // A free by request is logged with its answer.
  if (cause != LogCause::kNone) core_.memory_log.Log(step, core_.memory_log.RecordOf(block, LogAction::kFree, cause));
  core_.leases.RecordEnd(step.now, core_.leases.LeaseOf(block), Leases::EndFor(cause));
  block.lost = cause == LogCause::kLost;
  const EndReason why = block.lost ? EndReason::kStateLost : EndReason::kUnknown;
  if (!block.name.empty()) blocks_.EraseName(block);
  core_.fences.EndFencesOf(step, block);
  if (block.imports.empty()) {
    Apply(step, block, BlockEvent::kFreedUnmapped);
    return core_.fences.ServeImports(step);
  }
  Apply(step, block, BlockEvent::kFreedMapped);
  core_.budgets.ChargeImporters(step, block);
  for (const auto& [id, import] : block.imports) blocks_.MarkRecalled(block, id);
  NotifyImporters(step, block, why);
  core_.fences.ServeImports(step);
}

void Blocks::NotifyImporters(StepContext& step, const Block& block, EndReason why) {
  std::set<ChannelId> notified;
  std::vector<Deliver> sends;
  for (const auto& [id, import] : block.imports) {
    if (!notified.insert(import.channel).second) continue;
    core_.sessions.mailboxes().Post(Deliver{.channel = import.channel,
                                            .delivery = {.what = attach::DeliveryKind::kRecall,
                                                         .block = block.id.value(),
                                                         .why = static_cast<uint64_t>(why)}},
                                    &sends);
  }
  step.EmitAll(std::move(sends));
}

void Blocks::MemoryLost(StepContext& step, const Device& device, WorkerKind worker_kind, uint64_t generation) {
  // A block of an earlier generation was lost before, and its importers were notified then.
  const uint64_t current = device.worker(worker_kind).generation;
  for (const Block* const block : blocks_.OfDevice(device.config.ordinal)) {
    if (block->worker_kind() != worker_kind || block->phase != BlockPhase::kLive) continue;
    if (block->memory_generation < current || block->memory_generation >= generation) continue;
    NotifyImporters(step, *block, EndReason::kMemoryLost);
  }
}

void Blocks::BlockLost(StepContext& step, BlockId block) {
  Block* const lost = blocks_.Find(block);
  // A context worker owns the memory of its blocks itself.
  if (lost == nullptr || lost->worker_kind() == WorkerKind::kContext) return;
  if (lost->phase == BlockPhase::kWarm) Abandon(step, *lost);
  // A freed block waits for its importers.
  if (lost->phase == BlockPhase::kLive) FreeBlock(step, *lost, LogCause::kLost);
}

absl::StatusOr<BlockView> Blocks::Recall(StepContext& step, const Caller& caller, BlockId block) {
  BERTH_ASSIGN_OR_RETURN(Block* const found, FindById(caller, block));
  std::set<ChannelId> asked;
  std::vector<Deliver> sends;
  for (const auto& [id, import] : found->imports) {
    if (!blocks_.MarkRecalled(*found, id) || !asked.insert(import.channel).second) continue;
    core_.sessions.mailboxes().Post(
        Deliver{.channel = import.channel,
                .delivery = {.what = attach::DeliveryKind::kAskBack, .block = found->id.value()}},
        &sends);
  }
  LogRecord record = core_.memory_log.RecordOf(*found, LogAction::kRecall, LogCause::kById);
  record.session = caller.credentials.session;
  core_.memory_log.Log(step, std::move(record));
  step.EmitAll(std::move(sends));
  return ViewBlock(*found, caller.admin ? nullptr : &caller.tenant);
}

absl::StatusOr<BlockView> Blocks::FreeById(StepContext& step, const Caller& caller, BlockId block) {
  BERTH_ASSIGN_OR_RETURN(Block* const found, FindById(caller, block));
  if (found->freed()) return Stale(HandleOf(*found), WhyFreed(*found));
  found->drawn_from = ReservationId();
  FreeBlock(step, *found, LogCause::kById);
  return ViewBlock(*found, caller.admin ? nullptr : &caller.tenant);
}

void Blocks::Leave(StepContext& step, const RequestId&, const WaitTicket& ticket) {
  Abandon(step, *blocks_.Find(BlockId(ticket.number)));
  step.MarkCapacityChanged();
}

// ---- Read-only views of blocks and of what tenants use -------------------------------------------------------

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

// ---- Ledger records of blocks and their imports, and the check of blocks -------------------------------------

bool Blocks::WriteImport(BlockId id, ImportId import, ArchiveWriter& archive) const {
  const Block* const block = blocks_.Find(id);
  if (block == nullptr) return false;
  const auto found = block->imports.find(import);
  if (found == block->imports.end()) return false;
  archive(found->second);
  return true;
}

void Blocks::ReadBlock(BlockId id, ArchiveReader& archive) {
  Block read;
  archive(read);
  read.id = id;
  if (archive.failed() || read.phase == BlockPhase::kGone || !core_.devices.Has(read.device) ||
      (read.charged_session && core_.sessions.table().Find(read.charged_session) == nullptr) ||
      (read.phase == BlockPhase::kReserved && !core_.requests.pending().contains(read.request))) {
    return archive.Fail();
  }
  read.asked_earlier = InTheMaking(read.phase);
  // No worker gets a command for these blocks; Managers::ResumeMemory() settles them.
  read.asked =
      read.phase == BlockPhase::kAbandoned || (read.phase == BlockPhase::kRetired && !read.busy && IsLost(read));
  const Block* const block = blocks_.Restore(std::move(read));
  if (block == nullptr) return archive.Fail();
  RestoreBlock(*block);
}

void Blocks::RestoreBlock(const Block& block) {
  Device& device = core_.devices.DeviceOf(block);
  core_.budgets.ForEachBudget(
      block, [&](ByteBudget& budget) { budget.RestoreBlock(block.phase, block.bytes, block.stuck, block.busy); });
  if (block.worker_kind() == WorkerKind::kContext) ++device.context.blocks;
  switch (block.phase) {
    case BlockPhase::kWarming:
    case BlockPhase::kWarm:
      // Restores no more sizes than the warm cache had.
      device.warm.RecordAsked(block.bytes);
      device.warm.Put(block.bytes, block.generation, block.id, block.phase == BlockPhase::kWarm);
      break;
    case BlockPhase::kReserved:
      core_.requests.SetPlace(block.request, this, {.number = block.id.value()});
      core_.requests.MarkWaiting(block.request);
      break;
    case BlockPhase::kRetired:
      device.releases_asked += block.asked ? 1 : 0;
      break;
    default:
      break;
  }
  if (block.busy) core_.fences.RestoreBusy(block.id);
}

void Blocks::ReadImport(BlockId block, ImportId id, ArchiveReader& archive) {
  core::Import import;
  archive(import);
  import.id = id;
  if (archive.failed() || core_.sessions.table().FindChannel(import.channel) == nullptr ||
      blocks_.Restore(block, std::move(import)) == nullptr) {
    archive.Fail();
  }
}

absl::Status Blocks::CheckBlocks() const {
  absl::Status status = absl::OkStatus();
  blocks_.ForEach([&](const Block& block) {
    const bool needs_owner = block.phase == BlockPhase::kReserved || block.phase == BlockPhase::kLive;
    if (needs_owner && !block.published && core_.sessions.table().Find(block.owner) == nullptr)
      status = Broken("a block's owner has ended");
    if (block.phase == BlockPhase::kReserved && !core_.requests.pending().contains(block.request)) {
      status = Broken("a block is allocated for no request");
    }
    if (block.phase == BlockPhase::kAbandoned && !block.asked)
      status = Broken("an abandoned block is still in the table");
    if (block.stuck && block.phase != BlockPhase::kRetired) status = Broken("a stuck block is not retired");
    if (block.busy != core_.fences.IsBusy(block.id)) status = Broken("a freed block's uses are recorded wrongly");
    for (const auto& [id, import] : block.imports) {
      const Channel* const channel = core_.sessions.table().FindChannel(import.channel);
      if (channel == nullptr || channel->session != import.session) status = Broken("a block has an absent importer");
    }
  });
  return status;
}

}  // namespace berth::core
