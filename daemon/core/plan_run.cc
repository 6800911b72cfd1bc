#include "daemon/core/plan_run.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

absl::Status NoPlan(PlanId plan) {
  return Refuse(Reason::kNotFound, "no {kind} {id} in this session",
                {{"kind", "plan"}, {"id", plan.value()}});
}

// What was granted with a draft: permits in their order, and an id of 0 where no bytes were asked.
std::vector<AcquireResult> PermitsIn(const Response& granted) {
  const auto* const gang = std::get_if<GangResult>(&granted);
  return gang == nullptr ? std::vector<AcquireResult>() : gang->permits;
}

ReservationId ReservationIn(const Response& granted) {
  if (const auto* const reserved = std::get_if<ReserveResult>(&granted)) return reserved->reservation.id;
  const auto* const gang = std::get_if<GangResult>(&granted);
  return gang != nullptr && gang->reservation.has_value() ? gang->reservation->id : ReservationId();
}

// A device that the plan uses and that is not what it was; null for none.
template <typename WhyStale>
const PlanDevice* FindStale(const PlanLayout& layout, const WhyStale& why) {
  const auto stale = [&](const PlanDevice& device) {
    return device.units > 0 && why(device) != PlanStale::kCurrent;
  };
  const auto found = std::find_if(layout.devices.begin(), layout.devices.end(), stale);
  return found == layout.devices.end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<const Plan*> PlanRun::Find(SessionId session, PlanId plan) const {
  const Plan* const found = core_->plans_.Find(plan);
  if (found == nullptr || found->session() != session) return NoPlan(plan);
  return found;
}

absl::Status PlanRun::MayPlan(SessionId session) const {
  uint64_t current = core_->plans_.CountOf(session);
  const uint64_t limit = core_->config_.limits.plans_per_session;
  if (current + core_->pending_.size() < limit) return absl::OkStatus();
  // Those to be: they wait for what they take.
  for (const ChannelId channel : core_->sessions_.Find(session)->channels) {
    for (const RequestId& request : core_->PendingOf(*core_->sessions_.FindChannel(channel))) {
      const auto pending = core_->pending_.find(request);
      current += pending != core_->pending_.end() && pending->second.plan != nullptr ? 1 : 0;
    }
  }
  if (current < limit) return absl::OkStatus();
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                {{"what", "plans_per_session"}, {"current", current}, {"limit", limit}});
}

void PlanRun::Make(const Admitted& admitted, const PlanRequest& request) {
  const absl::Status may = MayPlan(admitted.session.id);
  if (!may.ok()) return core_->Answer(*step_, admitted.request, may);
  PlanDraft draft;
  const absl::Status drafted = Draft(admitted.session, request, &draft);
  if (!drafted.ok()) return core_->Answer(*step_, admitted.request, drafted);
  Take(admitted, std::move(draft));
}

void PlanRun::Replan(const Admitted& admitted, const ReplanRequest& request) {
  const absl::StatusOr<const Plan*> plan = Find(admitted.session.id, request.plan);
  if (!plan.ok()) return core_->Answer(*step_, admitted.request, plan.status());
  PlanDraft draft;
  const absl::Status drafted = Redraft(admitted.session, **plan, request, &draft);
  if (!drafted.ok()) return core_->Answer(*step_, admitted.request, drafted);
  Take(admitted, std::move(draft));
}

void PlanRun::Release(const Admitted& admitted, PlanId plan) {
  const absl::StatusOr<const Plan*> found = Find(admitted.session.id, plan);
  if (!found.ok()) return core_->Answer(*step_, admitted.request, found.status());
  End(**found);
  core_->Answer(*step_, admitted.request, Response(ReleasePlanResult()));
}

void PlanRun::Take(const Admitted& admitted, PlanDraft&& draft) {
  if (draft.leases.members.empty() && draft.leases.reserve.empty()) {
    return core_->Answer(*step_, admitted.request, Finish(admitted.request, draft, Response(PlanResult())));
  }
  const GangRequest leases = draft.leases;
  core_->pending_.at(admitted.request).plan = std::make_unique<PlanDraft>(std::move(draft));
  if (!leases.members.empty()) return core_->StartGang(*step_, admitted, leases);
  absl::StatusOr<std::vector<RoomAsk>> asks = core_->MeasureAll({.items = leases.reserve});
  if (!asks.ok()) return core_->Answer(*step_, admitted.request, asks.status());
  if (const absl::Status may = core_->MayReserve(admitted.session.id); !may.ok()) {
    return core_->Answer(*step_, admitted.request, may);
  }
  LogRecord& note = core_->Note(admitted, LogAction::kReserve);
  note.label = leases.label;
  note.device = asks->front().device;
  for (const RoomAsk& ask : *asks) note.bytes = CheckedAdd(note.bytes, ask.bytes).value_or(note.bytes);
  core_->Enqueue(*step_, Waiting{.request = admitted.request,
                                 .session = admitted.session.id,
                                 .tenant = admitted.session.tenant,
                                 .asks = *std::move(asks),
                                 .label = leases.label,
                                 .reserve_for = leases.reserve_for});
}

