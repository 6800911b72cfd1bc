#include "daemon/service/limits/accept_gate.h"

#include <berth/error.h>

#include "absl/strings/str_cat.h"

namespace berth::service {

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

}  // namespace berth::service
