#include "daemon/core/memory/allocations.h"

#include <algorithm>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"

namespace berth::core {

void Allocations::Allocate(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                           const AllocateRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request), request.deadline);
  if (!admitted.has_value()) return;
  const auto refuse = [&](const absl::Status& status) { core_.requests.Answer(step, admitted->request, status); };
  LogRecord& log_record = core_.memory_log.AddLogRecord(*admitted, LogAction::kAllocate);
  log_record.device = request.device;
  log_record.bytes = request.bytes;
  log_record.label = request.label;
  log_record.reservation = request.reservation;

  const bool picks = request.constraint.pick != DevicePick::kNone;
  const absl::StatusOr<Device*> found =
      picks ? PickDevice(step, request, admitted->session)
            : core_.devices.FindServing(request.device, request.device_uuid);
  if (!found.ok()) return refuse(found.status());
  Device& device = **found;
  log_record.device = device.config.ordinal;
  const absl::StatusOr<Bytes> bytes = core_.devices.Measure(device, request.bytes);
  if (!bytes.ok()) return refuse(bytes.status());
  const absl::StatusOr<ExportKind> kind = core_.workers.ChooseKind(device, request.kinds);
  if (!kind.ok()) return refuse(kind.status());
  if (!device.worker(WorkerKindOf(*kind)).in_service())
    return refuse(Devices::OutOfService(device, WorkerKindOf(*kind)));
  const absl::Status held = core_.workers.CheckHold(step, device, WorkerKindOf(*kind), admitted->session.tenant);
  if (!held.ok()) return refuse(held);
  const absl::Status limits = MayQueue(admitted->channel, admitted->session);
  if (!limits.ok()) return refuse(limits);
  const uint32_t ordinal = device.config.ordinal;
  const absl::Status creates = CheckCreates(admitted->session, ordinal, WorkerKindOf(*kind));
  if (!creates.ok()) return refuse(creates);
  if (request.reservation) {
    const absl::Status drawn = core_.reservations.Draw(admitted->session.id, request.reservation, ordinal, *bytes);
    if (!drawn.ok()) return refuse(drawn);
  }
  core_.byte_queue.Enqueue(step, Waiting{.request = admitted->request,
                                         .session = admitted->session.id,
                                         .tenant = admitted->session.tenant,
                                         .asks = {{.device = ordinal, .bytes = *bytes}},
                                         .label = request.label,
                                         .kind = *kind,
                                         .drawn_from = request.reservation,
                                         .patient = request.wait,
                                         .deadline = request.deadline,
                                         .of_operator = admitted->session.of_operator});
}

absl::StatusOr<Device*> Allocations::PickDevice(StepContext& step, const AllocateRequest& request,
                                                const Session& session) {
  core_.devices.UpdatePlacement();
  Placement::Ask ask{.constraint = request.constraint};
  BERTH_RETURN_IF_ERROR(core_.devices.placement().Resolve(&ask.constraint));
  BERTH_RETURN_IF_ERROR(core_.devices.placement().CheckConstraint(ask.constraint));
  // Where no device has capacity in the caller's budgets, the request waits for the first or is refused for it.
  Device* first = nullptr;
  for (const uint32_t ordinal : core_.devices.placement().Fitting(ask)) {
    Device& device = core_.devices.At(ordinal);
    BERTH_ASSIGN_OR_RETURN(const Bytes bytes, core_.devices.Measure(device, request.bytes));
    if (first == nullptr) first = &device;
    const absl::StatusOr<ExportKind> kind = core_.workers.ChooseKind(device, request.kinds);
    if (!kind.ok() || !device.worker(WorkerKindOf(*kind)).in_service()) continue;
    if (!core_.workers.CheckHold(step, device, WorkerKindOf(*kind), session.tenant).ok()) continue;
    if (!CheckCreates(session, ordinal, WorkerKindOf(*kind)).ok()) continue;
    const Waiting waiting{
        .session = session.id, .tenant = session.tenant, .asks = {{.device = ordinal, .bytes = bytes}}, .kind = *kind};
    if (core_.byte_queue.Assess(waiting, {}).kind > Shortage::Kind::kComing) continue;
    first = &device;
    break;
  }
  if (first == nullptr) {
    const Bytes free = request.constraint.min_free;
    const std::string asked =
        free > Bytes() ? absl::StrCat("a device with ", free.count(), " bytes free") : "any device";
    return Refuse(Reason::kNoDevice, "no eligible device: asked {asked}; {lacking}",
                  {{"asked", asked}, {"lacking", core_.devices.placement().Lacking(ask)}});
  }
  core_.devices.placement().MarkTurn(first->config.ordinal);
  return first;
}

