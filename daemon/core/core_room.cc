// Requests for bytes: served where every layer has room, else refused, or queued for what comes back by itself and,
// where they asked for that, for what others hold.

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

// Longest a worker takes to be started again, as a rule.
constexpr absl::Duration kRebuildRetry = absl::Seconds(1);

bool Contains(const std::vector<ByteBudget*>& budgets, const ByteBudget* budget) {
  return std::find(budgets.begin(), budgets.end(), budget) != budgets.end();
}

// A waiter that others may pass, and what it lacks.
struct Passed {
  Waiting* waiting;
  std::vector<ByteBudget*> lacking;
};

}  // namespace

void Core::Impl::Enqueue(const Step& step, Waiting waiting) {
  const RequestId request = waiting.request;
  const auto refuse = [&](const absl::Status& status) {
    GiveUp(waiting);
    Answer(step, request, status);
  };
  const Shortage shortage = Assess(waiting, {});
  if (shortage.kind == Shortage::Kind::kTooLarge ||
      (shortage.kind == Shortage::Kind::kHeld && !waiting.patient)) {
    return refuse(RefuseOver(shortage));
  }
  if (const absl::Status may = MayWait(waiting, shortage); !may.ok()) return refuse(may);
  pending_.at(request).place = &room_;
  NoteWaits(request);
  Device& first = devices_.at(waiting.asks.front().device);
  const bool needs_context = LaneOf(waiting.kind) == Lane::kContext;
  room_.Push(std::move(waiting));
  if (needs_context) StartContextIfWanted(step, first);
  NoteRoom();
}

absl::Status Core::Impl::MayWait(const Waiting& waiting, const Shortage& shortage) const {
  // It only passes through.
  if (shortage.kind == Shortage::Kind::kNone && MayServe(waiting)) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(tenant_use_.CheckMayWait(waiting.tenant));
  const Limits& limits = config_.limits;
  for (const RoomAsk& ask : waiting.asks) {
    const auto refuse = [&](Reason reason, absl::string_view what, uint64_t current, uint64_t limit) {
      return RefuseWithRetry(
          reason, kRebuildRetry, "device {device}: {what}: {current} requests wait, limit {limit}",
          {{"what", what}, {"device", ask.device}, {"current", current}, {"limit", limit}});
    };
    const uint64_t all = room_.CountOf(ask.device);
    if (all >= limits.waiting_allocations_per_device) {
      const Worker& worker = devices_.at(ask.device).worker(LaneOf(waiting.kind));
      const bool rebuilding =
          worker.state == DeviceState::kRebuilding || worker.state == DeviceState::kProbation;
      return refuse(rebuilding ? Reason::kDeviceRebuilding : Reason::kLimit, "waiting_allocations_per_device",
                    all, limits.waiting_allocations_per_device);
    }
    if (shortage.kind != Shortage::Kind::kHeld) continue;
    const uint64_t own = room_.CountPatientOf(ask.device, waiting.tenant);
    if (own >= limits.patient_allocations_per_tenant) {
      return refuse(Reason::kLimit, "patient_allocations_per_tenant", own,
                    limits.patient_allocations_per_tenant);
    }
  }
  return absl::OkStatus();
}

void Core::Impl::ServeRoom(const Step& step) {
  // Whom it refuses may leave room for those before.
  while (std::exchange(room_changed_, false) && room_.size() > 0) Drain(step);
}

void Core::Impl::Drain(const Step& step) {
  std::vector<ByteBudget*> kept;
  std::vector<Passed> passed;
  for (auto it = room_.entries().begin(); it != room_.entries().end();) {
    // Serving and refusing take the entry out.
    Waiting& waiting = *it++;
    Shortage shortage = Assess(waiting, kept);
    if (shortage.kind == Shortage::Kind::kComing && MayServe(waiting)) {
      TrimFor(step, waiting, shortage);
      // What was not even asked for is back at once.
      shortage = Assess(waiting, kept);
    }
    if (shortage.kind == Shortage::Kind::kNone) {
      if (!MayServe(waiting)) {
        if (!IsAttended(waiting)) KeepRoom(waiting, &kept);
        continue;
      }
      // Its tenant's quota may have been lowered since it came.
      const absl::Status quota =
          waiting.reserve_for.has_value() ? absl::OkStatus()
                                          : CheckBlockQuota(waiting.tenant, blocks_.CountOf(waiting.tenant));
      if (!quota.ok()) {
        TurnAway(step, waiting.request, quota);
        continue;
      }
      for (const Passed& earlier : passed) {
        if (!Takes(waiting, earlier.lacking)) continue;
        room_.NotePassed(*earlier.waiting, step.now);
        if (room_.Keeps(*earlier.waiting))
          kept.insert(kept.end(), earlier.lacking.begin(), earlier.lacking.end());
      }
      Serve(step, waiting.request);
    } else if (shortage.kind == Shortage::Kind::kComing) {
      // Those behind wait as it does: not longer than a worker takes.
      kept.insert(kept.end(), shortage.lacking.begin(), shortage.lacking.end());
    } else if (shortage.kind == Shortage::Kind::kHeld && waiting.patient) {
      if (room_.Keeps(waiting)) kept.insert(kept.end(), shortage.lacking.begin(), shortage.lacking.end());
      passed.push_back({&waiting, std::move(shortage.lacking)});
    } else {
      TurnAway(step, waiting.request, RefuseOver(shortage));
    }
  }
}

void Core::Impl::KeepRoom(const Waiting& waiting, std::vector<ByteBudget*>* kept) {
  for (const RoomAsk& ask : waiting.asks) {
    for (const LayerBudget& layer : LayersOf(ask.device, waiting.session, waiting.tenant)) {
      kept->push_back(layer.budget);
    }
  }
}

