#include "daemon/core/permits/permit_transaction.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

using Verdict = WaitQueue::Verdict;

// Returns the verdict of the part that is further from a grant.
Verdict Worse(Verdict a, Verdict b) {
  if (a == Verdict::kSkipped || b == Verdict::kSkipped) return Verdict::kSkipped;
  return a == Verdict::kFits ? b : a;
}

Verdict ToQueue(Placement::Verdict verdict) {
  if (verdict == Placement::Verdict::kFits) return Verdict::kFits;
  return verdict == Placement::Verdict::kWaits ? Verdict::kWaits : Verdict::kSkipped;
}

// Returns the gang's units over all its pools.
uint64_t UnitsOf(const Gang& gang) {
  uint64_t units = 0;
  for (const Gang::Part& part : gang.parts) units += std::min(part.ask.units, UINT64_MAX - units);
  return units;
}

// Returns the indexes of the members with a device constraint.
std::vector<size_t> Placed(const Gang& gang) {
  std::vector<size_t> placed;
  for (size_t i = 0; i < gang.what.members.size(); ++i) {
    if (gang.what.members[i].device.pick != DevicePick::kNone) placed.push_back(i);
  }
  return placed;
}

// Returns the gang's request to a pool, without its devices.
AcquireRequest UnitsAskedOf(const Gang::Part& part) {
  return {.units = part.ask.units, .client_cap = part.ask.client_cap, .exclusive = part.ask.exclusive};
}

}  // namespace

PoolStep PermitTransaction::step() {
  return {.now = step_->now, .outcomes = &outcomes_, .gangs = this, .offers = this};
}

GrantOffer PermitTransaction::Offer(const RequestId& request) { return core_.permits.Offer(*step_, request); }

void PermitTransaction::Answer() {
  // After a grant in one pool a gang may be skipped in the others, too: its tenant may have reached its cap there.
  step_->dirty.pools = step_->dirty.pools || (!outcomes_.empty() && !core_.permits.gangs_.gangs().empty());
  for (AcquireOutcome& outcome : std::exchange(outcomes_, {})) {
    if (outcome.offer == GrantOffer::kWithheld) {
      core_.permits.PutBack(*step_, *std::move(outcome.granted));
      continue;
    }
    core_.permits.RecordOffer(*step_, outcome);
    core_.requests.Answer(*step_, outcome.request, std::move(outcome.result));
  }
}

const Gang& PermitTransaction::GangOf(const RequestId& request) {
  const Gang* const gang = core_.permits.gangs_.Find(request);
  BERTH_INVARIANT(gang != nullptr);
  return *gang;
}

std::vector<Placement::Ask> PermitTransaction::AsksOf(const Gang& gang) const {
  std::vector<Placement::Ask> asks;
  for (const size_t i : Placed(gang)) {
    const GangMember& member = gang.what.members[i];
    asks.push_back(
        {.constraint = member.device, .units = member.units, .shares = &core_.permits.FindPool(member.pool)->shares()});
  }
  return asks;
}

Placement::BytesByDevice PermitTransaction::BesidesOf(const Gang& gang) {
  Placement::BytesByDevice besides;
  for (const ByteRequest& ask : gang.byte_requests) besides[ask.device] = ask.bytes;
  return besides;
}

Waiting PermitTransaction::WaitingOf(const Gang& gang) {
  return {.request = gang.request,
          .session = gang.requester.session,
          .tenant = gang.requester.tenant,
          .asks = gang.byte_requests,
          .label = gang.what.label,
          .reserve_for = gang.what.reserve_for};
}

Shortage PermitTransaction::CapacityFor(const Gang& gang) {
  return gang.byte_requests.empty() ? Shortage() : core_.byte_queue.Assess(WaitingOf(gang), ReservedCapacity());
}

ReservedBudgets PermitTransaction::ReservedCapacity() {
  return core_.byte_queue.Reserved();
}

