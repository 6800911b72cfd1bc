// Allocations: admitted against the budget, served from what was made ahead or made by the worker.

#include <limits>

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"
#include "daemon/core/fingerprint.h"

namespace berth::core {
namespace {

// Longest a worker takes to be started again, as a rule.
constexpr absl::Duration kRebuildRetry = absl::Seconds(1);
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
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  const auto refuse = [&](const absl::Status& status) { impl_->Answer(step, admitted->request, status); };

  const absl::StatusOr<Device*> found = impl_->FindDevice(request);
  if (!found.ok()) return refuse(found.status());
  Device& device = **found;
  const absl::StatusOr<Bytes> bytes = impl_->Measure(device, request);
  if (!bytes.ok()) return refuse(bytes.status());
  if (!device.in_service()) return refuse(impl_->OutOfService(device));
  const absl::Status limits = impl_->MayQueue(device, admitted->channel);
  if (!limits.ok()) return refuse(limits);

  const WaitingAllocation waiting{.request = admitted->request, .bytes = *bytes, .label = request.label};
  if (impl_->TakeWarm(step, device, waiting)) return;
  if (device.account.Judge(*bytes) == DeviceAccount::Verdict::kNever) {
    return refuse(device.account.OverBudget(device.config.ordinal, *bytes));
  }
  const uint64_t limit = impl_->config_.limits.waiting_allocations_per_device;
  if (device.queue.size() >= limit) {
    const Reason reason =
        device.state == DeviceState::kRebuilding ? Reason::kDeviceRebuilding : Reason::kLimit;
    return refuse(RefuseWithRetry(reason, kRebuildRetry,
                                  "device {device}: {current} allocations wait, limit {limit}",
                                  {{"what", "waiting_allocations_per_device"},
                                   {"device", device.config.ordinal},
                                   {"current", device.queue.size()},
                                   {"limit", limit}}));
  }
  impl_->pending_.at(admitted->request).place = &device;
  device.queue.push_back(waiting);
  impl_->Drain(step, device);
}

absl::StatusOr<Device*> Core::Impl::FindDevice(const AllocateRequest& request) {
  if (!request.device_uuid.empty()) {
    for (auto& [ordinal, device] : devices_) {
      if (device.config.uuid == request.device_uuid) return &device;
    }
    return NoDevice(request.device_uuid);
  }
  if (request.device >= kMaxDeviceOrdinals)
    return OutOfRange("device", request.device, kMaxDeviceOrdinals - 1);
  const auto found = devices_.find(request.device);
  if (found == devices_.end()) return NoDevice(request.device);
  return &found->second;
}

absl::StatusOr<Bytes> Core::Impl::Measure(const Device& device, const AllocateRequest& request) const {
  if (request.bytes.count() == 0) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "bytes"}, {"value", 0}, {"limit", 1}});
  }
  const std::optional<Bytes> rounded = request.bytes.RoundUp(device.config.granularity);
  if (!rounded.has_value() || rounded->count() > kMaxBlockBytes) {
    return OutOfRange("bytes", request.bytes.count(), kMaxBlockBytes);
  }
  return *rounded;
}

absl::Status Core::Impl::MayQueue(const Device& device, const Channel& channel) const {
  const Limits& limits = config_.limits;
  const uint64_t blocks = blocks_.owned_count() + device.queue.size();
  if (blocks >= limits.blocks) {
    return RefuseWithRetry(Reason::kLimit, absl::Seconds(1), "{what}: {current}, limit {limit}",
                           {{"what", "blocks"}, {"current", blocks}, {"limit", limits.blocks}});
  }
  return MayImport(channel);
}

