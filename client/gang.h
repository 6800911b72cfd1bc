// Gang: several permits, of one pool or of several, and perhaps reserved bytes: all of them or none, under one guard.
// Nobody holds a part of it while waiting for the rest, so two that want the same two GPUs never wait for each other.
//
//   absl::StatusOr<berth::Gang> gang = berth::Gang::Acquire(session, {.members = {{.device = "any"}, {.device =
// "any"}}});
//   if (!gang.ok()) return gang.status();
//   Train(gang->environment());   // CUDA_VISIBLE_DEVICES names both
//   // All goes back when `gang` goes.

#ifndef CLIENT_GANG_H_
#define CLIENT_GANG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cancellation.h"
#include "client/permit.h"
#include "client/reservation.h"
#include "client/session.h"
#include "common/bytes.h"

namespace berth {

struct GangMember {
  // Empty is "gpu-tests".
  std::string pool;
  uint64_t units = 1;
  // As in PermitOptions. Members that do not name a UUID get devices that no other member has.
  std::string device;
  Bytes min_free;
  Bytes declared;
  uint32_t min_capability = 0;
  std::string island_of;
};

struct GangOptions {
  // 1 to 64.
  std::vector<GangMember> members;
  // Reserved with the permits.
  std::vector<ReservationItem> reserve;
  // How long what is not drawn of them stays set aside.
  absl::Duration reserve_ttl = absl::InfiniteDuration();
  // The rest as in PermitOptions. Acquires with the holder's key nest in the gang's first permit of their pool.
  std::string label;
  int32_t priority = 0;
  absl::Duration max_wait = absl::InfiniteDuration();
  std::string holder_key;
  bool exclusive = false;
  bool independent = false;
  bool adoptable = false;
  // For each of the permits.
  std::function<void(PermitEvent)> on_event;
  Cancellation* cancellation = nullptr;
  std::stop_token stop = {};
};

// Move-only; one thread at a time uses one gang.
class Gang {
 public:
  // Acquires all of it, waiting for its turn. Errors: ALREADY_HELD (this thread has a permit in one of the pools; or
  // `berth run` has, and it is not independent); OVER_CAP, OVER_BUDGET (can never be granted; says what would have to
  // change); those of Permit::Acquire() and Reservation::Make() else.
  static absl::StatusOr<Gang> Acquire(const std::shared_ptr<Session>& session, const GangOptions& options);
  // Acquires only what is free now: Acquire() with max_wait 0.
  static absl::StatusOr<Gang> TryAcquire(const std::shared_ptr<Session>& session, GangOptions options);

  Gang(Gang&&) noexcept = default;
  Gang& operator=(Gang&&) noexcept = default;

  // In the order of the members. A guard may be moved out, and is then given back by itself.
  std::vector<Permit>& permits() { return permits_; }
  const std::vector<Permit>& permits() const { return permits_; }
  // Where bytes were asked.
  std::optional<Reservation>& reservation() { return reservation_; }
  // What processes are to have in their environment so that they use the gang's devices and no other, as NAME=VALUE.
  const std::vector<std::string>& environment() const { return environment_; }

  // Gives everything back. Idempotent. Errors: the first of its parts'; all are given back in the background all the
  // same.
  absl::Status Release();
  // Lets go of the permits without giving them back, as Permit::Leave(); what is reserved is given up.
  void Leave();

 private:
  Gang() = default;

  std::vector<Permit> permits_;
  std::optional<Reservation> reservation_;
  std::vector<std::string> environment_;
};

}  // namespace berth

#endif  // CLIENT_GANG_H_