Verdict PermitTransaction::JudgeParts(const Waiter& waiter) {
  if (waiter.detached) return Verdict::kSkipped;
  const Gang& gang = GangOf(waiter.request);
  Verdict verdict = Verdict::kFits;
  for (const Gang::Part& part : gang.parts) verdict = Worse(verdict, part.pool->JudgeUnits(part.ask));
  if (!core_.sessions.tenant_use().MayHave(gang.requester.tenant, UnitsOf(gang))) return Verdict::kSkipped;
  if (verdict == Verdict::kSkipped) return verdict;
  if (CapacityFor(gang).kind != Shortage::Kind::kNone) return Verdict::kSkipped;
  const std::vector<Placement::Ask> asks = AsksOf(gang);
  if (asks.empty()) return verdict;
  return Worse(verdict, ToQueue(core_.devices.placement().ChooseAll(asks, BesidesOf(gang)).verdict));
}

Verdict PermitTransaction::Judge(const Waiter& waiter) {
  const Verdict verdict = JudgeParts(waiter);
  if (verdict != Verdict::kFits) return verdict;
  for (const Gang::Part& part : GangOf(waiter.request).parts) {
    if (part.pool->ReservedFrom(waiter.number, this)) return Verdict::kWaits;
  }
  return verdict;
}

Stalls PermitTransaction::WhyNot(const Waiter& waiter, Verdict goal) {
  const Gang& gang = GangOf(waiter.request);
  // As in a pool: the stalls that end least often come first.
  Stalls stalls = WhyNoDevices(gang, goal == Verdict::kFits ? Placement::Verdict::kFits : Placement::Verdict::kWaits);
  if (stalls.empty()) stalls = WhyNoCapacity(gang);
  if (!stalls.empty()) return stalls;
  if (const uint64_t units = UnitsOf(gang); !core_.sessions.tenant_use().MayHave(gang.requester.tenant, units)) {
    return {{.gauge = {.kind = Gauge::Kind::kQuota}, .threshold = units}};
  }
  for (const Gang::Part& part : gang.parts) {
    const Verdict verdict = part.pool->JudgeUnits(part.ask);
    if (verdict > goal) return part.pool->WhyNoUnits(part.ask);
  }
  for (const Gang::Part& part : gang.parts) {
    // A held gang waits only for waiters that came before it.
    if (!part.pool->ReservedFrom(waiter.number, this) || part.pool->IsHeld(waiter.number)) continue;
    return {{.gauge = {.kind = Gauge::Kind::kHeld, .of = part.pool}, .threshold = 1}};
  }
  return {};
}

Stalls PermitTransaction::WhyNoDevices(const Gang& gang, Placement::Verdict goal) const {
  const std::vector<Placement::Ask> asks = AsksOf(gang);
  if (asks.empty()) return {};
  for (const Placement::Ask& ask : asks) {
    Stalls stalls = core_.devices.placement().WhyNot(ask, goal);
    if (!stalls.empty()) return stalls;
  }
  if (core_.devices.placement().ChooseAll(asks, BesidesOf(gang)).verdict <= goal) return {};
  return core_.devices.placement().WhyNotAll(asks, goal);
}

Stalls PermitTransaction::WhyNoCapacity(const Gang& gang) {
  if (CapacityFor(gang).kind == Shortage::Kind::kNone) return {};
  const ReservedBudgets reserved = ReservedCapacity();
  // The devices' budgets block alike all gangs with the same bytes, whichever lacks them now. A session's or tenant's
  // own budget counts only while it lacks bytes.
  std::vector<Threshold> needs;
  for (const ByteRequest& ask : gang.byte_requests) {
    for (const LayerBudget& layer : core_.budgets.LayersOf(ask.device, gang.requester.session, gang.requester.tenant)) {
      const bool lacks = layer.budget->Judge(ask.bytes) != ByteBudget::Verdict::kNow;
      if (lacks || layer.layer == Layer::kDevice) {
        needs.push_back({.gauge = {.kind = Gauge::Kind::kBytes, .of = layer.budget}, .threshold = ask.bytes.count()});
      }
      if (lacks || !reserved.contains(layer.budget)) continue;
      needs.push_back({.gauge = {.kind = Gauge::Kind::kReserved, .of = layer.budget}, .threshold = 1});
    }
  }
  return {StallOfAll(std::move(needs))};
}

