#include "daemon/core/gang_table.h"

#include "daemon/core/invariant.h"

namespace berth::core {

const Gang& GangTable::Add(Gang gang) {
  Note(gang);
  by_number_.emplace(gang.number, gang.request);
  const RequestId request = gang.request;
  deadlines_.emplace(gang.what.deadline, request);
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
  Note(gang);
  return gang;
}

void GangTable::SetDeadline(const RequestId& request, absl::Time deadline) {
  Gang& gang = gangs_.at(request);
  deadlines_.erase({gang.what.deadline, request});
  gang.what.deadline = deadline;
  deadlines_.emplace(deadline, request);
  Note(gang);
}

const Gang* GangTable::FindExpired(absl::Time now) const {
  if (next_deadline() > now) return nullptr;
  return &gangs_.at(deadlines_.begin()->second);
}

absl::Time GangTable::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

uint64_t GangTable::CountReserving(SessionId session) const {
  uint64_t count = 0;
  for (const auto& [request, gang] : gangs_) {
    count += gang.asker.session == session && !gang.room.empty() ? 1 : 0;
  }
  return count;
}

}  // namespace berth::core