absl::StatusOr<Response> PlanRun::Finish(const RequestId& request, PlanDraft& draft, const Response& granted) {
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
  const Plan& plan = core_->plans_.Add(draft.layout);
  core_->NoteGrant(*step_, core_->LeaseOf(plan), request);
  // Made in the step that it was drafted in.
  if (std::holds_alternative<PlanResult>(granted)) return Response(PlanResult{.layout = draft.layout});
  // While it waited for that they may have been rebuilt: nothing of it was there yet.
  for (PlanDevice& device : layout.devices) {
    device.generation = core_->devices_.at(device.ordinal).main.generation;
  }
  const auto why = [this](const PlanDevice& device) { return WhyStale(device); };
  if (const PlanDevice* const stale = FindStale(layout, why)) MarkStale(plan, why(*stale), stale->ordinal);
  return Response(PlanResult{.layout = draft.layout});
}

absl::StatusOr<Response> PlanRun::FinishReplan(PlanDraft& draft, ReservationId fresh) {
  PlanLayout& layout = *draft.layout;
  const absl::StatusOr<const Plan*> found = Find(layout.session, layout.id);
  if (!found.ok() || (*found)->layout->revision != draft.from_revision) {
    // Only bytes are waited for.
    if (Reservation* const taken = core_->reservations_.Find(fresh)) {
      core_->DropReservation(*step_, *taken, LogCause::kForgotten);
    }
    BERTH_RETURN_IF_ERROR(found.status());
    return Refuse(Reason::kStale, "plan {plan} is stale: {why}",
                  {{"plan", layout.id.value()}, {"why", "it was re-planned by another request meanwhile"}});
  }
  Plan& plan = core_->plans_.Change(**found);
  MergeReservation(plan, fresh, &layout);
  const std::shared_ptr<const PlanLayout> before = std::exchange(plan.layout, draft.layout);
  plan.stale = PlanStale::kCurrent;
  const auto why = [this](const PlanDevice& device) { return WhyStale(device); };
  if (const PlanDevice* const stale = FindStale(layout, why)) MarkStale(plan, why(*stale), stale->ordinal);
  for (const PlanDevice& had : before->devices) {
    if (!had.permit) continue;
    const bool kept = std::any_of(layout.devices.begin(), layout.devices.end(),
                                  [&](const PlanDevice& device) { return device.permit == had.permit; });
    // One that was taken away, or given back by itself, is not there any more.
    if (!kept) core_->ReleaseAcquisition(*step_, layout.session, had.acquisition).IgnoreError();
  }
  return Response(PlanResult{
      .layout = plan.layout, .from_revision = draft.from_revision, .moves = std::move(draft.moves)});
}

void PlanRun::MergeReservation(const Plan& plan, ReservationId fresh, PlanLayout* layout) {
  Reservation* const added = core_->reservations_.Find(fresh);
  Reservation* const own = core_->reservations_.Find(plan.layout->reservation);
  if (own == nullptr) {
    layout->reservation = fresh;
    return;
  }
  const auto log = [&](LogAction action, const Reservation& of, uint32_t device, Bytes bytes) {
    if (bytes == Bytes()) return;
    core_->Log(*step_, {.action = action,
                        .session = of.session,
                        .tenant = of.tenant,
                        .device = device,
                        .reservation = of.id,
                        .bytes = bytes,
                        .label = of.label});
  };
  if (added != nullptr) {
    core_->leases_.NoteEnd(step_->now, core_->LeaseOf(*added), LeaseEnd::kReleased);
    // The bytes change hands without being anybody else's in between.
    for (const auto& [device, claim] : added->claims) {
      Reservation::Claim& to = own->claims[device];
      to.bytes = Bytes(to.bytes.count() + claim.bytes.count());
      to.left = Bytes(to.left.count() + claim.left.count());
      log(LogAction::kReservationEnd, *added, device, claim.left);
      log(LogAction::kReserve, *own, device, claim.left);
    }
    core_->reservations_.Erase(*added);
  }
  for (const PlanDevice& device : layout->devices) {
    const auto claim = own->claims.find(device.ordinal);
    if (claim == own->claims.end()) continue;
    const Bytes granularity = core_->devices_.at(device.ordinal).config.granularity;
    const Bytes need = *Bytes(device.units * layout->asked.bytes_per_unit.count()).RoundUp(granularity);
    // What was drawn stays with its blocks.
    const Bytes surplus =
        std::min(SaturatingSub(core_->HeldIn(*own, device.ordinal), need), claim->second.left);
    claim->second.bytes = SaturatingSub(claim->second.bytes, surplus);
    claim->second.left = SaturatingSub(claim->second.left, surplus);
    core_->Unclaim(own->session, own->tenant, device.ordinal, surplus);
    log(LogAction::kReservationEnd, *own, device.ordinal, surplus);
  }
}