uint64_t PermitTransaction::Read(const Account& tenant, const Gauge& gauge) {
  if (gauge.kind == Gauge::Kind::kQuota) return core_.sessions.tenant_use().CapacityOf(tenant);
  if (gauge.kind == Gauge::Kind::kHeld) {
    return static_cast<const PermitPool*>(gauge.of)->ReservedFrom(/*number=*/0, this) ? 0 : 1;
  }
  const auto* const budget = static_cast<const ByteBudget*>(gauge.of);
  if (gauge.kind == Gauge::Kind::kBytes) return budget->remaining().count();
  const ReservedBudgets reserved = ReservedCapacity();
  return std::find(reserved.begin(), reserved.end(), budget) == reserved.end() ? 1 : 0;
}

uint64_t PermitTransaction::VersionOf(Gauge::Kind) {
  // Every change of a budget, or of a request with reserved bytes, touches a memory record.
  return core_.journal.memory_touches() + 1;
}

void PermitTransaction::Enqueue(Gang made) {
  made.number = core_.permits.NextWaiter();
  const RequestId request = made.request;
  if (const absl::Status pushed = Push(std::move(made), /*detached=*/false); !pushed.ok()) {
    return Refuse(request, pushed);
  }
  const Gang& gang = GangOf(request);
  for (const Gang::Part& part : gang.parts) {
    part.pool->Serve(step());
    // Serving the pool may have ended the gang.
    if (core_.permits.gangs_.Find(request) == nullptr) return;
  }
  if (!gang.what.wait) return Refuse(request, NoPermit(gang));
  if (gang.what.deadline <= step_->now) return Refuse(request, TimedOut(gang));
  if (const absl::Status may = core_.requests.CheckMayWait(request, GangTable::WeightOf(gang)); !may.ok()) {
    return Refuse(request, may);
  }
  core_.permits.TrimForGang(*step_, gang);
}

absl::Status PermitTransaction::Push(Gang made, bool detached) {
  const Gang& gang = core_.permits.gangs_.Add(std::move(made));
  const RequestId request = gang.request;
  core_.permits.AddGangBytes(gang);
  for (const Gang::Part& part : gang.parts) {
    Waiter waiter{.number = gang.number,
                  .request = request,
                  .requester = gang.requester,
                  .what = gang.permits[part.members.front()],
                  .since = gang.since,
                  .charge = part.ask.exclusive ? part.pool->config().cap : part.ask.units,
                  .gang = gang.shape,
                  .passes = part.passes};
    waiter.what.units = part.ask.units;
    waiter.what.client_cap = part.ask.client_cap;
    waiter.what.device = {};
    waiter.detached = detached;
    BERTH_RETURN_IF_ERROR(part.pool->Push(std::move(waiter)));
  }
  return absl::OkStatus();
}

bool PermitTransaction::PutBack(const Gang& gang) {
  if (!Check(gang).ok()) return false;
  if (Push(Gang(gang), /*detached=*/true).ok()) return true;
  const Gang left = core_.permits.gangs_.Take(gang.request);
  for (const Gang::Part& part : left.parts) part.pool->Leave(left.number);
  return false;
}

void PermitTransaction::Withhold(const RequestId& request) {
  const Gang& gang = GangOf(request);
  if (!gang.what.wait) return Refuse(request, Requests::ProcessStopped(request));
  for (const Gang::Part& part : gang.parts) part.pool->Detach(gang.number);
  core_.requests.Skip(*step_, request);
  // Units may have been reserved for the gang.
  step_->dirty.pools = true;
}

