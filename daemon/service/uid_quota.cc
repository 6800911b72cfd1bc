#include "daemon/service/uid_quota.h"

#include "absl/strings/str_cat.h"
#include "common/error.h"

namespace berth::service {

absl::StatusOr<UidQuota::Place> UidQuota::Take(uint32_t uid) {
  MutexLock lock(&mu_);
  uint32_t& taken = taken_[uid];
  if (taken >= limit_) {
    const uint32_t current = taken;
    if (current == 0) taken_.erase(uid);
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                  {{"what", absl::StrCat(what_, " of uid ", uid)}, {"current", current}, {"limit", limit_}});
  }
  ++taken;
  return Place(this, uid);
}

UidQuota::Place UidQuota::TakeAnyway(uint32_t uid) {
  MutexLock lock(&mu_);
  ++taken_[uid];
  return Place(this, uid);
}

void UidQuota::GiveBack(uint32_t uid) {
  MutexLock lock(&mu_);
  const auto it = taken_.find(uid);
  if (--it->second == 0) taken_.erase(it);
}

}  // namespace berth::service
