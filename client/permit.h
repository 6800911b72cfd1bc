// Permit: the right to use the node's GPUs, one of as many as its pool has, held while the guard lives. It
// comes before any GPU state and outlives it: declare it first.
//
//   absl::StatusOr<berth::Permit> permit = berth::Permit::Acquire(session);   // waits its turn
//   if (!permit.ok()) return permit.status();
//   RunOnTheGpu();                                                            // nested acquires here are
//   free
//   // Returned when `permit` goes, on whatever thread, or when the process ends, however it ends.
//
//   auto maybe = berth::Permit::TryAcquire(session);                          // NO_PERMIT instead of waiting
//
//   std::stop_source stop;                                                    // no thread waits
//   berth::Permit::AcquireAsync(session, {.stop = stop.get_token()}, [](absl::StatusOr<berth::Permit> permit) { … });

#ifndef CLIENT_PERMIT_H_
#define CLIENT_PERMIT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cancellation.h"
#include "client/internal/permit_watch.h"
#include "client/session.h"
#include "common/bytes.h"

namespace berth {

namespace internal {
struct Granted;
class Holding;
struct HoldingKey;
class SessionCore;
}  // namespace internal

struct PermitOptions {
  // Empty is "gpu-tests".
  std::string pool;
  // Units of the pool's cap, at least 1.
  uint64_t units = 1;
  // Free text for those who look, at most 128 bytes, printable.
  std::string label;
  // From -10 to 10. Higher goes first, but for who has waited long (docs/fairness.md).
  int32_t priority = 0;
  // How long to wait at most; zero is not at all.
  absl::Duration max_wait = absl::InfiniteDuration();
  // Who holds it inside the session; acquires with the same key nest. Empty is the calling thread.
  std::string holder_key;
  // Only while nobody else has a permit of the pool; and nobody else gets one until it is back.
  bool exclusive = false;
  // The device that the permit is to name: "any" (the least loaded), "best" (with the most free bytes),
  // "highest-score", "round-robin" or a UUID; empty for none. Bytes that must be free there, and bytes that this
  // process and its like will take there past Berth, which are set aside until the permit is back.
  std::string device;
  Bytes min_free;
  Bytes declared;
  // The device's compute capability is at least this, ten times: 90 is 9.0. It is in the NVLink island of the device of
  // this UUID. No such device: NO_DEVICE.
  uint32_t min_capability = 0;
  std::string island_of;
  // Never nest in the permit that `berth run` took for the session.
  bool independent = false;
  // Let every process of the session nest in it, as `berth run` does.
  bool adoptable = false;
  // Called when the permit is overdue, and when it is revoked; once each, on a thread of the SDK's, which waits for
  // it: it must return soon, and not wait for a call of the SDK's. Not called once this guard and those that nest
  // in it here are gone, nor for a guard that nests without a call.
  std::function<void(PermitEvent)> on_event;
  // Ends the wait. Not owned; must outlive the call. May be null.
  Cancellation* cancellation = nullptr;
  // Ends it, too.
  std::stop_token stop = {};
};

// What an acquire without options has. Made once: options take longer to make than a permit to nest.
const PermitOptions& DefaultPermitOptions();

// Move-only, movable between threads; one thread at a time uses one guard.
class Permit {
 public:
  // Acquires, waiting for its turn. A thread that holds in the pool already nests in what it has, without a
  // call. BERTH_GPU_TEST_CONCURRENCY, or else REALIZAR_GPU_TEST_CONCURRENCY, in this process's environment
  // lowers how many may be out in pool gpu-tests for the request to be granted. Errors: WAIT_TIMED_OUT;
  // NO_PERMIT (max_wait was 0); NOT_FOUND (pool); OVER_CAP, NESTED_OVER_HELD (can never be granted); LIMIT;
  // kCancelled; kUnavailable when the session is over.
  static absl::StatusOr<Permit> Acquire(const std::shared_ptr<Session>& session,
                                        const PermitOptions& options = DefaultPermitOptions());

  // Acquires only what is free now: Acquire() with max_wait 0.
  static absl::StatusOr<Permit> TryAcquire(const std::shared_ptr<Session>& session,
                                           PermitOptions options = {});

  // Acquires, and calls `done` once with what came of it: from a thread of the SDK's, where it must not wait for long,
  // or before this returns where nothing can be sent. The permit is no thread's: others nest in it by Share(), or by
  // the holder key that was given; without one, each call is for a permit of its own. The session stays open until
  // then. What is to be cancelled by `options` must outlive `done`. Errors as of Acquire().
  static void AcquireAsync(const std::shared_ptr<Session>& session, const PermitOptions& options,
                           std::function<void(absl::StatusOr<Permit>)> done);

  Permit(Permit&& other) noexcept
      : holding_(std::exchange(other.holding_, nullptr)), placed_(std::move(other.placed_)) {}
  Permit& operator=(Permit&& other) noexcept {
    if (this != &other) {
      Reset();
      holding_ = std::exchange(other.holding_, nullptr);
      placed_ = std::move(other.placed_);
    }
    return *this;
  }
  // Gives back as Release() does; what that takes longer than 2 s is done in the background.
  ~Permit() { Reset(); }

  // Gives this guard back, and with the last one the permit. Idempotent.
  // Errors: what the daemon or the transport said; the permit is given back in the background all the same.
  absl::Status Release();

  // Lets go of the guard without giving back: the permit stays out until its session's processes are gone.
  void Leave();

  // The UUID of the permit's device; empty where this acquire asked for none.
  std::string device_uuid() const { return placed_ == nullptr ? "" : placed_->uuid; }
  // What its processes are to have in their environment so that they use that device and no other, as NAME=VALUE.
  std::vector<std::string> environment() const {
    return placed_ == nullptr ? std::vector<std::string>() : placed_->environment;
  }

  // Whether the daemon has taken the permit away, or shows it as held for too long. What is revoked counts no more:
  // others may use the GPU. Acquire anew, after giving this guard back.
  bool revoked() const;
  bool overdue() const;

  // Whether the guard still counts.
  explicit operator bool() const { return holding_ != nullptr; }
  // The key under which other threads, and processes of the session, nest in this permit (PermitOptions::holder_key).
  // Requires: not released.
  const std::string& Share() const;

 private:
  friend class Gang;
  // What Acquire() does where the calling thread holds nothing to nest in: apart, so that nesting does not pay for its
  // frame.
  static absl::StatusOr<Permit> AcquireAnew(const std::shared_ptr<internal::SessionCore>& core,
                                            const internal::HoldingKey& key, const PermitOptions& options);
  // The guard of what was just granted.
  static Permit Make(const std::shared_ptr<internal::SessionCore>& core, internal::Granted granted);
  explicit Permit(internal::Holding* holding) : holding_(holding) {}
  void Reset();
  internal::Holding* holding_ = nullptr;
  // Of the device that was asked for; null for none, so that a nested guard costs nothing.
  struct Placed {
    std::string uuid;
    std::vector<std::string> environment;
  };
  std::unique_ptr<const Placed> placed_;
};

}  // namespace berth

#endif  // CLIENT_PERMIT_H_
