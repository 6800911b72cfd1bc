// Limits on clients: the accept gate, and quotas of users.

#include <algorithm>
#include <string>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/token_bucket.h"
#include "daemon/core/types/user_share.h"
#include "daemon/service/limits/accept_gate.h"
#include "daemon/service/limits/uid_quota.h"

namespace berth::service {
namespace {

std::string ConnectionsOf(uint32_t user) { return absl::StrCat("new connections of uid ", user); }

}  // namespace

// ---- accept_gate.h -------------------------------------------------------------------------------------------

absl::Status AcceptGate::Admit(uint32_t uid, absl::Time now) {
  MutexLock lock(&mu_);
  const uint32_t user = UserBehindLocked(uid, now);
  if (!of_uid_.Of(now, user).Take(now, 1)) return RefuseLocked(ConnectionsOf(user), rates_.per_uid);
  return total_.Take(now, 1) ? absl::OkStatus() : RefuseLocked("new connections", rates_.total);
}

absl::Status AcceptGate::Attribute(uint32_t uid, uint32_t user, absl::Time now) {
  MutexLock lock(&mu_);
  const uint32_t counted = UserBehindLocked(uid, now);
  if (user == uid) {
    users_.erase(uid);
  } else {
    if (users_.size() >= kMaxRemembered) users_.clear();
    users_[uid] = {.user = user, .until = now + kMemory};
  }
  if (counted == user || of_uid_.Of(now, user).Take(now, 1)) return absl::OkStatus();
  total_.GiveBack(1);
  return RefuseLocked(ConnectionsOf(user), rates_.per_uid);
}

void AcceptGate::Withdraw() {
  MutexLock lock(&mu_);
  total_.GiveBack(1);
}

uint32_t AcceptGate::UserBehind(uint32_t uid, absl::Time now) const {
  MutexLock lock(&mu_);
  return UserBehindLocked(uid, now);
}

uint32_t AcceptGate::UserBehindLocked(uint32_t uid, absl::Time now) const {
  const auto found = users_.find(uid);
  return found == users_.end() || found->second.until < now ? uid : found->second.user;
}

absl::Status AcceptGate::RefuseLocked(const std::string& what, const Rate& rate) {
  ++refused_;
  return RefuseWithRetry(Reason::kLimit, kPause, "{what}: limit {limit} at once and {per_second} a second",
                         {{"what", what}, {"limit", rate.burst}, {"per_second", rate.per_second}});
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