absl::Status Core::Impl::MayImport(const Channel& channel) const {
  const uint64_t most = config_.limits.imports_per_channel;
  uint64_t imports = blocks_.CountImportsOf(channel.id);
  // Where it may matter: blocks under way will each be an import, too.
  if (imports + channel.requests.size() >= most) {
    for (const RequestId& request : PendingOf(channel)) {
      const Place& place = pending_.at(request).place;
      imports += std::holds_alternative<Device*>(place) || std::holds_alternative<BlockId>(place) ||
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

void Core::Impl::Drain(const Step& step, Device& device) {
  while (device.state == DeviceState::kReady && !device.queue.empty()) {
    const WaitingAllocation next = device.queue.front();
    switch (device.account.Judge(next.bytes)) {
      case DeviceAccount::Verdict::kAfterReclaim:
        // The warm block that the next one would do with may have come since.
        if (device.warm.Find(next.bytes).has_value()) break;
        Trim(step, device, next.bytes);
        // What was not even asked for is back at once.
        if (device.account.Judge(next.bytes) != DeviceAccount::Verdict::kNow) return;
        continue;
      case DeviceAccount::Verdict::kNow:
        break;
      case DeviceAccount::Verdict::kNever:
        if (device.warm.Find(next.bytes).has_value()) break;
        device.queue.pop_front();
        Answer(step, next.request, device.account.OverBudget(device.config.ordinal, next.bytes));
        continue;
    }
    device.queue.pop_front();
    if (!TakeWarm(step, device, next)) StartMaking(step, device, next);
  }
}

bool Core::Impl::TakeWarm(const Step& step, Device& device, const WaitingAllocation& waiting) {
  const std::optional<BlockId> warm = device.warm.Find(waiting.bytes);
  if (!warm.has_value()) return false;
  Block& block = *blocks_.Find(*warm);
  Apply(step, block, BlockEvent::kTaken);
  Assign(block, waiting);
  if (block.phase == BlockPhase::kLive) FinishMaking(step, block);
  return true;
}

void Core::Impl::StartMaking(const Step& step, Device& device, const WaitingAllocation& waiting) {
  Block& block = blocks_.Add(NewId<BlockId>(), device.config.ordinal, waiting.bytes, BlockPhase::kReserved);
  device.account.Add(block.phase, block.bytes);
  Assign(block, waiting);
  AskCreate(step, block);
}

void Core::Impl::Assign(Block& block, const WaitingAllocation& waiting) {
  const Session& session = *sessions_.Find(sessions_.FindChannel(waiting.request.channel)->session);
  blocks_.SetOwner(block, session.id, session.tenant, waiting.label);
  block.request = waiting.request;
  pending_.at(waiting.request).place = block.id;
}

void Core::Impl::FinishMaking(const Step& step, Block& block) {
  Device& device = DeviceOf(block);
  const RequestId request = std::exchange(block.request, RequestId());
  block.live_since = step.now;
  const core::Import& import = StartImport(step, block, request, ReadOnly::kNo);
  Answer(step, request, Response(AllocateResult{.block = ViewImported(block, import), .import = import.id}));
  PlanRefill(step, device, block.bytes);
}

void Core::Impl::Trim(const Step& step, Device& device, Bytes bytes) {
  for (const BlockId warm : device.warm.All()) {
    const Bytes left = SaturatingSub(device.account.charged(), device.account.coming());
    if (left <= device.account.budget() && bytes <= SaturatingSub(device.account.budget(), left)) return;
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
}

void Core::Impl::RefillDue(const Step& step) {
  for (auto& [ordinal, device] : devices_) {
    if (device.refill_at > step.now) continue;
    device.refill_at = absl::InfiniteFuture();
    for (const Bytes bytes : device.warm.sizes()) Refill(step, device, bytes);
  }
}

void Core::Impl::Refill(const Step& step, Device& device, Bytes bytes) {
  const bool wanted_elsewhere = !device.queue.empty() || !device.retries.empty();
  if (shutting_down_ || wanted_elsewhere || device.state != DeviceState::kReady) return;
  DeviceAccount& account = device.account;
  while (device.warm.Count(bytes) < config_.warm_blocks_per_size &&
         bytes <= SaturatingSub(config_.warm_limit, account.warm()) &&
         account.Judge(bytes) == DeviceAccount::Verdict::kNow) {
    Block& block = blocks_.Add(NewId<BlockId>(), device.config.ordinal, bytes, BlockPhase::kWarming);
    account.Add(block.phase, bytes);
    device.warm.Put(bytes, block.generation, block.id, /*made=*/false);
    AskCreate(step, block);
  }
}

absl::StatusOr<DeviceView> Core::SetDeviceBudget(absl::Time now, uint32_t device, Bytes budget,
                                                 Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(device);
  if (found == impl_->devices_.end()) return NoDevice(device);
  Device& changed = found->second;
  if (budget > changed.config.total) {
    return OutOfRange("budget_bytes", budget.count(), changed.config.total.count());
  }
  changed.account.set_budget(budget);
  impl_->Emit(step, DevicesChanged());
  // What nobody holds goes first.
  impl_->Trim(step, changed, Bytes(0));
  impl_->Drain(step, changed);
  return impl_->ViewDevice(changed);
}

}  // namespace berth::core
