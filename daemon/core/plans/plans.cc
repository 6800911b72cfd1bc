#include "daemon/core/plans/plans.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/plans/plan_table.h"
#include "daemon/core/plans/plan_transaction.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

absl::Status NoPlan(PlanId plan) {
  return Refuse(Reason::kNotFound, "no {kind} {id} in this session", {{"kind", "plan"}, {"id", plan.value()}});
}

// Leases granted for a draft: permits in order, and reservation id 0 if no bytes were requested.
std::vector<AcquireResult> PermitsIn(const Response& granted) {
  const auto* const gang = std::get_if<GangResult>(&granted);
  return gang == nullptr ? std::vector<AcquireResult>() : gang->permits;
}

ReservationId ReservationIn(const Response& granted) {
  if (const auto* const reserved = std::get_if<ReserveResult>(&granted)) return reserved->reservation.id;
  const auto* const gang = std::get_if<GangResult>(&granted);
  return gang != nullptr && gang->reservation.has_value() ? gang->reservation->id : ReservationId();
}

// Returns a device used by the plan that has changed; null if there is none.
template <typename WhyStale>
const PlanDevice* FindStale(const PlanLayout& layout, const WhyStale& why) {
  const auto stale = [&](const PlanDevice& device) { return device.units > 0 && why(device) != PlanStale::kCurrent; };
  const auto found = std::find_if(layout.devices.begin(), layout.devices.end(), stale);
  return found == layout.devices.end() ? nullptr : &*found;
}

}  // namespace

Plans::Plans(Managers& core)
    : core_(core), plans_(&core.journal, core.config.limits.plans, core.config.limits.operator_plans) {}

void Plans::MakePlan(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                     const PlanRequest& request) {
  // Until the deadline a plan waits only for permits.
  const absl::Time deadline = request.pool.empty() ? absl::InfiniteFuture() : request.deadline;
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request), deadline);
  if (admitted.has_value()) PlanTransaction(core_, &step).Make(*admitted, request);
}

void Plans::Replan(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                   const ReplanRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (admitted.has_value()) PlanTransaction(core_, &step).Replan(*admitted, request);
}

void Plans::ReleasePlan(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag, PlanId plan) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(plan));
  if (admitted.has_value()) PlanTransaction(core_, &step).Release(*admitted, plan);
}

Page<PlanView> Plans::ListPlans(const Caller& caller, const PageRequest& page) const {
  PageBuilder<PlanView> builder(page);
  plans_.ForEachAfter(page.after, [&](const Plan& plan) {
    if (!caller.sees_all() && plan.layout->tenant != caller.tenant) return true;
    if (builder.Full()) return false;
    builder.Add(plan.number, plan.layout->devices.size() + plan.layout->tiles.size(), PlanTransaction::View(plan));
    return true;
  });
  return builder.Build();
}

absl::StatusOr<PlanView> Plans::GetPlan(const Caller& caller, PlanId plan) const {
  const Plan* const found = plans_.Find(plan);
  if (found == nullptr || (!caller.sees_all() && found->layout->tenant != caller.tenant)) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "plan"}, {"id", plan.value()}});
  }
  return PlanTransaction::View(*found);
}

void Plans::EndAllOf(StepContext& step, SessionId session) {
  for (const Plan* const plan : plans_.OfSession(session)) {
    core_.leases.RecordEnd(step.now, core_.leases.LeaseOf(*plan), LeaseEnd::kSessionEnd);
    plans_.Erase(*plan);
  }
}

bool Plans::WriteRecord(const RecordKey& key, ArchiveWriter& archive) const {
  const Plan* const plan = plans_.Find(PlanId(key.id));
  if (plan == nullptr) return false;
  archive(*plan);
  return true;
}

