#include "daemon/core/permit_run.h"

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

using Verdict = WaitQueue::Verdict;

// Of two parts of a gang: the one that is further from being granted.
Verdict Worse(Verdict a, Verdict b) {
  if (a == Verdict::kAside || b == Verdict::kAside) return Verdict::kAside;
  return a == Verdict::kFits ? b : a;
}

Verdict ToQueue(Placement::Verdict verdict) {
  if (verdict == Placement::Verdict::kFits) return Verdict::kFits;
  return verdict == Placement::Verdict::kWaits ? Verdict::kWaits : Verdict::kAside;
}

// Over all its pools.
uint64_t UnitsOf(const Gang& gang) {
  uint64_t units = 0;
  for (const Gang::Part& part : gang.parts) units += std::min(part.ask.units, UINT64_MAX - units);
  return units;
}

// The members that wish for a device.
std::vector<size_t> Placed(const Gang& gang) {
  std::vector<size_t> placed;
  for (size_t i = 0; i < gang.what.members.size(); ++i) {
    if (gang.what.members[i].device.pick != DevicePick::kNone) placed.push_back(i);
  }
  return placed;
}

}  // namespace

PoolStep PermitRun::step() { return {.now = step_->now, .outcomes = &outcomes_, .gangs = this}; }

void PermitRun::Answer() {
  // By what one pool has granted a gang may stand aside in the others, too: it is at its tenant's cap there.
  core_->serve_pools_ = core_->serve_pools_ || (!outcomes_.empty() && !core_->gangs_.gangs().empty());
  for (AcquireOutcome& outcome : std::exchange(outcomes_, {})) {
    core_->Answer(*step_, outcome.request, std::move(outcome.result));
  }
}

const Gang& PermitRun::GangOf(const RequestId& request) {
  const Gang* const gang = core_->gangs_.Find(request);
  BERTH_INVARIANT(gang != nullptr);
  return *gang;
}

std::vector<Placement::Ask> PermitRun::AsksOf(const Gang& gang) const {
  std::vector<Placement::Ask> asks;
  for (const size_t i : Placed(gang)) {
    const GangMember& member = gang.what.members[i];
    asks.push_back(
        {.wish = member.device, .units = member.units, .shares = &core_->FindPool(member.pool)->shares()});
  }
  return asks;
}

Placement::BytesByDevice PermitRun::BesidesOf(const Gang& gang) {
  Placement::BytesByDevice besides;
  for (const RoomAsk& ask : gang.room) besides[ask.device] = ask.bytes;
  return besides;
}

Waiting PermitRun::WaitingOf(const Gang& gang) {
  return {.request = gang.request,
          .session = gang.asker.session,
          .tenant = gang.asker.tenant,
          .asks = gang.room,
          .label = gang.what.label,
          .reserve_for = gang.what.reserve_for};
}

Shortage PermitRun::RoomFor(const Gang& gang) {
  if (gang.room.empty()) return Shortage();
  // Room that is kept for who waits for it alone is not the gang's.
  std::vector<ByteBudget*> kept;
  for (const Waiting& waiting : core_->room_.entries()) {
    if (!core_->room_.Keeps(waiting)) continue;
    const Shortage lacking = core_->Assess(waiting, {});
    kept.insert(kept.end(), lacking.lacking.begin(), lacking.lacking.end());
  }
  return core_->Assess(WaitingOf(gang), kept);
}

Verdict PermitRun::JudgeParts(const Waiter& waiter) {
  if (waiter.absent) return Verdict::kAside;
  const Gang& gang = GangOf(waiter.request);
  Verdict verdict = Verdict::kFits;
  for (const Gang::Part& part : gang.parts) verdict = Worse(verdict, part.pool->JudgeUnits(part.ask));
  if (!core_->tenant_use_.MayHave(gang.asker.tenant, UnitsOf(gang))) return Verdict::kAside;
  if (verdict == Verdict::kAside) return verdict;
  if (RoomFor(gang).kind != Shortage::Kind::kNone) return Verdict::kAside;
  const std::vector<Placement::Ask> asks = AsksOf(gang);
  if (asks.empty()) return verdict;
  return Worse(verdict, ToQueue(core_->placement_.ChooseAll(asks, BesidesOf(gang)).verdict));
}

Verdict PermitRun::Judge(const Waiter& waiter) {
  const Verdict verdict = JudgeParts(waiter);
  if (verdict != Verdict::kFits) return verdict;
  for (const Gang::Part& part : GangOf(waiter.request).parts) {
    if (part.pool->KeptFrom(waiter.number, this)) return Verdict::kWaits;
  }
  return verdict;
}

