#include "daemon/core/memory/byte_queue.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/requests/wait_weight.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

// Usual upper bound of a worker's restart.
constexpr absl::Duration kRebuildRetry = absl::Seconds(1);
// Longest time for which bytes stay reserved for a process that must retry its call. A running process retries within a
// millisecond; a loaded machine may delay it by a few hundred milliseconds.
constexpr absl::Duration kInvitation = absl::Milliseconds(500);

}  // namespace

ByteQueue::ByteQueue(Managers& core)
    : core_(core),
      byte_queue_(&core.journal, {.passes_before_reserve = core.config.limits.passes_before_reserve,
                                  .reserve_time = core.config.limits.longest_reserve,
                                  .invitation_time = kInvitation,
                                  .places_per_device = core.config.limits.waiting_allocations_per_device,
                                  .operator_places_per_device = core.config.limits.operator_allocations_per_device}) {}

void ByteQueue::Enqueue(StepContext& step, Waiting waiting) {
  const RequestId request = waiting.request;
  const auto refuse = [&](const absl::Status& status) {
    core_.reservations.ReturnDrawn(step, waiting);
    core_.requests.Answer(step, request, status);
  };
  const Shortage shortage = Assess(waiting, {});
  if (shortage.kind == Shortage::Kind::kTooLarge || (shortage.kind == Shortage::Kind::kHeld && !waiting.patient)) {
    return refuse(RefuseOver(shortage));
  }
  if (const absl::Status may = MayWait(waiting, shortage); !may.ok()) return refuse(may);
  core_.requests.SetPlace(request, this);
  Device& first = core_.devices.At(waiting.asks.front().device);
  const bool needs_context = WorkerKindOf(waiting.kind) == WorkerKind::kContext;
  byte_queue_.Push(std::move(waiting));
  core_.requests.MarkWaiting(request);
  if (needs_context) core_.workers.StartContextIfWanted(step, first);
  step.MarkCapacityChanged();
}

absl::Status ByteQueue::MayWait(const Waiting& waiting, const Shortage& shortage) const {
  // The request passes the queue without waiting.
  if (shortage.kind == Shortage::Kind::kNone && MayServe(waiting)) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(core_.requests.CheckMayWait(waiting.request, WaitWeight(waiting)));
  for (const ByteRequest& ask : waiting.asks) {
    const absl::Status full = byte_queue_.CheckPlace(ask.device, waiting.claimant());
    if (full.ok()) continue;
    const Worker& worker = core_.devices.At(ask.device).worker(WorkerKindOf(waiting.kind));
    const bool rebuilding = worker.state == DeviceState::kRebuilding || worker.state == DeviceState::kProbation;
    if (!rebuilding) return full;
    return RefuseWithRetry(
        Reason::kDeviceRebuilding, kRebuildRetry, "device {device} is rebuilding: {why}",
        {{"what", "waiting_allocations_per_device"}, {"device", ask.device}, {"why", full.message()}});
  }
  return absl::OkStatus();
}

void ByteQueue::ServeByteQueue(StepContext& step) {
  byte_queue_.Wake();
  // A refused request may free capacity for earlier requests.
  while (std::exchange(step.dirty.bytes, false) && byte_queue_.size() > 0) Drain(step);
}

void ByteQueue::Drain(StepContext& step) {
  ReservedBudgets reserved;
  uint64_t number = 0;
  while (Waiting* const waiting = byte_queue_.NextAwake(number)) {
    number = waiting->number;
    const RequestId request = waiting->request;
    Consider(step, *waiting, &reserved);
    const auto pending = core_.requests.pending().find(request);
    if (pending != core_.requests.pending().end() && pending->second.takes_up) {
      core_.permits.Watch(step, request.channel);
    }
    byte_queue_.Wake();
  }
}