void PermitTransaction::Grant(const RequestId& request) {
  // Before the order of the queues is asked for: it may change that order.
  core_.permits.SettleTaken(request.channel);
  for (const Gang::Part& part : GangOf(request).parts) {
    if (!part.pool->MayGo(step(), GangOf(request).number)) return;
  }
  const GrantOffer offer = Offer(request);
  if (offer == GrantOffer::kWithheld) return Withhold(request);
  std::vector<uint64_t> passes;
  for (const Gang::Part& part : GangOf(request).parts) {
    passes.push_back(part.pool->TakeTurn(step(), GangOf(request).number));
  }
  Gang left = core_.permits.gangs_.Take(request);
  for (size_t i = 0; i < passes.size(); ++i) left.parts[i].passes = passes[i];
  // The outcome keeps the gang, which may return to its place.
  const auto taken = std::make_shared<const Gang>(std::move(left));
  const Gang& gang = *taken;
  const Placement::Choices choices = core_.devices.placement().ChooseAll(AsksOf(gang), BesidesOf(gang));
  const std::vector<size_t> placed = Placed(gang);
  // The gang's outcome precedes those of waiters that nest in its permits.
  const size_t notified = outcomes_.size();
  outcomes_.push_back({request, Response(GangResult())});
  GangResult result;
  for (size_t i = 0; i < gang.permits.size(); ++i) {
    PermitPool& pool = *core_.permits.FindPool(gang.permits[i].pool);
    const auto at = std::find(placed.begin(), placed.end(), i);
    std::optional<uint32_t> device;
    if (at != placed.end()) device = choices.ordinals.at(at - placed.begin());
    // An exclusive permit is charged once, as the whole pool.
    const bool first = gang.permits[i].holder_key == gang.what.holder_key;
    const uint64_t alone = first ? pool.config().cap : 0;
    result.permits.push_back(pool.GrantPart(step(),
                                            {.number = gang.number,
                                             .request = request,
                                             .requester = gang.requester,
                                             .what = gang.permits[i],
                                             .since = gang.since,
                                             .charge = gang.what.exclusive ? alone : gang.permits[i].units,
                                             .gang = gang.shape},
                                            device));
  }
  if (!gang.byte_requests.empty()) result.reservation = core_.reservations.ReserveForGang(*step_, WaitingOf(gang));
  outcomes_[notified].result = Response(std::move(result));
  outcomes_[notified].gang = taken;
  outcomes_[notified].offer = offer;
  step_->dirty.pools = true;
}

void PermitTransaction::Hold(const RequestId& request) {
  const Gang& gang = GangOf(request);
  for (const Gang::Part& part : gang.parts) part.pool->Hold(gang.number);
  // Reservations in other pools for later waiters no longer apply to the gang, so it may fit now.
  step_->dirty.pools = true;
}

void PermitTransaction::PermitGranted(const RequestId& request, const PermitView& permit) {
  const Gang* const gang = core_.permits.gangs_.Find(request);
  if (gang == nullptr) return;
  const bool adopted = permit.adoptable && !gang->what.independent;
  const bool held = std::any_of(gang->permits.begin(), gang->permits.end(), [&](const AcquireRequest& asked) {
    return asked.pool == permit.pool && asked.holder_key == permit.holder_key;
  });
  if (adopted || held) Refuse(request, Permits::AlreadyHeld(permit));
}

ReleaseResult PermitTransaction::ReleaseIfIdle(SessionId session, AcquisitionId acquisition) {
  // A permit that is no longer out was taken back before.
  ReleaseResult result;
  for (auto& [name, pool] : core_.permits.pools_) {
    if (pool.Holds(session, acquisition)) result.returned = pool.ReleaseIfIdle(step(), acquisition);
  }
  Answer();
  return result;
}

void PermitTransaction::Refuse(const RequestId& request, const absl::Status& status) {
  const Gang gang = core_.permits.gangs_.Take(request);
  for (const Gang::Part& part : gang.parts) {
    part.pool->Leave(gang.number);
    part.pool->RecordRefused();
  }
  outcomes_.push_back({request, status});
  // Units may have been reserved for the gang.
  step_->dirty.pools = true;
}

void PermitTransaction::Expire() {
  while (const Gang* const expired = core_.permits.gangs_.FindExpired(step_->now)) {
    Refuse(RequestId(expired->request), TimedOut(*expired));
  }
}

