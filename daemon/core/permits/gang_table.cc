#include "daemon/core/permits/gang_table.h"

#include "daemon/core/types/invariant.h"

namespace berth::core {

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
    const auto count = reserving_by_session_.find(gang.requester.session);
    if (--count->second == 0) reserving_by_session_.erase(count);
  }
  Mark(gang);
  return gang;
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