void ByteQueue::Consider(StepContext& step, Waiting& waiting, ReservedBudgets* reserved) {
  if (core_.requests.IsSkipped(waiting.request)) {
    if (!waiting.invited_since.has_value()) return;
    const std::vector<ByteBudget*> budgets = BudgetsOf(waiting);
    reserved->insert(budgets.begin(), budgets.end());
    return;
  }
  Shortage shortage = Assess(waiting, *reserved);
  if (shortage.kind == Shortage::Kind::kComing && MayServe(waiting)) {
    TrimFor(step, waiting, shortage);
    // Trimmed blocks that were still being created return their bytes at once.
    shortage = Assess(waiting, *reserved);
  }
  if (shortage.kind == Shortage::Kind::kNone) {
    if (!MayServe(waiting)) {
      // A detached request withholds its bytes from all later requests.
      const std::vector<ByteBudget*> budgets = BudgetsOf(waiting);
      if (!IsAttended(waiting)) reserved->insert(budgets.begin(), budgets.end());
      return;
    }
    // The tenant's quota may have been lowered since the request arrived.
    const absl::Status quota =
        waiting.reserve_for.has_value()
            ? absl::OkStatus()
            : core_.allocations.CheckBlockQuota(waiting.tenant, core_.blocks.table().CountOf(waiting.tenant));
    if (!quota.ok()) return TurnAway(step, waiting.request, quota);
    if (MustCallAgain(step, waiting)) {
      byte_queue_.Invite(waiting, step.now);
      core_.requests.Skip(step, waiting.request);
      return Consider(step, waiting, reserved);
    }
    RecordPasses(step, waiting, reserved);
    return Serve(step, waiting.request);
  }
  const bool held = shortage.kind == Shortage::Kind::kHeld;
  if (shortage.kind == Shortage::Kind::kTooLarge || (held && !waiting.patient)) {
    return TurnAway(step, waiting.request, RefuseOver(shortage));
  }
  // Later requests wait, too: at most for the restart of a worker, or for the longest reservation of capacity.
  if (!held || byte_queue_.Reserves(waiting)) reserved->insert(shortage.lacking.begin(), shortage.lacking.end());
  if (!waiting.patient || byte_queue_.Reserves(waiting)) return;
  if (held) {
    byte_queue_.Park(waiting, shortage.held, BudgetsOf(waiting));
  } else if (shortage.lacking.empty() && byte_queue_.IsReservedFrom(waiting, *shortage.reserved)) {
    byte_queue_.Park(waiting, shortage.reserved, BudgetsOf(waiting));
  }
}

ReservedBudgets ByteQueue::Reserved() {
  ReservedBudgets reserved;
  byte_queue_.ForEachReserved([&](const Waiting& waiting) {
    const Shortage shortage = Assess(waiting, {});
    reserved.insert(shortage.lacking.begin(), shortage.lacking.end());
  });
  byte_queue_.ForEachInvited([&](const Waiting& waiting) {
    const std::vector<ByteBudget*> budgets = BudgetsOf(waiting);
    reserved.insert(budgets.begin(), budgets.end());
  });
  return reserved;
}

std::vector<ByteBudget*> ByteQueue::BudgetsOf(const Waiting& waiting) {
  std::vector<ByteBudget*> budgets;
  for (const ByteRequest& ask : waiting.asks) {
    for (const LayerBudget& layer : core_.budgets.LayersOf(ask.device, waiting.session, waiting.tenant)) {
      budgets.push_back(layer.budget);
    }
  }
  return budgets;
}

void ByteQueue::RecordPasses(StepContext& step, const Waiting& waiting, ReservedBudgets* reserved) {
  for (const ByteBudget* const budget : BudgetsOf(waiting)) {
    const Waiting* const passed = byte_queue_.RecordGrant(*budget, step.now);
    if (passed == nullptr || passed->number > waiting.number) continue;
    // From now on the bytes that the passed request lacks are withheld from later requests.
    const Shortage shortage = Assess(*passed, {});
    reserved->insert(shortage.lacking.begin(), shortage.lacking.end());
  }
}

Shortage ByteQueue::Assess(const Waiting& waiting, const ReservedBudgets& reserved) {
  Shortage shortage;
  // Bytes drawn from a reservation are charged already.
  if (waiting.drawn_from) return shortage;
  const auto mark = [&](Shortage::Kind kind, const LayerBudget& layer, const ByteRequest& ask) {
    if (kind <= shortage.kind) return;
    shortage.kind = kind;
    shortage.worst = layer;
    shortage.ask = ask;
  };
  for (const ByteRequest& ask : waiting.asks) {
    const bool warm = core_.allocations.FindWarm(waiting, ask).has_value();
    for (const LayerBudget& layer : core_.budgets.LayersOf(ask.device, waiting.session, waiting.tenant)) {
      // A warm block is already charged to its device.
      if (warm && layer.layer == Layer::kDevice) continue;
      switch (layer.budget->Judge(ask.bytes)) {
        case ByteBudget::Verdict::kNow:
          if (!reserved.contains(layer.budget)) continue;
          shortage.reserved = layer.budget;
          mark(Shortage::Kind::kComing, layer, ask);
          continue;
        case ByteBudget::Verdict::kAfterReclaim:
          mark(Shortage::Kind::kComing, layer, ask);
          break;
        case ByteBudget::Verdict::kNever:
          shortage.held = layer.budget;
          mark(Shortage::Kind::kHeld, layer, ask);
          break;
        case ByteBudget::Verdict::kTooLarge:
          mark(Shortage::Kind::kTooLarge, layer, ask);
          break;
      }
      shortage.lacking.push_back(layer.budget);
    }
  }
  return shortage;
}