void PermitTransaction::Reconsider() {
  std::vector<RequestId> requests;
  for (const auto& [request, gang] : core_.permits.gangs_.gangs()) requests.push_back(request);
  for (const RequestId& request : requests) Reconsider(GangOf(request));
}

void PermitTransaction::Reconsider(const Gang& gang) {
  if (const absl::Status never = Check(gang); !never.ok()) Refuse(RequestId(gang.request), never);
}

absl::Status PermitTransaction::Check(const Gang& gang) {
  for (const Gang::Part& part : gang.parts) {
    const PoolConfig& config = part.pool->config();
    const bool of_tenant = config.tenant_cap != 0 && config.tenant_cap < config.cap;
    const uint64_t cap = of_tenant ? config.tenant_cap : config.cap;
    if (part.ask.units <= cap) continue;
    return berth::Refuse(
        Reason::kOverCap,
        "permit pool {pool}: asked {asked} together, cap{whose} {cap}: request at most {cap}, or have the cap raised "
        "to {asked}",
        {{"pool", config.name}, {"asked", part.ask.units}, {"whose", of_tenant ? " of one tenant" : ""}, {"cap", cap}});
  }
  for (const Gang::Part& part : gang.parts) {
    BERTH_RETURN_IF_ERROR(part.pool->CheckWithoutDevice(part.ask.without_device));
  }
  BERTH_RETURN_IF_ERROR(
      core_.sessions.tenant_use().CheckUnits(gang.requester.tenant, gang.what.members.front().pool, UnitsOf(gang)));
  std::vector<Placement::Ask> asks;
  for (const size_t i : Placed(gang)) {
    const GangMember& member = gang.what.members[i];
    asks.push_back(
        {.constraint = member.device, .units = member.units, .shares = &core_.permits.FindPool(member.pool)->shares()});
    BERTH_RETURN_IF_ERROR(core_.devices.placement().Check(member.pool, asks.back()));
  }
  BERTH_RETURN_IF_ERROR(core_.devices.placement().CheckAll(gang.what.members.front().pool, asks, BesidesOf(gang)));
  for (const ByteRequest& ask : gang.byte_requests) {
    const Device& device = core_.devices.At(ask.device);
    if (!device.main.in_service()) return Devices::OutOfService(device, WorkerKind::kMain);
    if (!device.drain_reason.empty()) return Devices::Draining(device);
  }
  if (gang.byte_requests.empty()) return absl::OkStatus();
  const Shortage shortage = core_.byte_queue.Assess(WaitingOf(gang), {});
  return shortage.kind == Shortage::Kind::kTooLarge ? core_.byte_queue.RefuseOver(shortage) : absl::OkStatus();
}

const Gang::Part* PermitTransaction::FindLacking(const Gang& gang) {
  for (const Gang::Part& part : gang.parts) {
    if (part.pool->JudgeUnits(part.ask) != Verdict::kFits || part.pool->ReservedFrom(gang.number, this)) return &part;
  }
  return nullptr;
}

absl::Status PermitTransaction::NoPermit(const Gang& gang) {
  if (const uint64_t units = UnitsOf(gang); !core_.sessions.tenant_use().MayHave(gang.requester.tenant, units)) {
    return core_.sessions.tenant_use().Lacking(gang.requester.tenant, gang.what.members.front().pool, units);
  }
  if (const Gang::Part* const part = FindLacking(gang); part != nullptr) {
    return part->pool->NoPermit(gang.requester, UnitsAskedOf(*part), part->ask.without_device);
  }
  if (const Shortage shortage = CapacityFor(gang); shortage.kind != Shortage::Kind::kNone) {
    return core_.byte_queue.RefuseOver(shortage);
  }
  if (const std::optional<size_t> lacking = FindWithoutDevice(gang); lacking.has_value()) {
    const AcquireRequest& permit = gang.permits[*lacking];
    return core_.permits.FindPool(permit.pool)->NoPermit(gang.requester, permit, /*without_device=*/0);
  }
  // The devices suffice for each permit alone, but not for all of them.
  const PoolView pool = FindPoolOf(gang)->View();
  return berth::Refuse(Reason::kNoPermit,
                       "permit pool {pool}: asked {asked} together, {out} of {cap} out; too few devices have capacity "
                       "at once: {lacking}",
                       {{"pool", pool.config.name},
                        {"asked", gang.parts.front().ask.units},
                        {"out", pool.out},
                        {"cap", pool.config.cap},
                        {"lacking", LackingOf(gang)}});
}