void PermitRun::Enqueue(Gang made) {
  made.number = core_->NextWaiter();
  const Gang& gang = core_->gangs_.Add(std::move(made));
  const RequestId request = gang.request;
  for (const Gang::Part& part : gang.parts) {
    Waiter waiter{.number = gang.number,
                  .request = request,
                  .asker = gang.asker,
                  .what = gang.permits[part.members.front()],
                  .since = gang.since,
                  .charge = part.ask.exclusive ? part.pool->config().cap : part.ask.units,
                  .gang = gang.shape};
    waiter.what.units = part.ask.units;
    waiter.what.client_cap = part.ask.client_cap;
    waiter.what.device = {};
    const absl::Status pushed = part.pool->Push(std::move(waiter));
    if (!pushed.ok()) return Refuse(request, pushed);
  }
  for (const Gang::Part& part : gang.parts) {
    part.pool->Serve(step());
    // It may be gone with that.
    if (core_->gangs_.Find(request) == nullptr) return;
  }
  if (!gang.what.wait) return Refuse(request, NoPermit(gang));
  if (gang.what.deadline <= step_->now) return Refuse(request, TimedOut(gang));
  if (const absl::Status may = core_->tenant_use_.CheckMayWait(gang.asker.tenant); !may.ok()) {
    return Refuse(request, may);
  }
  core_->TrimForGang(*step_, gang);
}

void PermitRun::Grant(const RequestId& request) {
  for (const Gang::Part& part : GangOf(request).parts) {
    if (!part.pool->MayGo(step(), GangOf(request).number)) return;
  }
  for (const Gang::Part& part : GangOf(request).parts) part.pool->TakeTurn(step(), GangOf(request).number);
  const Gang gang = core_->gangs_.Take(request);
  const Placement::Choices choices = core_->placement_.ChooseAll(AsksOf(gang), BesidesOf(gang));
  const std::vector<size_t> placed = Placed(gang);
  // Before those who are told that they nest in it.
  const size_t told = outcomes_.size();
  outcomes_.push_back({request, Response(GangResult())});
  GangResult result;
  for (size_t i = 0; i < gang.permits.size(); ++i) {
    PermitPool& pool = *core_->FindPool(gang.permits[i].pool);
    const auto at = std::find(placed.begin(), placed.end(), i);
    std::optional<uint32_t> device;
    if (at != placed.end()) device = choices.ordinals.at(at - placed.begin());
    // An exclusive one is charged as all of the pool, once.
    const bool first = gang.permits[i].holder_key == gang.what.holder_key;
    const uint64_t alone = first ? pool.config().cap : 0;
    result.permits.push_back(pool.GrantPart(step(),
                                            {.number = gang.number,
                                             .request = request,
                                             .asker = gang.asker,
                                             .what = gang.permits[i],
                                             .since = gang.since,
                                             .charge = gang.what.exclusive ? alone : gang.permits[i].units,
                                             .gang = gang.shape},
                                            device));
  }
  if (!gang.room.empty()) result.reservation = core_->ReserveForGang(*step_, WaitingOf(gang));
  outcomes_[told].result = Response(std::move(result));
  core_->serve_pools_ = true;
}

void PermitRun::Hold(const RequestId& request) {
  const Gang& gang = GangOf(request);
  for (const Gang::Part& part : gang.parts) part.pool->Hold(gang.number);
  // What another pool keeps for those behind it is not kept from it any more: it may fit now.
  core_->serve_pools_ = true;
}

void PermitRun::PermitGranted(const RequestId& request, const PermitView& permit) {
  const Gang* const gang = core_->gangs_.Find(request);
  if (gang == nullptr) return;
  const bool adopted = permit.adoptable && !gang->what.independent;
  const bool held = std::any_of(gang->permits.begin(), gang->permits.end(), [&](const AcquireRequest& asked) {
    return asked.pool == permit.pool && asked.holder_key == permit.holder_key;
  });
  if (adopted || held) Refuse(request, Core::Impl::AlreadyHeld(permit));
}

ReleaseResult PermitRun::ReleaseIfIdle(SessionId session, AcquisitionId acquisition) {
  // What is not out any more was taken back before.
  ReleaseResult result;
  for (auto& [name, pool] : core_->pools_) {
    if (pool.Holds(session, acquisition)) result.returned = pool.ReleaseIfIdle(step(), acquisition);
  }
  Answer();
  return result;
}

void PermitRun::Refuse(const RequestId& request, const absl::Status& status) {
  const Gang gang = core_->gangs_.Take(request);
  for (const Gang::Part& part : gang.parts) {
    part.pool->Leave(gang.number);
    part.pool->NoteRefused();
  }
  outcomes_.push_back({request, status});
  // Units may have been kept for it.
  core_->serve_pools_ = true;
}

void PermitRun::Expire() {
  while (const Gang* const expired = core_->gangs_.FindExpired(step_->now)) {
    Refuse(RequestId(expired->request), TimedOut(*expired));
  }
}