void Plans::ReadRecord(const RecordKey& key, ArchiveReader& archive) {
  Plan plan;
  archive(plan);
  if (archive.failed() || plan.id() != PlanId(key.id)) return archive.Fail();
  const Session* const session = core_.sessions.table().Find(plan.session());
  if (session == nullptr) return archive.Fail();
  plan.claimant = session->claimant();
  if (!plans_.Restore(std::move(plan))) archive.Fail();
}

bool Undo(const UndoStep& undo, const PlanResult& result) {
  // A re-plan stays: the resources of the earlier revision may be gone.
  const Plan* const plan = result.from_revision == 0 ? undo.core.plans.table().Find(result.layout->id) : nullptr;
  if (plan == nullptr) return false;
  PlanTransaction(undo.core, &undo.step).End(*plan, undo.end);
  return true;
}

// ---- plan_table.h --------------------------------------------------------------------------------------------

const Plan& PlanTable::Add(std::shared_ptr<const PlanLayout> layout, const Claimant& claimant) {
  const Plan* const entry =
      Insert(Plan{.number = ++last_number_, .layout = std::move(layout), .claimant = claimant});
  BERTH_INVARIANT(entry != nullptr);
  journal_->Touch(RecordKind::kCounters);
  Mark(entry->id());
  return *entry;
}

bool PlanTable::Restore(Plan plan) {
  return plan.number != 0 && plan.number <= last_number_ && Insert(std::move(plan)) != nullptr;
}

const Plan* PlanTable::Insert(Plan&& plan) {
  // Most plans have the greatest number.
  const size_t before = entries_.size();
  const auto at = entries_.emplace_hint(entries_.end(), plan.number, nullptr);
  const bool fresh = entries_.size() != before;
  if (!fresh) return nullptr;
  at->second = std::make_unique<Plan>(std::move(plan));
  Plan& entry = *at->second;
  places_.Take(entry.claimant);
  auto& own = by_session_[entry.session()];
  own.insert(own.end(), entry.number);
  return by_id_.emplace(entry.id(), &entry).second ? &entry : nullptr;
}

void PlanTable::Erase(const Plan& plan) {
  // The number lives in the record that is erased.
  const uint64_t number = plan.number;
  Mark(plan.id());
  places_.Give(plan.claimant);
  by_id_.erase(plan.id());
  const auto of_session = by_session_.find(plan.session());
  of_session->second.erase(number);
  if (of_session->second.empty()) by_session_.erase(of_session);
  entries_.erase(number);
}

