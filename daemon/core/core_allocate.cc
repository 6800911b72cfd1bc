// Allocations: admitted against the budget, served from what was made ahead or made by the worker.

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"
#include "daemon/core/fingerprint.h"

namespace berth::core {
namespace {

// Sizes on the wire and in files are signed in places.
constexpr uint64_t kMaxBlockBytes = std::numeric_limits<int64_t>::max();

absl::Status NoDevice(const absl::AlphaNum& id) {
  return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "device"}, {"id", id}});
}

absl::Status OutOfRange(absl::string_view field, uint64_t value, uint64_t limit) {
  return Refuse(Reason::kOutOfRange, "{field} is {value}, the most is {limit}",
                {{"field", field}, {"value", value}, {"limit", limit}});
}

}  // namespace

void Core::Allocate(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                    const AllocateRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request), request.deadline);
  if (!admitted.has_value()) return;
  const auto refuse = [&](const absl::Status& status) { impl_->Answer(step, admitted->request, status); };
  LogRecord& note = impl_->Note(*admitted, LogAction::kAllocate);
  note.device = request.device;
  note.bytes = request.bytes;
  note.label = request.label;
  note.reservation = request.reservation;

  const bool picks = request.wish.pick != DevicePick::kNone;
  const absl::StatusOr<Device*> found = picks ? impl_->PickDevice(request, admitted->session)
                                              : impl_->FindServing(request.device, request.device_uuid);
  if (!found.ok()) return refuse(found.status());
  Device& device = **found;
  note.device = device.config.ordinal;
  const absl::StatusOr<Bytes> bytes = impl_->Measure(device, request.bytes);
  if (!bytes.ok()) return refuse(bytes.status());
  const absl::StatusOr<ExportKind> kind = impl_->ChooseKind(device, request.kinds);
  if (!kind.ok()) return refuse(kind.status());
  if (!device.worker(LaneOf(*kind)).in_service()) return refuse(impl_->OutOfService(device, LaneOf(*kind)));
  const absl::Status limits = impl_->MayQueue(admitted->channel, admitted->session.tenant);
  if (!limits.ok()) return refuse(limits);
  const uint32_t ordinal = device.config.ordinal;
  if (request.reservation) {
    const absl::Status drawn = impl_->Draw(admitted->session.id, request.reservation, ordinal, *bytes);
    if (!drawn.ok()) return refuse(drawn);
  }
  impl_->Enqueue(step, Waiting{.request = admitted->request,
                               .session = admitted->session.id,
                               .tenant = admitted->session.tenant,
                               .asks = {{.device = ordinal, .bytes = *bytes}},
                               .label = request.label,
                               .kind = *kind,
                               .drawn_from = request.reservation,
                               .patient = request.wait,
                               .deadline = request.deadline});
}

absl::StatusOr<Device*> Core::Impl::FindDevice(uint32_t ordinal, const std::string& uuid) {
  if (!uuid.empty()) {
    for (auto& [found, device] : devices_) {
      if (device.config.uuid == uuid) return &device;
    }
    return NoDevice(uuid);
  }
  if (ordinal >= kMaxDeviceOrdinals) return OutOfRange("device", ordinal, kMaxDeviceOrdinals - 1);
  const auto found = devices_.find(ordinal);
  if (found == devices_.end()) return NoDevice(ordinal);
  return &found->second;
}

absl::StatusOr<Device*> Core::Impl::FindServing(uint32_t ordinal, const std::string& uuid) {
  BERTH_ASSIGN_OR_RETURN(Device* const device, FindDevice(ordinal, uuid));
  if (!device->main.in_service()) return OutOfService(*device, Lane::kMain);
  if (!device->drain_reason.empty()) return Draining(*device);
  return device;
}

