// Gangs as they come: what is asked, and whether it can ever be.

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"
#include "daemon/core/fingerprint.h"

namespace berth::core {
namespace {

// What the gang asks, in words; judged by it, so nothing may be left out that decides.
std::string ShapeOf(const Gang& gang) {
  std::string shape = gang.what.exclusive ? "alone" : "";
  for (const GangMember& member : gang.what.members) {
    absl::StrAppend(&shape, shape.empty() ? "" : ", ", member.units, " of ", member.pool);
    if (member.client_cap != 0) absl::StrAppend(&shape, " while under ", member.client_cap, " are out");
    const DeviceWish& wish = member.device;
    if (wish.pick == DevicePick::kNone) continue;
    absl::StrAppend(&shape, " on ",
                    wish.pick == DevicePick::kNamed  ? wish.uuid
                    : wish.pick == DevicePick::kBest ? "the best device"
                                                     : "any device");
    if (wish.min_free > Bytes()) absl::StrAppend(&shape, " with ", wish.min_free.count(), " bytes free");
    if (wish.declared > Bytes()) absl::StrAppend(&shape, " for ", wish.declared.count(), " bytes");
  }
  for (const RoomAsk& ask : gang.room) {
    absl::StrAppend(&shape, ", ", ask.bytes.count(), " bytes of device ", ask.device, " for session ",
                    gang.asker.session.value());
  }
  return shape;
}

}  // namespace

absl::StatusOr<Gang> Core::Impl::MakeGang(const Admitted& admitted, const GangRequest& request,
                                          absl::Time now) {
  if (request.members.empty() || request.members.size() > kMaxGangMembers) {
    return Refuse(Reason::kInvalidField, "{field}: {value} permits; 1 to {limit} can be asked together",
                  {{"field", "members"}, {"value", request.members.size()}, {"limit", kMaxGangMembers}});
  }
  Gang gang{.request = admitted.request,
            .asker = {.session = admitted.session.id,
                      .tenant = admitted.session.tenant,
                      .process = admitted.channel.process},
            .what = request,
            .since = now};
  std::map<std::string, Gang::Part> parts;
  for (size_t i = 0; i < request.members.size(); ++i) {
    const GangMember& member = request.members[i];
    PermitPool* const pool = FindPool(member.pool);
    if (pool == nullptr) {
      return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "permit pool"}, {"id", member.pool}});
    }
    if (member.units == 0) {
      return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                    {{"field", "units"}, {"value", 0}, {"limit", 1}});
    }
    if (pool->shares().per_device() && member.device.pick == DevicePick::kNone) {
      gang.what.members[i].device.pick = DevicePick::kAny;
    }
    Gang::Part& part = parts[member.pool];
    part.pool = pool;
    part.ask.tenant = gang.asker.tenant;
    part.ask.exclusive = request.exclusive;
    part.ask.units = member.units > std::numeric_limits<uint64_t>::max() - part.ask.units
                         ? std::numeric_limits<uint64_t>::max()
                         : part.ask.units + member.units;
    if (member.client_cap != 0) {
      part.ask.client_cap =
          part.ask.client_cap == 0 ? member.client_cap : std::min(part.ask.client_cap, member.client_cap);
    }
    part.members.push_back(i);
    const size_t nth = part.members.size();
    gang.permits.push_back(
        {.pool = member.pool,
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
    BERTH_ASSIGN_OR_RETURN(gang.room, MeasureAll({.items = request.reserve}));
    BERTH_RETURN_IF_ERROR(MayReserve(gang.asker.session));
  }
  gang.shape = ShapeOf(gang);
  return gang;
}

absl::Status Core::Impl::CheckNotHeld(const Gang& gang) const {
  for (const Gang::Part& part : gang.parts) {
    for (const size_t i : part.members) {
      const std::optional<PermitView> held = part.pool->FindHeld(gang.asker, gang.permits[i]);
      if (held.has_value()) return AlreadyHeld(*held);
    }
  }
  return absl::OkStatus();
}

absl::Status Core::Impl::AlreadyHeld(const PermitView& permit) {
  return Refuse(
      Reason::kAlreadyHeld,
      "permit pool {pool}: permit {permit} of {held} is held already by who asks for several together, and "
      "would be kept while they are waited for: release it first",
      {{"pool", permit.pool}, {"permit", permit.id.value()}, {"held", permit.units}});
}

void Core::AcquireGang(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                       const GangRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request), request.deadline);
  if (admitted.has_value()) impl_->StartGang(step, *admitted, request);
}

void Core::Impl::StartGang(const Step& step, const Admitted& admitted, const GangRequest& request) {
  const RequestId id = admitted.request;
  absl::StatusOr<Gang> made = MakeGang(admitted, request, step.now);
  if (!made.ok()) return Answer(step, id, made.status());
  PermitRun run(this, &step);
  absl::Status refusal = CheckNotHeld(*made);
  if (refusal.ok()) refusal = run.Check(*made);
  if (!refusal.ok()) {
    for (const Gang::Part& part : made->parts) part.pool->NoteRefused();
    return Answer(step, id, refusal);
  }
  pending_.at(id).place = &gangs_;
  run.Enqueue(*std::move(made));
  run.Answer();
  NoteWaits(id);
}

}  // namespace berth::core