const Plan* PlanTable::Find(PlanId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

Plan& PlanTable::Change(const Plan& plan) {
  Mark(plan.id());
  return *by_id_.at(plan.id());
}

std::vector<const Plan*> PlanTable::OfSession(SessionId session) const {
  std::vector<const Plan*> rows;
  const auto found = by_session_.find(session);
  if (found == by_session_.end()) return rows;
  for (const uint64_t number : found->second) rows.push_back(entries_.at(number).get());
  return rows;
}

void PlanTable::ForEachAfter(uint64_t number, absl::FunctionRef<bool(const Plan&)> visit) const {
  for (auto it = entries_.upper_bound(number); it != entries_.end() && visit(*it->second); ++it) {
  }
}

absl::Status PlanTable::CheckInvariants() const {
  SharedCount places("plans", SharedCount::kUnlimited, SharedCount::kUnlimited);
  for (const auto& [number, entry] : entries_) places.Take(entry->claimant);
  if (!(places == places_)) return absl::InternalError("the plans of a user are miscounted");
  size_t listed = 0;
  for (const auto& [session, numbers] : by_session_) listed += numbers.size();
  if (by_id_.size() != entries_.size() || listed != entries_.size()) {
    return absl::InternalError("a plan and its indexes differ");
  }
  for (const auto& [number, entry] : entries_) {
    const PlanLayout& layout = *entry->layout;
    const auto broken = [&](absl::string_view what) {
      return absl::InternalError(absl::StrCat("plan ", layout.id.value(), ": ", what));
    };
    std::vector<uint64_t> units(layout.devices.size(), 0);
    uint64_t at = 0;
    for (const Tile& tile : layout.tiles) {
      if (tile.device >= units.size()) return broken("a tile has no device");
      if (tile.begin != at || tile.end <= tile.begin) return broken("its tiles are not contiguous");
      units[tile.device] += tile.units();
      at = tile.end;
    }
    if (at != layout.asked.units) return broken("its tiles do not cover its units");
    for (size_t i = 0; i < units.size(); ++i) {
      if (units[i] != layout.devices[i].units) return broken("a device's share differs from its tiles");
      if ((units[i] == 0) != (layout.devices[i].left != PlanDevice::Left::kNone)) {
        return broken("a device without units has no reason, or a device with units has one");
      }
      if (units[i] == 0 && layout.devices[i].permit)
        return broken("it has a permit for a device without units");
    }
  }
  return absl::OkStatus();
}

// ---- plan_transaction.h --------------------------------------------------------------------------------------

absl::StatusOr<const Plan*> PlanTransaction::Find(SessionId session, PlanId plan) const {
  const Plan* const found = core_.plans.plans_.Find(plan);
  if (found == nullptr || found->session() != session) return NoPlan(plan);
  return found;
}

absl::Status PlanTransaction::MayPlan(const Session& owner) const {
  const SessionId session = owner.id;
  BERTH_RETURN_IF_ERROR(core_.plans.plans_.places().Check(owner.claimant()));
  uint64_t current = core_.plans.plans_.CountOf(session);
  const uint64_t limit = core_.config.limits.plans_per_session;
  if (current + core_.requests.pending().size() < limit) return absl::OkStatus();
  // Counts future plans, too, which wait for their leases.
  for (const ChannelId channel : owner.channels) {
    for (const RequestId& request : core_.requests.PendingOf(*core_.sessions.table().FindChannel(channel))) {
      const auto pending = core_.requests.pending().find(request);
      current += pending != core_.requests.pending().end() && pending->second.plan != nullptr ? 1 : 0;
    }
  }
  if (current < limit) return absl::OkStatus();
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                {{"what", "plans_per_session"}, {"current", current}, {"limit", limit}});
}

void PlanTransaction::Make(const Admitted& admitted, const PlanRequest& request) {
  const absl::Status may = MayPlan(admitted.session);
  if (!may.ok()) return core_.requests.Answer(*step_, admitted.request, may);
  PlanDraft draft;
  const absl::Status drafted = Draft(admitted.session, request, &draft);
  if (!drafted.ok()) return core_.requests.Answer(*step_, admitted.request, drafted);
  Take(admitted, std::move(draft));
}

void PlanTransaction::Replan(const Admitted& admitted, const ReplanRequest& request) {
  const absl::StatusOr<const Plan*> plan = Find(admitted.session.id, request.plan);
  if (!plan.ok()) return core_.requests.Answer(*step_, admitted.request, plan.status());
  PlanDraft draft;
  const absl::Status drafted = Redraft(admitted.session, **plan, request, &draft);
  if (!drafted.ok()) return core_.requests.Answer(*step_, admitted.request, drafted);
  Take(admitted, std::move(draft));
}

void PlanTransaction::Release(const Admitted& admitted, PlanId plan) {
  const absl::StatusOr<const Plan*> found = Find(admitted.session.id, plan);
  if (!found.ok()) return core_.requests.Answer(*step_, admitted.request, found.status());
  End(**found);
  core_.requests.Answer(*step_, admitted.request, Response(ReleasePlanResult()));
}

