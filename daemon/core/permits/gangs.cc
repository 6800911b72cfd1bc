// Gang requests: validation and the check that the request can ever be granted.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/permits/gang_table.h"
#include "daemon/core/permits/permit_transaction.h"
#include "daemon/core/permits/permits.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"
#include "daemon/core/requests/wait_weight.h"
#include "daemon/core/types/invariant.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {
namespace {

uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  return b > std::numeric_limits<uint64_t>::max() - a ? std::numeric_limits<uint64_t>::max() : a + b;
}

// Returns the gang's request as text. Requests with equal text share one verdict, so the text contains all that
// decides.
std::string ShapeOf(const Gang& gang) {
  std::string shape = gang.what.exclusive ? "alone" : "";
  for (const GangMember& member : gang.what.members) {
    absl::StrAppend(&shape, shape.empty() ? "" : ", ", member.units, " of ", member.pool);
    if (member.client_cap != 0) absl::StrAppend(&shape, " while under ", member.client_cap, " are out");
    const DeviceConstraint& constraint = member.device;
    if (constraint.pick == DevicePick::kNone) continue;
    absl::StrAppend(&shape, " on ",
                    constraint.pick == DevicePick::kNamed  ? constraint.uuid
                    : constraint.pick == DevicePick::kBest ? "the best device"
                                                           : "any device");
    if (constraint.min_free > Bytes()) absl::StrAppend(&shape, " with ", constraint.min_free.count(), " bytes free");
    if (constraint.declared > Bytes()) absl::StrAppend(&shape, " for ", constraint.declared.count(), " bytes");
    if (constraint.min_capability > 0)
      absl::StrAppend(&shape, " of capability ", constraint.min_capability, " or more");
    if (!constraint.island_of.empty()) absl::StrAppend(&shape, " in the island of ", constraint.island_of);
    if (!constraint.among.empty()) absl::StrAppend(&shape, " among ", absl::StrJoin(constraint.among, "+"));
    if (constraint.wait_for_device) absl::StrAppend(&shape, " once it serves");
  }
  for (const ByteRequest& ask : gang.byte_requests) {
    absl::StrAppend(&shape, ", ", ask.bytes.count(), " bytes of device ", ask.device, " for session ",
                    gang.requester.session.value());
  }
  return shape;
}

}  // namespace

absl::StatusOr<Gang> Permits::MakeGang(const Admitted& admitted, const GangRequest& request, absl::Time now) {
  if (request.members.empty() || request.members.size() > kMaxGangMembers) {
    return Refuse(Reason::kInvalidField, "{field}: {value} permits; a request takes 1 to {limit} together",
                  {{"field", "members"}, {"value", request.members.size()}, {"limit", kMaxGangMembers}});
  }
  Gang gang{.request = admitted.request,
            .requester = {.session = admitted.session.id,
                          .tenant = admitted.session.tenant,
                          .process = admitted.channel.process,
                          .of_operator = admitted.session.of_operator},
            .what = request,
            .since = now};
  std::map<std::string, Gang::Part> parts;
  for (size_t i = 0; i < request.members.size(); ++i) {
    const GangMember& member = request.members[i];
    PermitPool* const pool = FindPool(member.pool);
    if (pool == nullptr) {
      return Refuse(Reason::kNotFound, "no {kind} {id}: `berth status` lists the pools",
                    {{"kind", "permit pool"}, {"id", member.pool}});
    }
    if (member.units == 0) {
      return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                    {{"field", "units"}, {"value", 0}, {"limit", 1}});
    }
    if (pool->shares().per_device() && member.device.pick == DevicePick::kNone) {
      gang.what.members[i].device.pick = DevicePick::kAny;
    }
    BERTH_RETURN_IF_ERROR(core_.devices.placement().Resolve(&gang.what.members[i].device));
    Gang::Part& part = parts[member.pool];
    part.pool = pool;
    part.ask.tenant = gang.requester.tenant;
    part.ask.exclusive = request.exclusive;
    part.ask.units = SaturatingAdd(part.ask.units, member.units);
    if (gang.what.members[i].device.pick == DevicePick::kNone) {
      part.ask.without_device = SaturatingAdd(part.ask.without_device, member.units);
    }
    if (member.client_cap != 0) {
      part.ask.client_cap =
          part.ask.client_cap == 0 ? member.client_cap : std::min(part.ask.client_cap, member.client_cap);
    }
    part.members.push_back(i);
    const size_t nth = part.members.size();
    gang.permits.push_back({.pool = member.pool,
                            .units = member.units,
                            .holder_key = nth == 1 ? request.holder_key : absl::StrCat(request.holder_key, "#", nth),
                            .label = request.label,
                            .adoptable = request.adoptable,
                            .independent = request.independent,
                            .priority = request.priority,
                            .exclusive = request.exclusive,
                            .device = gang.what.members[i].device});
  }
  for (auto& [name, part] : parts) gang.parts.push_back(std::move(part));
  if (!request.reserve.empty()) {
    BERTH_ASSIGN_OR_RETURN(gang.byte_requests, core_.reservations.MeasureAll({.items = request.reserve}));
    BERTH_RETURN_IF_ERROR(core_.reservations.MayReserve(gang.requester.session));
  }
  gang.shape = ShapeOf(gang);
  return gang;
}

