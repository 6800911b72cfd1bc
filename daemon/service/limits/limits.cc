// Limits on clients: the accept gate, and quotas of users.

#include <algorithm>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/token_bucket.h"
#include "daemon/core/types/user_share.h"
#include "daemon/service/limits/accept_gate.h"
#include "daemon/service/limits/uid_quota.h"

namespace berth::service {

// ---- accept_gate.h -------------------------------------------------------------------------------------------

absl::Status AcceptGate::Admit(uint32_t uid, absl::Time now) {
  MutexLock lock(&mu_);
  const bool uid_has_capacity = of_uid_.Of(now, uid).Take(now, 1);
  if (uid_has_capacity && total_.Take(now, 1)) return absl::OkStatus();
  ++refused_;
  const Rate& rate = uid_has_capacity ? rates_.total : rates_.per_uid;
  return RefuseWithRetry(Reason::kLimit, kPause, "{what}: limit {limit} at once and {per_second} a second",
                         {{"what", uid_has_capacity ? "new connections" : absl::StrCat("new connections of uid ", uid)},
                          {"limit", rate.burst},
                          {"per_second", rate.per_second}});
}

void AcceptGate::Punish(uint32_t uid, absl::Time now) {
  MutexLock lock(&mu_);
  of_uid_.Of(now, uid).TakeUpTo(now, kPenalty);
}

uint64_t AcceptGate::refused_total() const {
  MutexLock lock(&mu_);
  return refused_;
}

// ---- uid_quota.h ---------------------------------------------------------------------------------------------

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