void PlanRun::End(const Plan& plan, LeaseEnd how) {
  const std::shared_ptr<const PlanLayout> layout = plan.layout;
  core_->leases_.NoteEnd(step_->now, core_->LeaseOf(plan), how);
  core_->plans_.Erase(plan);
  if (Reservation* const reservation = core_->reservations_.Find(layout->reservation)) {
    core_->DropReservation(*step_, *reservation, LogCause::kNone);
  }
  for (const PlanDevice& device : layout->devices) {
    if (!device.permit) continue;
    core_->ReleaseAcquisition(*step_, layout->session, device.acquisition).IgnoreError();
  }
}

PlanStale PlanRun::WhyStale(const PlanDevice& used) const {
  const Device& device = core_->devices_.at(used.ordinal);
  if (device.main.state == DeviceState::kDropped) return PlanStale::kDeviceDropped;
  if (device.main.state == DeviceState::kStopped) return PlanStale::kDeviceStopped;
  if (!device.drain_reason.empty()) return PlanStale::kDeviceDraining;
  // On probation.
  if (!device.takes_leases()) return PlanStale::kDeviceStopped;
  return device.main.generation == used.generation ? PlanStale::kCurrent : PlanStale::kMemoryLost;
}

void PlanRun::Look() {
  if (!std::exchange(core_->devices_changed_, false)) return;
  const auto why = [this](const PlanDevice& device) { return WhyStale(device); };
  core_->plans_.ForEachAfter(0, [&](const Plan& plan) {
    if (plan.stale != PlanStale::kCurrent) return true;
    if (const PlanDevice* const stale = FindStale(*plan.layout, why)) MarkStale(plan, why(*stale), stale->ordinal);
    return true;
  });
}

void PlanRun::NoteRevoked(const PermitView& permit) {
  for (const Plan* const plan : core_->plans_.OfSession(permit.session)) {
    for (const PlanDevice& device : plan->layout->devices) {
      if (device.permit == permit.id) MarkStale(*plan, PlanStale::kPermitRevoked, device.ordinal);
    }
  }
}

void PlanRun::MarkStale(const Plan& marked, PlanStale why, uint32_t device) {
  if (marked.stale != PlanStale::kCurrent) return;
  Plan& plan = core_->plans_.Change(marked);
  plan.stale = why;
  plan.stale_device = device;
  plan.stale_since = step_->now;
  std::vector<Deliver> sends;
  for (const ChannelId channel : core_->sessions_.Find(plan.session())->channels) {
    core_->mailboxes_.Post({.channel = channel,
                            .delivery = {.what = attach::DeliveryKind::kPlanStale,
                                         .plan = plan.id().value(),
                                         .revision = plan.layout->revision,
                                         .why = static_cast<uint64_t>(why),
                                         .device = device}},
                           &sends);
  }
  core_->SendAll(*step_, std::move(sends));
}

PlanView PlanRun::View(const Plan& plan) {
  return {.layout = plan.layout,
          .stale = plan.stale,
          .stale_device = plan.stale_device,
          .stale_since = plan.stale_since};
}

absl::Status PlanRun::CheckBooks() const {
  BERTH_RETURN_IF_ERROR(core_->plans_.CheckBooks());
  absl::Status status;
  const auto broken = [&](const Plan& plan, absl::string_view what) {
    status.Update(absl::InternalError(absl::StrCat("plan ", plan.id().value(), ": ", what)));
  };
  core_->plans_.ForEachAfter(0, [&](const Plan& plan) {
    if (core_->sessions_.Find(plan.session()) == nullptr) broken(plan, "its session is over");
    const Reservation* const reservation = core_->reservations_.Find(plan.layout->reservation);
    if (reservation != nullptr && reservation->session != plan.session()) {
      broken(plan, "its bytes are another session's");
    }
    for (const PlanDevice& device : plan.layout->devices) {
      if (device.units == 0 || plan.stale != PlanStale::kCurrent || core_->devices_changed_) continue;
      if (WhyStale(device) != PlanStale::kCurrent) {
        broken(plan, "a device of it is not what it was, and nobody was told");
      }
    }
    return true;
  });
  for (const auto& [request, pending] : core_->pending_) {
    if (pending.plan == nullptr || pending.plan->from_revision == 0) continue;
    if (std::holds_alternative<GangTable*>(pending.place)) {
      status.Update(absl::InternalError("who has a plan waits for permits"));
    }
  }
  return status;
}

}  // namespace berth::core
