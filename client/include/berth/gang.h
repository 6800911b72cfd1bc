// Gang: several permits of one or several pools, and optionally reserved bytes, granted all or none, under one guard.
// No request holds a part while it waits for the rest, so two requests for the same two GPUs cannot deadlock.
//
//   absl::StatusOr<berth::Gang> gang =
//       berth::Gang::Acquire(session, {.members = {{.device = "any"}, {.device = "any"}}});
//   if (!gang.ok()) return gang.status();
//   Train(gang->environment());   // CUDA_VISIBLE_DEVICES names both
//   // The destructor of `gang` returns everything.

#ifndef BERTH_GANG_H_
#define BERTH_GANG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/cancellation.h>
#include <berth/permit.h>
#include <berth/reservation.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace berth {

struct GangMember {
  // Pool name. Empty: "gpu-tests".
  std::string pool;
  uint64_t units = 1;
  // As in PermitOptions. Members that do not name a UUID get pairwise different devices, used by no other member.
  std::string device;
  Bytes min_free;
  Bytes declared;
  uint32_t min_capability = 0;
  std::string island_of;
  std::vector<std::string> among;
  bool wait_for_device = false;
};

struct GangOptions {
  // 1 to 64.
  std::vector<GangMember> members;
  // Bytes reserved together with the permits.
  std::vector<ReservationItem> reserve;
  // How long reserved bytes that are not yet drawn stay reserved.
  absl::Duration reserve_ttl = absl::InfiniteDuration();
  // The fields below are as in PermitOptions. Acquires with the holder's key nest in the gang's first permit of their
  // pool.
  std::string label;
  int32_t priority = 0;
  absl::Duration max_wait = absl::InfiniteDuration();
  std::string holder_key;
  bool exclusive = false;
  bool independent = false;
  bool adoptable = false;
  // Called for each of the permits.
  std::function<void(const PermitEvent&)> on_event;
  Cancellation* cancellation = nullptr;
};

// Move-only; one thread at a time uses one gang.
class Gang {
 public:
  // Acquires all of the gang, waiting for its turn. Errors: ALREADY_HELD (this thread has a permit in one of the pools,
  // or `berth run` has one and the gang is not independent); OVER_CAP, OVER_BUDGET (can never be granted; the message
  // says what would have to change); otherwise those of Permit::Acquire() and Reservation::Make().
  static absl::StatusOr<Gang> Acquire(const std::shared_ptr<Session>& session, const GangOptions& options);
  // Acquires only what is free now: Acquire() with max_wait 0.
  static absl::StatusOr<Gang> TryAcquire(const std::shared_ptr<Session>& session, GangOptions options);

  Gang(Gang&&) noexcept = default;
  Gang& operator=(Gang&&) noexcept = default;

  // In the order of the members. The caller may move a permit out of the gang and release it separately.
  std::vector<Permit>& permits() { return permits_; }
  const std::vector<Permit>& permits() const { return permits_; }
  // Empty if no bytes were requested.
  std::optional<Reservation>& reservation() { return reservation_; }
  // Environment entries (NAME=VALUE) that restrict a process to the gang's devices.
  const std::vector<std::string>& environment() const { return environment_; }

  // Returns everything. Idempotent. Errors: the first error among the parts, as from Permit::Release(). After an error
  // the SDK returns the remaining parts in the background.
  absl::Status Release();
  // Detaches the permits without returning them, as Permit::Leave(). Releases the reserved bytes.
  void Leave();

 private:
  Gang() = default;

  std::vector<Permit> permits_;
  std::optional<Reservation> reservation_;
  std::vector<std::string> environment_;
};

}  // namespace berth

#endif  // BERTH_GANG_H_