void PlanTransaction::Take(const Admitted& admitted, PlanDraft&& draft) {
  if (draft.leases.members.empty() && draft.leases.reserve.empty()) {
    return core_.requests.Answer(*step_, admitted.request, Finish(admitted.request, draft, Response(PlanResult())));
  }
  const GangRequest leases = draft.leases;
  core_.requests.At(admitted.request).plan = std::make_unique<PlanDraft>(std::move(draft));
  if (!leases.members.empty()) return core_.permits.StartGang(*step_, admitted, leases);
  absl::StatusOr<std::vector<ByteRequest>> asks = core_.reservations.MeasureAll({.items = leases.reserve});
  if (!asks.ok()) return core_.requests.Answer(*step_, admitted.request, asks.status());
  if (const absl::Status may = core_.reservations.MayReserve(admitted.session.id); !may.ok()) {
    return core_.requests.Answer(*step_, admitted.request, may);
  }
  LogRecord& log_record = core_.memory_log.AddLogRecord(admitted, LogAction::kReserve);
  log_record.label = leases.label;
  log_record.device = asks->front().device;
  for (const ByteRequest& ask : *asks)
    log_record.bytes = CheckedAdd(log_record.bytes, ask.bytes).value_or(log_record.bytes);
  core_.byte_queue.Enqueue(*step_, Waiting{.request = admitted.request,
                                           .session = admitted.session.id,
                                           .tenant = admitted.session.tenant,
                                           .asks = *std::move(asks),
                                           .label = leases.label,
                                           .reserve_for = leases.reserve_for,
                                           .of_operator = admitted.session.of_operator});
}

absl::StatusOr<Response> PlanTransaction::Finish(const RequestId& request, PlanDraft& draft, const Response& granted) {
  PlanLayout& layout = *draft.layout;
  layout.made = step_->now;
  const std::vector<AcquireResult> permits = PermitsIn(granted);
  for (size_t i = 0; i < permits.size(); ++i) {
    PlanDevice& device = layout.devices[draft.permits[i]];
    device.permit = permits[i].permit;
    device.acquisition = permits[i].acquisition;
    device.holder_key = i == 0 ? draft.leases.holder_key : absl::StrCat(draft.leases.holder_key, "#", i + 1);
  }
  if (draft.from_revision != 0) return FinishReplan(draft, ReservationIn(granted));
  layout.since = step_->now;
  layout.reservation = ReservationIn(granted);
  const Plan& plan = core_.plans.plans_.Add(draft.layout, core_.sessions.table().Find(layout.session)->claimant());
  core_.leases.RecordGrant(*step_, core_.leases.LeaseOf(plan), request);
  // The plan was made in the step that drafted it.
  if (std::holds_alternative<PlanResult>(granted)) return Response(PlanResult{.layout = draft.layout});
  // Devices may have been rebuilt while the plan waited; none of its data was there yet.
  for (PlanDevice& device : layout.devices) {
    device.generation = core_.devices.At(device.ordinal).main.generation;
  }
  const auto why = [this](const PlanDevice& device) { return WhyStale(device); };
  if (const PlanDevice* const stale = FindStale(layout, why)) MarkStale(plan, why(*stale), stale->ordinal);
  return Response(PlanResult{.layout = draft.layout});
}

absl::StatusOr<Response> PlanTransaction::FinishReplan(PlanDraft& draft, ReservationId fresh) {
  PlanLayout& layout = *draft.layout;
  const absl::StatusOr<const Plan*> found = Find(layout.session, layout.id);
  if (!found.ok() || (*found)->layout->revision != draft.from_revision) {
    // A re-plan waits only for bytes.
    if (Reservation* const taken = core_.reservations.Find(fresh)) {
      core_.reservations.DropReservation(*step_, *taken, LogCause::kForgotten);
    }
    BERTH_RETURN_IF_ERROR(found.status());
    return Refuse(Reason::kStale, "plan {plan} is stale: {why}",
                  {{"plan", layout.id.value()}, {"why", "another request has re-planned it"}});
  }
  Plan& plan = core_.plans.plans_.Change(**found);
  MergeReservation(plan, fresh, &layout);
  const std::shared_ptr<const PlanLayout> before = std::exchange(plan.layout, draft.layout);
  plan.stale = PlanStale::kCurrent;
  const auto why = [this](const PlanDevice& device) { return WhyStale(device); };
  if (const PlanDevice* const stale = FindStale(layout, why)) MarkStale(plan, why(*stale), stale->ordinal);
  for (const PlanDevice& had : before->devices) {
    if (!had.permit) continue;
    const bool stays = std::any_of(layout.devices.begin(), layout.devices.end(),
                                   [&](const PlanDevice& device) { return device.permit == had.permit; });
    // Ignores a permit that was revoked or released separately.
    if (!stays) core_.permits.ReleaseAcquisition(*step_, layout.session, had.acquisition).IgnoreError();
  }
  return Response(
      PlanResult{.layout = plan.layout, .from_revision = draft.from_revision, .moves = std::move(draft.moves)});
}