void PermitRun::Reconsider() {
  std::vector<std::pair<RequestId, absl::Status>> never;
  for (const auto& [request, gang] : core_->gangs_.gangs()) {
    absl::Status status = Check(gang);
    if (!status.ok()) never.emplace_back(request, std::move(status));
  }
  for (const auto& [request, status] : never) Refuse(request, status);
}

absl::Status PermitRun::Check(const Gang& gang) {
  for (const Gang::Part& part : gang.parts) {
    const PoolConfig& config = part.pool->config();
    const bool of_tenant = config.tenant_cap != 0 && config.tenant_cap < config.cap;
    const uint64_t cap = of_tenant ? config.tenant_cap : config.cap;
    if (part.ask.units <= cap) continue;
    return berth::Refuse(
        Reason::kOverCap,
        "permit pool {pool}: asked {asked} together, cap{whose} {cap}: ask for at most {cap}, or have "
        "the cap raised to {asked}",
        {{"pool", config.name},
         {"asked", part.ask.units},
         {"whose", of_tenant ? " of one tenant" : ""},
         {"cap", cap}});
  }
  BERTH_RETURN_IF_ERROR(
      core_->tenant_use_.CheckUnits(gang.asker.tenant, gang.what.members.front().pool, UnitsOf(gang)));
  std::vector<Placement::Ask> asks;
  for (const size_t i : Placed(gang)) {
    const GangMember& member = gang.what.members[i];
    asks.push_back(
        {.wish = member.device, .units = member.units, .shares = &core_->FindPool(member.pool)->shares()});
    BERTH_RETURN_IF_ERROR(core_->placement_.Check(member.pool, asks.back()));
  }
  BERTH_RETURN_IF_ERROR(core_->placement_.CheckAll(gang.what.members.front().pool, asks, BesidesOf(gang)));
  for (const RoomAsk& ask : gang.room) {
    const Device& device = core_->devices_.at(ask.device);
    if (!device.main.in_service()) return Core::Impl::OutOfService(device, Lane::kMain);
    if (!device.drain_reason.empty()) return Core::Impl::Draining(device);
  }
  if (gang.room.empty()) return absl::OkStatus();
  const Shortage shortage = core_->Assess(WaitingOf(gang), {});
  return shortage.kind == Shortage::Kind::kTooLarge ? core_->RefuseOver(shortage) : absl::OkStatus();
}

const Gang::Part* PermitRun::FindLacking(const Gang& gang) {
  for (const Gang::Part& part : gang.parts) {
    if (part.pool->JudgeUnits(part.ask) != Verdict::kFits || part.pool->KeptFrom(gang.number, this))
      return &part;
  }
  return nullptr;
}

absl::Status PermitRun::NoPermit(const Gang& gang) {
  if (const uint64_t units = UnitsOf(gang); !core_->tenant_use_.MayHave(gang.asker.tenant, units)) {
    return core_->tenant_use_.Lacking(gang.asker.tenant, gang.what.members.front().pool, units);
  }
  if (const Gang::Part* const part = FindLacking(gang); part != nullptr) {
    return part->pool->NoPermit(gang.asker, {.units = part->ask.units, .client_cap = part->ask.client_cap});
  }
  if (const Shortage shortage = RoomFor(gang); shortage.kind != Shortage::Kind::kNone) {
    return core_->RefuseOver(shortage);
  }
  // One device that lacks is named; else they lack together.
  for (const size_t i : Placed(gang)) {
    const PermitPool& pool = *core_->FindPool(gang.permits[i].pool);
    const Placement::Ask ask{
        .wish = gang.permits[i].device, .units = gang.permits[i].units, .shares = &pool.shares()};
    if (core_->placement_.Choose(ask).verdict != Placement::Verdict::kFits) {
      return pool.NoPermit(gang.asker, gang.permits[i]);
    }
  }
  AcquireRequest first = gang.permits.front();
  first.units = gang.parts.front().ask.units;
  return FindPoolOf(gang)->NoPermit(gang.asker, first);
}

PermitPool* PermitRun::FindPoolOf(const Gang& gang) const {
  return core_->FindPool(gang.permits.front().pool);
}

absl::Status PermitRun::TimedOut(const Gang& gang) {
  const Gang::Part* lacking = FindLacking(gang);
  if (lacking == nullptr) lacking = &gang.parts.front();
  return lacking->pool->TimedOut({.units = lacking->ask.units}, lacking->pool->PositionOf(gang.number));
}

WaitCause PermitRun::CauseOf(const Gang& gang) {
  if (!core_->tenant_use_.MayHave(gang.asker.tenant, UnitsOf(gang))) return WaitCause::kTenantQuota;
  return RoomFor(gang).kind == Shortage::Kind::kNone ? WaitCause::kDevice : WaitCause::kRoom;
}

}  // namespace berth::core