absl::StatusOr<Device*> Core::Impl::PickDevice(const AllocateRequest& request, const Session& session) {
  UpdatePlacement();
  BERTH_RETURN_IF_ERROR(placement_.CheckWish(request.wish));
  const Placement::Ask ask{.wish = request.wish};
  // Where none has room in the caller's budgets the first waits for it, or says what it lacks.
  Device* first = nullptr;
  for (const uint32_t ordinal : placement_.Fitting(ask)) {
    Device& device = devices_.at(ordinal);
    BERTH_ASSIGN_OR_RETURN(const Bytes bytes, Measure(device, request.bytes));
    if (first == nullptr) first = &device;
    const absl::StatusOr<ExportKind> kind = ChooseKind(device, request.kinds);
    if (!kind.ok() || !device.worker(LaneOf(*kind)).in_service()) continue;
    const Waiting waiting{.session = session.id,
                          .tenant = session.tenant,
                          .asks = {{.device = ordinal, .bytes = bytes}},
                          .kind = *kind};
    if (Assess(waiting, {}).kind > Shortage::Kind::kComing) continue;
    first = &device;
    break;
  }
  if (first == nullptr) {
    return Refuse(Reason::kNoDevice, "no eligible device: asked {asked}; {lacking}",
                  {{"asked", absl::StrCat("one with ", request.wish.min_free.count(), " bytes free")},
                   {"lacking", placement_.Lacking(ask)}});
  }
  placement_.NoteTurn(first->config.ordinal);
  return first;
}

std::optional<BlockId> Core::Impl::FindWarm(const Waiting& waiting, const RoomAsk& ask) const {
  if (waiting.reserve_for.has_value() || waiting.kind != ExportKind::kFd) return std::nullopt;
  return devices_.at(ask.device).warm.Find(ask.bytes);
}

absl::StatusOr<Bytes> Core::Impl::Measure(const Device& device, Bytes bytes) const {
  if (bytes.count() == 0) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "bytes"}, {"value", 0}, {"limit", 1}});
  }
  const std::optional<Bytes> rounded = bytes.RoundUp(device.config.granularity);
  if (!rounded.has_value() || rounded->count() > kMaxBlockBytes) {
    return OutOfRange("bytes", bytes.count(), kMaxBlockBytes);
  }
  return *rounded;
}

absl::Status Core::Impl::MayQueue(const Channel& channel, const Tenant& tenant) const {
  const Limits& limits = config_.limits;
  const uint64_t blocks = blocks_.owned_count() + room_.size();
  if (blocks >= limits.blocks) {
    return RefuseWithRetry(Reason::kLimit, absl::Seconds(1), "{what}: {current}, limit {limit}",
                           {{"what", "blocks"}, {"current", blocks}, {"limit", limits.blocks}});
  }
  BERTH_RETURN_IF_ERROR(CheckBlockQuota(tenant, blocks_.CountOf(tenant) + room_.CountBlocksFor(tenant)));
  return MayImport(channel);
}

absl::Status Core::Impl::CheckBlockQuota(const Tenant& tenant, uint64_t own) const {
  const std::optional<uint64_t> quota = tenant_use_.QuotaOf(tenant).blocks;
  if (!quota.has_value() || own < *quota) return absl::OkStatus();
  return RefuseWithRetry(Reason::kLimit, absl::Seconds(1), "blocks of the tenant: {current}, limit {limit}",
                         {{"what", "blocks_of_tenant"}, {"current", own}, {"limit", *quota}});
}

absl::Status Core::Impl::MayImport(const Channel& channel) const {
  const uint64_t most = config_.limits.imports_per_channel;
  uint64_t imports = blocks_.CountImportsOf(channel.id);
  // Where it may matter: blocks under way will each be an import, too.
  if (imports + channel.requests.size() >= most) {
    for (const RequestId& request : PendingOf(channel)) {
      const Place& place = pending_.at(request).place;
      imports += std::holds_alternative<RoomQueue*>(place) || std::holds_alternative<BlockId>(place) ||
                         std::holds_alternative<WaitingImport>(place)
                     ? 1
                     : 0;
    }
  }
  if (imports >= most) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}; let go of some",
                  {{"what", "imports_per_channel"}, {"current", imports}, {"limit", most}});
  }
  return MayDeliver(channel);
}

absl::Status Core::Impl::MayDeliver(const Channel& channel) const {
  const uint64_t queued = mailboxes_.Queued(channel.id);
  const uint64_t limit = config_.limits.queued_deliveries_per_channel;
  if (queued < limit) return absl::OkStatus();
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}; the process does not acknowledge its fds",
                {{"what", "queued_deliveries_per_channel"}, {"current", queued}, {"limit", limit}});
}