bool Core::Impl::Takes(const Waiting& waiting, const std::vector<ByteBudget*>& budgets) {
  for (const RoomAsk& ask : waiting.asks) {
    for (const LayerBudget& layer : LayersOf(ask.device, waiting.session, waiting.tenant)) {
      if (Contains(budgets, layer.budget)) return true;
    }
  }
  return false;
}

Shortage Core::Impl::Assess(const Waiting& waiting, const std::vector<ByteBudget*>& kept) {
  Shortage shortage;
  // What is drawn is charged already.
  if (waiting.drawn_from) return shortage;
  const auto note = [&](Shortage::Kind kind, const LayerBudget& layer, const RoomAsk& ask) {
    if (kind <= shortage.kind) return;
    shortage.kind = kind;
    shortage.worst = layer;
    shortage.ask = ask;
  };
  for (const RoomAsk& ask : waiting.asks) {
    const bool warm = FindWarm(waiting, ask).has_value();
    for (const LayerBudget& layer : LayersOf(ask.device, waiting.session, waiting.tenant)) {
      // A warm block is charged to its device already.
      if (warm && layer.layer == Layer::kDevice) continue;
      switch (layer.budget->Judge(ask.bytes)) {
        case ByteBudget::Verdict::kNow:
          if (Contains(kept, layer.budget)) note(Shortage::Kind::kComing, layer, ask);
          continue;
        case ByteBudget::Verdict::kAfterReclaim:
          note(Shortage::Kind::kComing, layer, ask);
          break;
        case ByteBudget::Verdict::kNever:
          note(Shortage::Kind::kHeld, layer, ask);
          break;
        case ByteBudget::Verdict::kTooLarge:
          note(Shortage::Kind::kTooLarge, layer, ask);
          break;
      }
      shortage.lacking.push_back(layer.budget);
    }
  }
  return shortage;
}

bool Core::Impl::IsAttended(const Waiting& waiting) const {
  const auto pending = pending_.find(waiting.request);
  return pending != pending_.end() && pending->second.call;
}

bool Core::Impl::MayServe(const Waiting& waiting) const {
  if (!IsAttended(waiting)) return false;
  for (const RoomAsk& ask : waiting.asks) {
    if (devices_.at(ask.device).main.state == DeviceState::kProbation) return false;
  }
  if (waiting.reserve_for.has_value()) return true;
  const RoomAsk& ask = waiting.asks.front();
  const Worker& worker = devices_.at(ask.device).worker(LaneOf(waiting.kind));
  return worker.state == DeviceState::kReady || FindWarm(waiting, ask).has_value();
}

void Core::Impl::Serve(const Step& step, const RequestId& request) {
  const Waiting served = room_.Take(request);
  if (served.reserve_for.has_value()) {
    MakeReservation(step, served);
  } else {
    Allocate(step, served);
  }
}

void Core::Impl::TrimFor(const Step& step, const Waiting& waiting, const Shortage& shortage) {
  for (const RoomAsk& ask : waiting.asks) {
    Device& device = devices_.at(ask.device);
    if (Contains(shortage.lacking, &device.account)) Trim(step, device, ask.bytes);
  }
}

absl::Status Core::Impl::RefuseOver(const Shortage& shortage) {
  shortage.worst.budget->NoteRefused();
  return shortage.worst.budget->OverBudget(LayerName(shortage.worst.layer), shortage.ask.device,
                                           shortage.ask.bytes);
}

void Core::Impl::ExpireRoom(const Step& step) {
  if (room_.next_deadline() > step.now && reservations_.next_deadline() > step.now) return;
  for (const Waiting& expired : room_.TakeExpired(step.now)) {
    const Shortage shortage = Assess(expired, {});
    GiveUp(expired);
    const RoomAsk& ask = shortage.worst.budget == nullptr ? expired.asks.front() : shortage.ask;
    const ByteBudget& budget =
        shortage.worst.budget == nullptr ? devices_.at(ask.device).account : *shortage.worst.budget;
    const Bytes limit = budget.limit().value_or(Bytes(UINT64_MAX));
    Answer(
        step, expired.request,
        Refuse(Reason::kWaitTimedOut,
               "{layer} budget on device {device}: waited in vain for {requested} bytes; current {current}, "
               "remaining {remaining}, limit {limit}",
               {{"layer", LayerName(shortage.worst.layer)},
                {"device", ask.device},
                {"requested", ask.bytes.count()},
                {"current", budget.held().count()},
                {"remaining", SaturatingSub(limit, budget.held()).count()},
                {"limit", limit.count()}}));
  }
  room_.EndKeeps(step.now);
  while (Reservation* const expired = reservations_.FindExpired(step.now))
    DropReservation(step, *expired, LogCause::kExpired);
  NoteRoom();
}

void Core::Impl::GiveUp(const Waiting& waiting) {
  if (!waiting.drawn_from) return;
  const RoomAsk& ask = waiting.asks.front();
  if (Reservation* const reservation = reservations_.Find(waiting.drawn_from)) {
    Bytes& left = reservation->claims.at(ask.device).left;
    left = Bytes(left.count() + ask.bytes.count());
  } else {
    Unclaim(waiting.session, waiting.tenant, ask.device, ask.bytes);
  }
}

void Core::Impl::TurnAway(const Step& step, const RequestId& request, const absl::Status& why) {
  const Waiting waiting = room_.Take(request);
  GiveUp(waiting);
  Answer(step, waiting.request, why);
}

}  // namespace berth::core