void PlanTransaction::MergeReservation(const Plan& plan, ReservationId fresh, PlanLayout* layout) {
  Reservation* const added = core_.reservations.Find(fresh);
  Reservation* const own = core_.reservations.Find(plan.layout->reservation);
  if (own == nullptr) {
    layout->reservation = fresh;
    return;
  }
  const auto log = [&](LogAction action, const Reservation& of, uint32_t device, Bytes bytes) {
    if (bytes == Bytes()) return;
    core_.memory_log.Log(*step_, {.action = action,
                                  .session = of.session,
                                  .tenant = of.tenant,
                                  .device = device,
                                  .reservation = of.id,
                                  .bytes = bytes,
                                  .label = of.label});
  };
  if (added != nullptr) {
    core_.leases.RecordEnd(step_->now, core_.leases.LeaseOf(*added), LeaseEnd::kReleased);
    // The bytes move between reservations without becoming free in between.
    for (const auto& [device, claim] : added->claims) {
      Reservation::Claim& to = own->claims[device];
      to.bytes = Bytes(to.bytes.count() + claim.bytes.count());
      to.left = Bytes(to.left.count() + claim.left.count());
      log(LogAction::kReservationEnd, *added, device, claim.left);
      log(LogAction::kReserve, *own, device, claim.left);
    }
    core_.reservations.Erase(*added);
  }
  for (const PlanDevice& device : layout->devices) {
    const auto claim = own->claims.find(device.ordinal);
    if (claim == own->claims.end()) continue;
    const Bytes granularity = core_.devices.At(device.ordinal).config.granularity;
    const Bytes need = *Bytes(device.units * layout->asked.bytes_per_unit.count()).RoundUp(granularity);
    // Drawn bytes stay with their blocks.
    const Bytes surplus =
        std::min(SaturatingSub(core_.reservations.HeldIn(*own, device.ordinal), need), claim->second.left);
    claim->second.bytes = SaturatingSub(claim->second.bytes, surplus);
    claim->second.left = SaturatingSub(claim->second.left, surplus);
    core_.reservations.Unclaim(*step_, own->session, own->tenant, device.ordinal, surplus);
    log(LogAction::kReservationEnd, *own, device.ordinal, surplus);
  }
}

void PlanTransaction::End(const Plan& plan, LeaseEnd how) {
  const std::shared_ptr<const PlanLayout> layout = plan.layout;
  core_.leases.RecordEnd(step_->now, core_.leases.LeaseOf(plan), how);
  core_.plans.plans_.Erase(plan);
  if (Reservation* const reservation = core_.reservations.Find(layout->reservation)) {
    core_.reservations.DropReservation(*step_, *reservation, LogCause::kNone);
  }
  for (const PlanDevice& device : layout->devices) {
    if (!device.permit) continue;
    core_.permits.ReleaseAcquisition(*step_, layout->session, device.acquisition, how).IgnoreError();
  }
}