void Core::Impl::Allocate(const Step& step, const Waiting& waiting) {
  const RoomAsk& ask = waiting.asks.front();
  Device& device = devices_.at(ask.device);
  if (waiting.drawn_from) Unclaim(waiting.session, waiting.tenant, ask.device, ask.bytes);
  if (const std::optional<BlockId> warm = FindWarm(waiting, ask)) {
    Block& block = *blocks_.Find(*warm);
    Apply(step, block, BlockEvent::kTaken);
    Assign(block, waiting);
    if (block.phase == BlockPhase::kLive) FinishMaking(step, block);
    return;
  }
  Block& block = blocks_.Add(NewId<BlockId>(), ask.device, ask.bytes, BlockPhase::kReserved);
  block.export_kind = waiting.kind;
  device.account.Add(block.phase, block.bytes);
  if (block.lane() == Lane::kContext) {
    ++device.context.blocks;
    NoteContextNeed(step, device);
  }
  Assign(block, waiting);
  AskCreate(step, block);
}

void Core::Impl::Assign(Block& block, const Waiting& waiting) {
  blocks_.SetOwner(block, waiting.session, waiting.tenant, waiting.label);
  ChargeTo(block, waiting.session, {waiting.tenant});
  block.request = waiting.request;
  block.drawn_from = waiting.drawn_from;
  pending_.at(waiting.request).place = block.id;
}

void Core::Impl::FinishMaking(const Step& step, Block& block) {
  Device& device = DeviceOf(block);
  const RequestId request = std::exchange(block.request, RequestId());
  block.live_since = step.now;
  NoteGrant(step, LeaseOf(block), request);
  ForEachBudget(block, [](ByteBudget& budget) { budget.NoteAllocated(); });
  const core::Import& import = StartImport(step, block, request, ReadOnly::kNo);
  AllocateResult result = {.block = ViewImported(block, import), .import = import.id};
  if (block.export_kind == ExportKind::kCudaIpc) result.ipc_handle = block.ipc_handle;
  Answer(step, request, Response(std::move(result)));
  if (block.export_kind == ExportKind::kFd) PlanRefill(step, device, block.bytes);
}

void Core::Impl::Trim(const Step& step, Device& device, Bytes bytes) {
  for (const BlockId warm : device.warm.All()) {
    const Bytes left = SaturatingSub(device.account.charged(), device.account.coming());
    const Bytes limit = device.account.limit().value();
    if (left <= limit && bytes <= SaturatingSub(limit, left)) return;
    Abandon(step, *blocks_.Find(warm));
  }
}

void Core::Impl::PlanRefill(const Step& step, Device& device, Bytes bytes) {
  const uint32_t depth = config_.warm_blocks_per_size;
  if (depth == 0 || config_.warm_sizes == 0 || bytes > config_.warm_limit) return;
  for (const BlockId dropped : device.warm.NoteAsked(bytes)) Abandon(step, *blocks_.Find(dropped));
  const absl::Duration delay = config_.warm_refill_delay;
  if (delay == absl::ZeroDuration() || device.warm.Count(bytes) * 4 < depth) {
    return Refill(step, device, bytes);
  }
  device.refill_at = step.now + delay;
  next_refill_ = std::min(next_refill_, device.refill_at);
}

void Core::Impl::RefillDue(const Step& step) {
  if (next_refill_ > step.now) return;
  next_refill_ = absl::InfiniteFuture();
  for (auto& [ordinal, device] : devices_) {
    if (device.refill_at > step.now) {
      next_refill_ = std::min(next_refill_, device.refill_at);
      continue;
    }
    device.refill_at = absl::InfiniteFuture();
    for (const Bytes bytes : device.warm.sizes()) Refill(step, device, bytes);
  }
}

void Core::Impl::Refill(const Step& step, Device& device, Bytes bytes) {
  const bool wanted_elsewhere = room_.CountOf(device.config.ordinal) > 0 || !device.retries.empty();
  if (shutting_down_ || wanted_elsewhere || device.main.state != DeviceState::kReady ||
      !device.takes_leases()) {
    return;
  }
  ByteBudget& account = device.account;
  while (device.warm.Count(bytes) < config_.warm_blocks_per_size &&
         bytes <= SaturatingSub(config_.warm_limit, account.warm()) &&
         account.Judge(bytes) == ByteBudget::Verdict::kNow) {
    Block& block = blocks_.Add(NewId<BlockId>(), device.config.ordinal, bytes, BlockPhase::kWarming);
    account.Add(block.phase, bytes);
    device.warm.Put(bytes, block.generation, block.id, /*made=*/false);
    AskCreate(step, block);
  }
}

}  // namespace berth::core
