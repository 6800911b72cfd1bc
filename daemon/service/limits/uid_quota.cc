#include "daemon/service/limits/uid_quota.h"

#include <algorithm>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "daemon/core/types/user_share.h"

namespace berth::service {

absl::StatusOr<UidQuota::Place> UidQuota::Take(uint32_t uid) {
  MutexLock lock(&mu_);
  const auto found = taken_.find(uid);
  const uint32_t current = found == taken_.end() ? 0 : found->second;
  const uint64_t limit = std::min<uint64_t>(limit_, core::UserShare(total_, sum_ - current));
  if (current >= limit) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                  {{"what", absl::StrCat(what_, " of uid ", uid)}, {"current", current}, {"limit", limit}});
  }
  ++taken_[uid];
  ++sum_;
  return Place(this, uid);
}

UidQuota::Place UidQuota::TakeAnyway(uint32_t uid) {
  MutexLock lock(&mu_);
  ++taken_[uid];
  ++sum_;
  return Place(this, uid);
}

void UidQuota::GiveBack(uint32_t uid) {
  MutexLock lock(&mu_);
  const auto it = taken_.find(uid);
  if (--it->second == 0) taken_.erase(it);
  --sum_;
}

}  // namespace berth::service
