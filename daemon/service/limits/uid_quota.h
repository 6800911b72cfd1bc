// UidQuota: limits the file descriptors of each user's connections, by a limit that is the same for every user, and by
// the user's share of the total (daemon/core/types/user_share.h).

#ifndef DAEMON_SERVICE_LIMITS_UID_QUOTA_H_
#define DAEMON_SERVICE_LIMITS_UID_QUOTA_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"

namespace berth::service {

// Thread-safe.
class UidQuota {
 public:
  // One unit of a user's quota; returned when destroyed. Move-only.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept : quota_(std::exchange(other.quota_, nullptr)), uid_(other.uid_) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(quota_, other.quota_);
      std::swap(uid_, other.uid_);
      return *this;
    }
    ~Place() {
      if (quota_ != nullptr) quota_->GiveBack(uid_);
    }

   private:
    friend class UidQuota;
    Place(UidQuota* quota, uint32_t uid) : quota_(quota), uid_(uid) {}

    UidQuota* quota_ = nullptr;
    uint32_t uid_ = 0;
  };

  // `what` names the counted resource in refusals. Must outlive its places.
  UidQuota(std::string what, uint32_t limit, uint32_t total = UINT32_MAX)
      : what_(std::move(what)), limit_(limit), total_(total) {}

  // Errors: LIMIT.
  absl::StatusOr<Place> Take(uint32_t uid) ABSL_LOCKS_EXCLUDED(mu_);
  // Like Take(), for a resource that exists already: ignores the limit.
  Place TakeAnyway(uint32_t uid) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void GiveBack(uint32_t uid) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string what_;
  const uint32_t limit_;
  const uint32_t total_;

  Mutex mu_;
  // Units of all users.
  uint32_t sum_ ABSL_GUARDED_BY(mu_) = 0;
  // Units by user; only users with units.
  absl::flat_hash_map<uint32_t, uint32_t> taken_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_LIMITS_UID_QUOTA_H_