absl::Status Permits::CheckNotHeld(const Gang& gang) const {
  for (const Gang::Part& part : gang.parts) {
    for (const size_t i : part.members) {
      const std::optional<PermitView> held = part.pool->FindHeld(gang.requester, gang.permits[i]);
      if (held.has_value()) return AlreadyHeld(*held);
    }
  }
  return absl::OkStatus();
}

absl::Status Permits::AlreadyHeld(const PermitView& permit) {
  return Refuse(
      Reason::kAlreadyHeld,
      "permit pool {pool}: the requester already holds permit {permit} (units: {held}), and a request for several "
      "permits would wait while it holds that: release it first, or add --independent inside `berth run`",
      {{"pool", permit.pool}, {"permit", permit.id.value()}, {"held", permit.units}});
}

void Permits::AcquireGang(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                          const GangRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request), request.deadline);
  if (admitted.has_value()) StartGang(step, *admitted, request);
}

void Permits::StartGang(StepContext& step, const Admitted& admitted, const GangRequest& request) {
  const RequestId id = admitted.request;
  absl::StatusOr<Gang> made = MakeGang(admitted, request, step.now);
  if (!made.ok()) return core_.requests.Answer(step, id, made.status());
  PermitTransaction transaction(core_, &step);
  absl::Status refusal = CheckNotHeld(*made);
  if (refusal.ok()) refusal = transaction.Check(*made);
  if (!refusal.ok()) {
    for (const Gang::Part& part : made->parts) part.pool->RecordRefused();
    return core_.requests.Answer(step, id, refusal);
  }
  core_.requests.SetPlace(id, this);
  transaction.Enqueue(*std::move(made));
  transaction.Answer();
  core_.requests.MarkWaiting(id);
  BeginWait(step, id);
}

void Permits::AddGangBytes(const Gang& gang) {
  if (gang.byte_requests.empty()) return;
  std::vector<GangByteIndex::Ask> asks;
  for (const ByteRequest& ask : gang.byte_requests) {
    for (const LayerBudget& layer : core_.budgets.LayersOf(ask.device, gang.requester.session, gang.requester.tenant)) {
      const bool of_device = layer.layer == Layer::kDevice;
      asks.push_back({.budget = layer.budget->number(),
                      .bytes = ask.bytes,
                      .device = of_device ? std::optional(ask.device) : std::nullopt,
                      .account = of_device ? layer.budget : nullptr});
    }
  }
  gangs_.bytes().Add(gang.number, std::move(asks));
}

bool Permits::TrimForGang(StepContext& step, const Gang& gang) {
  if (gang.byte_requests.empty()) return false;
  ++assessed_;
  const Waiting waiting = PermitTransaction::WaitingOf(gang);
  const Shortage shortage = core_.byte_queue.Assess(waiting, {});
  if (shortage.kind == Shortage::Kind::kComing) core_.byte_queue.TrimFor(step, waiting, shortage);
  return shortage.kind == Shortage::Kind::kHeld && gangs_.bytes().Park(gang.number, *shortage.held);
}

