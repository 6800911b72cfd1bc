// SharedCount: a count with one limit for all users, in which each user has a share (user_share.h) and operators have
// their own reserve. It only counts; the owner manages the counted objects. Arithmetic only. Thread-compatible.

#ifndef DAEMON_CORE_TYPES_SHARED_COUNT_H_
#define DAEMON_CORE_TYPES_SHARED_COUNT_H_

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/core/types/caller.h"

namespace berth::core {

// A user, or an operator of that user.
struct Claimant {
  uint32_t user = 0;
  bool of_operator = false;
};

class SharedCount {
 public:
  static constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

  // `what` names the count in refusals. `where` names the object that it belongs to ("permit pool x"); empty for the
  // node. All users together may have `limit`, all operators together `reserve` more. `way_out` ends a refusal with the
  // caller's next step; empty for none.
  SharedCount(std::string what, uint64_t limit, uint64_t reserve, std::string where = "", std::string way_out = "")
      : what_(std::move(what)),
        where_(std::move(where)),
        way_out_(std::move(way_out)),
        limit_(limit),
        reserve_(reserve) {}

  // Checks that the claimant may take `more`. Errors: LIMIT, with the values "what", "user", "current", "limit" (the
  // share).
  absl::Status Check(const Claimant& claimant, uint64_t more = 1) const;
  // Checks that the claimant may keep the `taken` places that it took last. Errors: as Check() before they were taken.
  absl::Status CheckTaken(const Claimant& claimant, uint64_t taken = 1) const;
  void Take(const Claimant& claimant, uint64_t count = 1);
  // Adds the counts of another SharedCount.
  void Take(const SharedCount& other);
  // Requires: the claimant has taken that many.
  void Give(const Claimant& claimant, uint64_t count = 1);

  // Returns the user's count, without its operators.
  uint64_t CountOf(uint32_t user) const;
  // Returns the count of all operators together.
  uint64_t of_operators() const { return of_operators_; }
  // Returns the count of all users, without operators.
  uint64_t of_users() const { return of_users_; }
  uint64_t limit() const { return limit_; }
  // Returns the most that the user may have while the counts of the others stay unchanged.
  uint64_t ShareOf(uint32_t user) const;

  friend bool operator==(const SharedCount& a, const SharedCount& b) {
    return a.of_operators_ == b.of_operators_ && a.of_users_ == b.of_users_ && a.by_user_ == b.by_user_;
  }

 private:
  absl::Status CheckWith(const Claimant& claimant, uint64_t has, uint64_t more) const;

  const std::string what_;
  const std::string where_;
  const std::string way_out_;
  const uint64_t limit_;
  const uint64_t reserve_;
  uint64_t of_operators_ = 0;
  uint64_t of_users_ = 0;
  // Only users with a count above 0.
  absl::flat_hash_map<uint32_t, uint64_t> by_user_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_SHARED_COUNT_H_