bool ByteQueue::IsAttended(const Waiting& waiting) const {
  const auto pending = core_.requests.pending().find(waiting.request);
  return pending != core_.requests.pending().end() && pending->second.call;
}

bool ByteQueue::MustCallAgain(const StepContext& step, const Waiting& waiting) const {
  const Pending& pending = core_.requests.pending().at(waiting.request);
  return pending.takes_up && pending.called < step.now;
}

void ByteQueue::SkipStopped(StepContext& step, const RequestId& request) {
  byte_queue_.Skip(request);
  core_.requests.Skip(step, request);
  step.MarkCapacityChanged();
}

bool ByteQueue::IsInvited(const RequestId& request) {
  const Waiting* const waiting = byte_queue_.Find(request);
  return waiting != nullptr && waiting->invited_since.has_value();
}

bool ByteQueue::MayServe(const Waiting& waiting) const {
  if (!IsAttended(waiting)) return false;
  for (const ByteRequest& ask : waiting.asks) {
    if (core_.devices.At(ask.device).main.state == DeviceState::kProbation) return false;
  }
  if (waiting.reserve_for.has_value()) return true;
  const ByteRequest& ask = waiting.asks.front();
  const Worker& worker = core_.devices.At(ask.device).worker(WorkerKindOf(waiting.kind));
  return worker.state == DeviceState::kReady || core_.allocations.FindWarm(waiting, ask).has_value();
}

void ByteQueue::Serve(StepContext& step, const RequestId& request) {
  const Waiting served = byte_queue_.Take(request);
  if (served.reserve_for.has_value()) {
    core_.reservations.MakeReservation(step, served);
  } else {
    core_.allocations.TakeOrMake(step, served);
  }
}

void ByteQueue::TrimFor(StepContext& step, const Waiting& waiting, const Shortage& shortage) {
  for (const ByteRequest& ask : waiting.asks) {
    Device& device = core_.devices.At(ask.device);
    const auto lacks = std::find(shortage.lacking.begin(), shortage.lacking.end(), &device.account);
    if (lacks != shortage.lacking.end()) core_.allocations.Trim(step, device, ask.bytes);
  }
}

absl::Status ByteQueue::RefuseOver(const Shortage& shortage) {
  shortage.worst.budget->RecordRefused();
  return shortage.worst.budget->OverBudget(LayerName(shortage.worst.layer), shortage.ask.device, shortage.ask.bytes);
}

void ByteQueue::Expire(StepContext& step) {
  if (byte_queue_.next_deadline() > step.now && core_.reservations.table().next_deadline() > step.now) return;
  for (const Waiting& expired : byte_queue_.TakeExpired(step.now)) {
    const Shortage shortage = Assess(expired, {});
    core_.reservations.ReturnDrawn(step, expired);
    const ByteRequest& ask = shortage.worst.budget == nullptr ? expired.asks.front() : shortage.ask;
    const ByteBudget& budget =
        shortage.worst.budget == nullptr ? core_.devices.At(ask.device).account : *shortage.worst.budget;
    const Bytes limit = budget.limit().value_or(Bytes(UINT64_MAX));
    core_.requests.Answer(
        step, expired.request,
        Refuse(Reason::kWaitTimedOut,
               "{layer} budget on device {device}: the wait for {requested} bytes timed out; current {current}, "
               "remaining {remaining}, limit {limit}",
               {{"layer", LayerName(shortage.worst.layer)},
                {"device", ask.device},
                {"requested", ask.bytes.count()},
                {"current", budget.held().count()},
                {"remaining", SaturatingSub(limit, budget.held()).count()},
                {"limit", limit.count()}}));
  }
  byte_queue_.EndReserves(step.now);
  byte_queue_.EndInvitations(step.now);
  core_.reservations.DropExpired(step);
  step.MarkCapacityChanged();
}

void ByteQueue::TurnAway(StepContext& step, const RequestId& request, const absl::Status& why) {
  const Waiting waiting = byte_queue_.Take(request);
  core_.reservations.ReturnDrawn(step, waiting);
  core_.requests.Answer(step, waiting.request, why);
}

bool ByteQueue::SetDeadline(const RequestId& request, const WaitTicket&, absl::Time deadline) {
  byte_queue_.SetDeadline(request, deadline);
  return true;
}