std::optional<size_t> PermitTransaction::FindWithoutDevice(const Gang& gang) const {
  for (const size_t i : Placed(gang)) {
    const AcquireRequest& permit = gang.permits[i];
    const Placement::Ask ask{.constraint = permit.device,
                             .units = permit.units,
                             .shares = &core_.permits.FindPool(permit.pool)->shares()};
    if (core_.devices.placement().Choose(ask).verdict != Placement::Verdict::kFits) return i;
  }
  return std::nullopt;
}

PermitPool* PermitTransaction::FindPoolOf(const Gang& gang) const {
  return core_.permits.FindPool(gang.permits.front().pool);
}

absl::Status PermitTransaction::TimedOut(const Gang& gang) {
  const Account& tenant = gang.requester.tenant;
  const Gang::Part* const part = FindLacking(gang);
  PermitPool& pool = part == nullptr ? *gang.parts.front().pool : *part->pool;
  const uint64_t position = pool.PositionOf(gang.number);
  const Waiter* const waiter = pool.FindWaiter(gang.number);
  const bool stopped = waiter != nullptr && waiter->detached;
  if (part != nullptr) {
    return pool.TimedOut(tenant, UnitsAskedOf(*part), part->ask.without_device, position, stopped);
  }
  const bool short_of_bytes = CapacityFor(gang).kind != Shortage::Kind::kNone;
  if (const std::optional<size_t> i = FindWithoutDevice(gang); !short_of_bytes && i.has_value()) {
    const AcquireRequest& permit = gang.permits[*i];
    return core_.permits.FindPool(permit.pool)->TimedOut(tenant, permit, /*without_device=*/0, position, stopped);
  }
  const PoolView view = pool.View();
  return berth::Refuse(Reason::kWaitTimedOut,
                       "permit pool {pool}: asked {asked} together, {out} of {cap} out; {why}; the wait ended at place "
                       "{position}",
                       {{"pool", view.config.name},
                        {"asked", gang.parts.front().ask.units},
                        {"out", view.out},
                        {"cap", view.config.cap},
                        {"why", short_of_bytes ? "the bytes that the request would reserve are not free"
                                               : "too few devices have capacity at once"},
                        {"position", position}});
}

WaitCause PermitTransaction::CauseOf(const Gang& gang) {
  if (!core_.sessions.tenant_use().MayHave(gang.requester.tenant, UnitsOf(gang))) return WaitCause::kTenantQuota;
  return CapacityFor(gang).kind == Shortage::Kind::kNone ? WaitCause::kDevice : WaitCause::kCapacity;
}

std::string PermitTransaction::LackingOf(const Gang& gang) const {
  const Placement& placement = core_.devices.placement();
  const std::vector<Placement::Ask> asks = AsksOf(gang);
  const auto lacks = std::find_if(asks.begin(), asks.end(), [&](const Placement::Ask& ask) {
    return placement.Choose(ask).verdict != Placement::Verdict::kFits;
  });
  if (lacks != asks.end()) return placement.Lacking(*lacks);
  const auto open = std::find_if(asks.begin(), asks.end(), [](const Placement::Ask& ask) {
    return ask.constraint.pick != DevicePick::kNamed;
  });
  return open == asks.end() ? "" : placement.Lacking(*open);
}

bool PermitTransaction::DevicesServe(const Gang& gang) const {
  return core_.devices.placement().AllServe(AsksOf(gang), BesidesOf(gang));
}

}  // namespace berth::core