std::optional<BlockId> Allocations::FindWarm(const Waiting& waiting, const ByteRequest& ask) const {
  if (waiting.reserve_for.has_value() || waiting.kind != ExportKind::kFd) return std::nullopt;
  return core_.devices.At(ask.device).warm.Find(ask.bytes);
}

absl::Status Allocations::MayQueue(const Channel& channel, const Session& session) const {
  const Account account = session.tenant;
  SharedCount places = core_.blocks.table().places();
  places.Take(core_.byte_queue.table().blocks());
  BERTH_RETURN_IF_ERROR(places.Check(session.claimant()));
  BERTH_RETURN_IF_ERROR(CheckBlockQuota(
      account, core_.blocks.table().CountOf(account) + core_.byte_queue.table().CountBlocksFor(account)));
  return core_.blocks.MayImport(channel);
}

absl::Status Allocations::CheckCreates(const Session& session, uint32_t device, WorkerKind worker_kind) const {
  SharedCount creates = core_.blocks.table().CreatesOf(device, worker_kind);
  core_.byte_queue.table().CountCreates(device, worker_kind, &creates);
  return creates.Check(session.claimant());
}

absl::Status Allocations::CheckBlockQuota(const Account& account, uint64_t own) const {
  const std::optional<uint64_t> quota = core_.sessions.tenant_use().QuotaOf(account).blocks;
  if (!quota.has_value() || own < *quota) return absl::OkStatus();
  return RefuseWithRetry(Reason::kLimit, absl::Seconds(1), "blocks of the tenant: {current}, limit {limit}",
                         {{"what", "blocks_of_tenant"}, {"current", own}, {"limit", *quota}});
}

void Allocations::TakeOrMake(StepContext& step, const Waiting& waiting) {
  const ByteRequest& ask = waiting.asks.front();
  Device& device = core_.devices.At(ask.device);
  if (waiting.drawn_from) core_.reservations.Unclaim(step, waiting.session, waiting.tenant, ask.device, ask.bytes);
  if (const std::optional<BlockId> warm = FindWarm(waiting, ask)) {
    Block& block = *core_.blocks.Find(*warm);
    core_.blocks.Apply(step, block, BlockEvent::kTaken);
    Assign(step, block, waiting);
    if (block.phase == BlockPhase::kLive) FinishMaking(step, block);
    return;
  }
  Block& block = core_.blocks.Add(core_.NewId<BlockId>(), ask.device, ask.bytes, BlockPhase::kReserved);
  block.export_kind = waiting.kind;
  device.account.Add(block.phase, block.bytes);
  if (block.worker_kind() == WorkerKind::kContext) {
    ++device.context.blocks;
    core_.workers.MarkContextNeed(step, device);
  }
  Assign(step, block, waiting);
  core_.workers.AskCreate(step, block);
}

void Allocations::Assign(StepContext& step, Block& block, const Waiting& waiting) {
  block.of_operator = waiting.of_operator;
  core_.blocks.SetOwner(block, waiting.session, waiting.tenant, waiting.label);
  core_.budgets.ChargeTo(step, block, waiting.session, {waiting.tenant});
  block.request = waiting.request;
  block.drawn_from = waiting.drawn_from;
  core_.requests.SetPlace(waiting.request, &core_.blocks, {.number = block.id.value()});
}