void ByteQueue::Leave(StepContext& step, const RequestId& request, const WaitTicket&) {
  core_.reservations.ReturnDrawn(step, byte_queue_.Take(request));
  step.MarkCapacityChanged();
}

uint64_t ByteQueue::Weigh(const RequestId& request, const WaitTicket&) {
  return WaitWeight(*byte_queue_.Find(request));
}

absl::Time ByteQueue::next_deadline() const {
  return std::min(byte_queue_.next_deadline(), core_.reservations.table().next_deadline());
}

void ByteQueue::Reattach(StepContext& step, const RequestId& request, const WaitTicket&) {
  byte_queue_.EndInvitation(request);
  if (core_.requests.pending().at(request).takes_up) core_.permits.Watch(step, request.channel);
  step.MarkCapacityChanged();
}

// ---- Ledger records of requests that wait for bytes, and the check of them -----------------------------------

void ByteQueue::ReadByteWaiter(uint64_t number, ArchiveReader& archive) {
  Waiting waiting;
  archive(waiting);
  waiting.number = number;
  const bool known = std::all_of(waiting.asks.begin(), waiting.asks.end(),
                                 [this](const ByteRequest& ask) { return core_.devices.Has(ask.device); });
  // A request for a block names one device.
  const bool counted = waiting.reserve_for.has_value() || waiting.asks.size() == 1;
  const auto pending = core_.requests.pending().find(waiting.request);
  if (archive.failed() || !known || !counted || pending == core_.requests.pending().end() ||
      core_.sessions.table().Find(waiting.session) == nullptr || !byte_queue_.Restore(waiting)) {
    return archive.Fail();
  }
  core_.requests.SetPlace(waiting.request, this);
  core_.requests.MarkWaiting(pending->first);
  for (const ByteRequest& ask : waiting.asks) {
    // Calls LayersOf() for every waiter: it creates the accounts that a later judgement reads.
    for (const LayerBudget& layer : core_.budgets.LayersOf(ask.device, waiting.session, waiting.tenant)) {
      if (waiting.drawn_from) layer.budget->Claim(ask.bytes);
    }
  }
}

absl::Status ByteQueue::CheckByteQueue() const {
  for (const auto& [tenant, account] : core_.budgets.tenants()) {
    uint64_t sessions = 0;
    for (const Session* const session : core_.sessions.table().List())
      sessions += session->tenant.account() == tenant ? 1 : 0;
    if (sessions != account.sessions) return Broken("a tenant's sessions are miscounted");
  }
  absl::Status status = byte_queue_.CheckInvariants();
  bool first = true;
  byte_queue_.ForEach([&](const Waiting& waiting) {
    if (status.ok()) status = CheckWaiting(waiting, std::exchange(first, false));
  });
  return status;
}

absl::Status ByteQueue::CheckWaiting(const Waiting& waiting, bool first) const {
  const auto pending = core_.requests.pending().find(waiting.request);
  if (pending == core_.requests.pending().end() || pending->second.place != this) {
    return Broken("a request that waits for bytes is not pending for bytes");
  }
  bool coming = false;
  bool fits = true;
  for (const ByteRequest& ask : waiting.asks) {
    const Device& device = core_.devices.At(ask.device);
    const ByteBudget& account = device.account;
    fits = fits && account.Judge(ask.bytes) == ByteBudget::Verdict::kNow;
    const auto shares = core_.budgets.tenants().at(waiting.tenant).budgets.find(ask.device);
    const auto own = core_.sessions.table().Find(waiting.session)->budgets.find(ask.device);
    fits = fits && shares->second.Judge(ask.bytes) == ByteBudget::Verdict::kNow;
    fits = fits && own->second.Judge(ask.bytes) == ByteBudget::Verdict::kNow;
    // A device on probation serves nothing, whatever the state of its workers.
    coming = coming || account.coming().count() > 0 || device.main.state == DeviceState::kProbation ||
             device.worker(WorkerKindOf(waiting.kind)).state != DeviceState::kReady;
    if (WorkerKindOf(waiting.kind) == WorkerKind::kContext && device.context.state == DeviceState::kIdle) {
      return Broken("a request waits for a context worker that was not started");
    }
  }
  // The first waiter has no waiter ahead of it.
  if (first && fits && MayServe(waiting)) return Broken("a request waits for bytes that are free");
  if (first && !waiting.patient && !coming && IsAttended(waiting)) {
    return Broken("a request waits for bytes without need");
  }
  return absl::OkStatus();
}

}  // namespace berth::core