PlanStale PlanTransaction::WhyStale(const PlanDevice& used) const {
  const Device& device = core_.devices.At(used.ordinal);
  if (device.main.state == DeviceState::kDropped) return PlanStale::kDeviceDropped;
  if (device.main.state == DeviceState::kStopped) return PlanStale::kDeviceStopped;
  if (!device.drain_reason.empty()) return PlanStale::kDeviceDraining;
  // The device is on probation.
  if (!device.takes_leases()) return PlanStale::kDeviceStopped;
  return device.main.generation == used.generation ? PlanStale::kCurrent : PlanStale::kMemoryLost;
}

void PlanTransaction::Look() {
  // Restored plans have not been compared with the present devices yet.
  const bool restored = std::exchange(core_.plans.restored_, false);
  if (!std::exchange(step_->dirty.devices, false) && !restored) return;
  const auto why = [this](const PlanDevice& device) { return WhyStale(device); };
  core_.plans.plans_.ForEachAfter(0, [&](const Plan& plan) {
    if (plan.stale != PlanStale::kCurrent) return true;
    if (const PlanDevice* const stale = FindStale(*plan.layout, why)) MarkStale(plan, why(*stale), stale->ordinal);
    return true;
  });
}

void PlanTransaction::MarkRevoked(const PermitView& permit) {
  for (const Plan* const plan : core_.plans.plans_.OfSession(permit.session)) {
    for (const PlanDevice& device : plan->layout->devices) {
      if (device.permit == permit.id) MarkStale(*plan, PlanStale::kPermitRevoked, device.ordinal);
    }
  }
}

void PlanTransaction::MarkStale(const Plan& marked, PlanStale why, uint32_t device) {
  if (marked.stale != PlanStale::kCurrent) return;
  Plan& plan = core_.plans.plans_.Change(marked);
  plan.stale = why;
  plan.stale_device = device;
  plan.stale_since = step_->now;
  std::vector<Deliver> sends;
  for (const ChannelId channel : core_.sessions.table().Find(plan.session())->channels) {
    core_.sessions.mailboxes().Post({.channel = channel,
                                     .delivery = {.what = attach::DeliveryKind::kPlanStale,
                                                  .plan = plan.id().value(),
                                                  .revision = plan.layout->revision,
                                                  .why = static_cast<uint64_t>(why),
                                                  .device = device}},
                                    &sends);
  }
  step_->EmitAll(std::move(sends));
}

PlanView PlanTransaction::View(const Plan& plan) {
  return {
      .layout = plan.layout, .stale = plan.stale, .stale_device = plan.stale_device, .stale_since = plan.stale_since};
}

absl::Status PlanTransaction::CheckInvariants() const {
  BERTH_RETURN_IF_ERROR(core_.plans.plans_.CheckInvariants());
  absl::Status status;
  const auto broken = [&](const Plan& plan, absl::string_view what) {
    status.Update(absl::InternalError(absl::StrCat("plan ", plan.id().value(), ": ", what)));
  };
  core_.plans.plans_.ForEachAfter(0, [&](const Plan& plan) {
    if (core_.sessions.table().Find(plan.session()) == nullptr) broken(plan, "its session has ended");
    const Reservation* const reservation = core_.reservations.Find(plan.layout->reservation);
    if (reservation != nullptr && reservation->session != plan.session()) {
      broken(plan, "its bytes belong to another session");
    }
    for (const PlanDevice& device : plan.layout->devices) {
      if (device.units == 0 || plan.stale != PlanStale::kCurrent || core_.plans.restored_) continue;
      if (WhyStale(device) != PlanStale::kCurrent) {
        broken(plan, "a device of the plan changed without a notification");
      }
    }
    return true;
  });
  for (const auto& [request, pending] : core_.requests.pending()) {
    if (pending.plan == nullptr || pending.plan->from_revision == 0) continue;
    if (pending.place == &core_.permits) {
      status.Update(absl::InternalError("a request with a plan waits for permits"));
    }
  }
  return status;
}

}  // namespace berth::core