void Allocations::FinishMaking(StepContext& step, Block& block) {
  Device& device = core_.devices.DeviceOf(block);
  const RequestId request = std::exchange(block.request, RequestId());
  block.live_since = step.now;
  core_.leases.RecordGrant(step, core_.leases.LeaseOf(block), request);
  core_.budgets.ForEachBudget(block, [](ByteBudget& budget) { budget.RecordAllocated(); });
  const core::Import& import = core_.blocks.StartImport(step, block, request, ReadOnly::kNo);
  AllocateResult result = {.block = core_.blocks.ViewImported(block, import), .import = import.id};
  if (block.export_kind == ExportKind::kCudaIpc) result.ipc_handle = block.ipc_handle;
  core_.requests.Answer(step, request, Response(std::move(result)));
  if (block.export_kind == ExportKind::kFd) PlanRefill(step, device, block.bytes);
}

void Allocations::Trim(StepContext& step, Device& device, Bytes bytes) {
  for (const BlockId warm : device.warm.All()) {
    const Bytes left = SaturatingSub(device.account.charged(), device.account.coming());
    const Bytes limit = device.account.limit().value();
    if (left <= limit && bytes <= SaturatingSub(limit, left)) return;
    core_.blocks.Abandon(step, *core_.blocks.Find(warm));
  }
}

void Allocations::PlanRefill(StepContext& step, Device& device, Bytes bytes) {
  const uint32_t depth = core_.config.warm_blocks_per_size;
  if (depth == 0 || core_.config.warm_sizes == 0 || bytes > core_.config.warm_limit) return;
  for (const BlockId dropped : device.warm.RecordAsked(bytes)) core_.blocks.Abandon(step, *core_.blocks.Find(dropped));
  const absl::Duration delay = core_.config.warm_refill_delay;
  if (delay == absl::ZeroDuration() || device.warm.Count(bytes) * 4 < depth) {
    return Refill(step, device, bytes);
  }
  device.refill_at = step.now + delay;
  next_refill_ = std::min(next_refill_, device.refill_at);
}

void Allocations::RefillDue(StepContext& step) {
  if (next_refill_ > step.now) return;
  next_refill_ = absl::InfiniteFuture();
  for (auto& [ordinal, device] : core_.devices.all()) {
    if (device.refill_at > step.now) {
      next_refill_ = std::min(next_refill_, device.refill_at);
      continue;
    }
    device.refill_at = absl::InfiniteFuture();
    for (const Bytes bytes : device.warm.sizes()) Refill(step, device, bytes);
  }
}

void Allocations::Refill(StepContext& step, Device& device, Bytes bytes) {
  const bool wanted_elsewhere = core_.byte_queue.table().CountOf(device.config.ordinal) > 0 || !device.retries.empty();
  if (core_.shutdown.begun() || wanted_elsewhere || device.main.state != DeviceState::kReady ||
      !device.takes_leases()) {
    return;
  }
  ByteBudget& account = device.account;
  while (device.warm.Count(bytes) < core_.config.warm_blocks_per_size &&
         bytes <= SaturatingSub(core_.config.warm_limit, account.warm()) &&
         account.Judge(bytes) == ByteBudget::Verdict::kNow) {
    Block& block = core_.blocks.Add(core_.NewId<BlockId>(), device.config.ordinal, bytes, BlockPhase::kWarming);
    account.Add(block.phase, bytes);
    device.warm.Put(bytes, block.generation, block.id, /*made=*/false);
    core_.workers.AskCreate(step, block);
  }
}

bool Undo(const UndoStep& undo, const AllocateResult& result) {
  Blocks& blocks = undo.core.blocks;
  // The process may have the fd already; then only its own report or its death ends the import.
  blocks.WithdrawImport(undo.step, undo.channel.id, result.import);
  const absl::StatusOr<Block*> block = blocks.FindOwned(undo.channel.session, result.block.handle);
  if (!block.ok()) return false;
  blocks.FreeBlock(undo.step, **block, LogCause::kForgotten);
  return true;
}

}  // namespace berth::core
