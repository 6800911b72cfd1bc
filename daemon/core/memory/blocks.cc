#include "daemon/core/memory/blocks.h"

#include <optional>
#include <set>

#include <berth/error.h>

#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {

Blocks::Blocks(Managers& core)
    : core_(core),
      blocks_(&core.journal, {.blocks = core.config.limits.blocks,
                              .imports = core.config.limits.imports,
                              .grants = core.config.limits.grants,
                              .operator_blocks = core.config.limits.operator_blocks,
                              .operator_imports = core.config.limits.operator_imports}) {}

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
  block.phase = *next;
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
  std::set<ChannelId> recalled;
  std::vector<Deliver> sends;
  for (const auto& [id, import] : block.imports) {
    blocks_.MarkRecalled(block, id);
    if (!recalled.insert(import.channel).second) continue;
    core_.sessions.mailboxes().Post(Deliver{.channel = import.channel,
                                            .delivery = {.what = attach::DeliveryKind::kRecall,
                                                         .block = block.id.value(),
                                                         .why = static_cast<uint64_t>(why)}},
                                    &sends);
  }
  step.EmitAll(std::move(sends));
  core_.fences.ServeImports(step);
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

}  // namespace berth::core
