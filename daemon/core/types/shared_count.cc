#include "daemon/core/types/shared_count.h"

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/core/types/invariant.h"
#include "daemon/core/types/user_share.h"

namespace berth::core {
namespace {

// A place becomes free when another request ends, so a retry sooner than this is of no use.
constexpr absl::Duration kRetry = absl::Seconds(1);

}  // namespace

uint64_t SharedCount::CountOf(uint32_t user) const {
  const auto found = by_user_.find(user);
  return found == by_user_.end() ? 0 : found->second;
}

uint64_t SharedCount::ShareOf(uint32_t user) const { return UserShare(limit_, of_users_ - CountOf(user)); }

absl::Status SharedCount::Check(const Claimant& claimant, uint64_t more) const {
  return CheckWith(claimant, claimant.of_operator ? of_operators_ : CountOf(claimant.user), more);
}

absl::Status SharedCount::CheckTaken(const Claimant& claimant, uint64_t taken) const {
  return CheckWith(claimant, (claimant.of_operator ? of_operators_ : CountOf(claimant.user)) - taken, taken);
}

absl::Status SharedCount::CheckWith(const Claimant& claimant, uint64_t has, uint64_t more) const {
  const uint64_t share = claimant.of_operator ? reserve_ : ShareOf(claimant.user);
  if (has <= share && more <= share - has) return absl::OkStatus();
  const std::string prefix = where_.empty() ? "" : absl::StrCat(where_, ": ");
  const std::string suffix = way_out_.empty() ? "" : absl::StrCat("; ", way_out_);
  if (claimant.of_operator) {
    return RefuseWithRetry(Reason::kLimit, kRetry,
                           absl::StrCat(prefix, "{what}: operators have {current}, limit {limit}", suffix),
                           {{"what", what_}, {"current", has}, {"limit", share}});
  }
  return RefuseWithRetry(
      Reason::kLimit, kRetry,
      absl::StrCat(prefix, "{what}: user {user} has {current}, share {limit}; all users have {all} of {total}", suffix),
      {{"what", what_},
       {"user", claimant.user},
       {"current", has},
       {"limit", share},
       {"all", of_users_ - CountOf(claimant.user) + has},
       {"total", limit_}});
}

void SharedCount::Take(const Claimant& claimant, uint64_t count) {
  if (count == 0) return;
  if (claimant.of_operator) {
    of_operators_ += count;
    return;
  }
  of_users_ += count;
  by_user_[claimant.user] += count;
}

void SharedCount::Take(const SharedCount& other) {
  of_operators_ += other.of_operators_;
  of_users_ += other.of_users_;
  for (const auto& [user, count] : other.by_user_) by_user_[user] += count;
}

void SharedCount::Give(const Claimant& claimant, uint64_t count) {
  if (count == 0) return;
  if (claimant.of_operator) {
    BERTH_INVARIANT(of_operators_ >= count);
    of_operators_ -= count;
    return;
  }
  const auto found = by_user_.find(claimant.user);
  BERTH_INVARIANT(found != by_user_.end() && found->second >= count);
  of_users_ -= count;
  if ((found->second -= count) == 0) by_user_.erase(found);
}

}  // namespace berth::core