void Permits::ServeGangBytes(StepContext& step) {
  const std::vector<ByteBudget*> changed = core_.byte_queue.changes()->TakeForGangs();
  const bool capacity = std::exchange(step.dirty.gang_bytes, false);
  if (gangs_.reserving().empty()) return;
  PermitTransaction transaction(core_, &step);
  std::set<uint32_t> devices;
  for (const ByteBudget* const budget : changed) {
    for (const uint64_t number : gangs_.bytes().FindTooLarge(*budget)) {
      ++assessed_;
      transaction.Reconsider(*gangs_.FindByNumber(number));
    }
    if (budget->number() <= kMaxDeviceOrdinals) devices.insert(static_cast<uint32_t>(budget->number() - 1));
  }
  transaction.Answer();
  if (!changed.empty()) gangs_.bytes().Unpark(&devices);
  for (const uint32_t ordinal : devices) {
    const ByteBudget& account = core_.devices.At(ordinal).account;
    // The blocks trimmed for the largest request suffice for the others.
    while (account.warm() > Bytes()) {
      const uint64_t number = gangs_.bytes().FindComing(account);
      if (number == 0 || !TrimForGang(step, *gangs_.FindByNumber(number))) break;
    }
  }
  step.dirty.pools = step.dirty.pools || capacity;
}

uint64_t Permits::NextWaiter() {
  core_.journal.Touch(RecordKind::kCounters);
  return ++permit_ids_.last_waiter;
}

bool Undo(const UndoStep& undo, const GangResult& result) {
  bool undone = false;
  for (const AcquireResult& permit : result.permits) undone = Undo(undo, permit) || undone;
  if (result.reservation.has_value()) {
    undone = Undo(undo, ReserveResult{.reservation = *result.reservation}) || undone;
  }
  return undone;
}

// ---- gang_table.h --------------------------------------------------------------------------------------------

const Gang& GangTable::Add(Gang gang) {
  Mark(gang);
  by_number_.emplace(gang.number, gang.request);
  const RequestId request = gang.request;
  deadlines_.emplace(gang.what.deadline, request);
  if (!gang.byte_requests.empty()) {
    reserving_.insert(request);
    ++reserving_by_session_[gang.requester.session];
  }
  const auto [at, fresh] = gangs_.emplace(request, std::move(gang));
  BERTH_INVARIANT(fresh);
  return at->second;
}

const Gang* GangTable::Find(const RequestId& request) const {
  const auto found = gangs_.find(request);
  return found == gangs_.end() ? nullptr : &found->second;
}

const Gang* GangTable::FindByNumber(uint64_t number) const {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : &gangs_.at(found->second);
}

Gang GangTable::Take(const RequestId& request) {
  const auto found = gangs_.find(request);
  BERTH_INVARIANT(found != gangs_.end());
  deadlines_.erase({found->second.what.deadline, request});
  Gang gang = std::move(found->second);
  gangs_.erase(found);
  by_number_.erase(gang.number);
  if (reserving_.erase(request) > 0) {
    bytes_.Remove(gang.number);
    const auto count = reserving_by_session_.find(gang.requester.session);
    if (--count->second == 0) reserving_by_session_.erase(count);
  }
  Mark(gang);
  return gang;
}

uint64_t GangTable::WeightOf(const Gang& gang) {
  uint64_t weight = WaitWeight(gang);
  for (const Gang::Part& part : gang.parts) weight += WaitWeight(gang.permits[part.members.front()], gang.shape);
  return weight;
}

void GangTable::SetDeadline(const RequestId& request, absl::Time deadline) {
  Gang& gang = gangs_.at(request);
  deadlines_.erase({gang.what.deadline, request});
  gang.what.deadline = deadline;
  deadlines_.emplace(deadline, request);
  Mark(gang);
}

const Gang* GangTable::FindExpired(absl::Time now) const {
  if (next_deadline() > now) return nullptr;
  return &gangs_.at(deadlines_.begin()->second);
}

absl::Time GangTable::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

uint64_t GangTable::CountReserving(SessionId session) const {
  const auto found = reserving_by_session_.find(session);
  return found == reserving_by_session_.end() ? 0 : found->second;
}

}  // namespace berth::core
