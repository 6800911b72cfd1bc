// Permit: the right to use the node's GPUs. It takes units of its pool's cap while the guard lives. A permit precedes
// all GPU state and outlives it: declare it first.
//
//   absl::StatusOr<berth::Permit> permit = berth::Permit::Acquire(session);   // waits its turn
//   if (!permit.ok()) return permit.status();
//   RunOnTheGpu();                                                            // nested acquires here are free
//   // Returned by the destructor of `permit`, on any thread, or when the process ends for any reason.
//
//   auto maybe = berth::Permit::TryAcquire(session);                          // NO_PERMIT instead of waiting
//
//   berth::Permit::AcquireAsync(session, {}, [](absl::StatusOr<berth::Permit> permit) { … });   // no thread waits

#ifndef BERTH_PERMIT_H_
#define BERTH_PERMIT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/cancellation.h>
#include <berth/end_notice.h>
#include <berth/permit_event.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace berth {

namespace internal {
struct Granted;
class HeldPermit;
struct HeldPermitKey;
class SessionCore;
}  // namespace internal

struct PermitOptions {
  // Pool name. Empty: "gpu-tests".
  std::string pool;
  // Units of the pool's cap, at least 1.
  uint64_t units = 1;
  // Free text for display. Non-printable bytes and invalid UTF-8 become "?"; text past 128 bytes is cut off.
  std::string label;
  // From -10 to 10. A higher priority is served first, but long waiters take precedence (docs/concepts/fairness.md).
  int32_t priority = 0;
  // Maximum wait. Zero: do not wait.
  absl::Duration max_wait = absl::InfiniteDuration();
  // Names the holder inside the session; acquires with the same key nest. Empty: the calling thread.
  std::string holder_key;
  // Grant only while no other holder has a permit of the pool. No other request of the pool is granted until the
  // release.
  bool exclusive = false;
  // The device that the permit names: "any" (the least loaded), "best" (the most free bytes), "highest-score",
  // "round-robin", or a device's UUID, a unique prefix of it, or its ordinal. Empty: none; each constraint below except
  // `wait_for_device` is then an error (kInvalidArgument). If this process's CUDA_VISIBLE_DEVICES bounds the choice,
  // the device is one of those (berth/visible_devices.h). If no device of the node satisfies the constraints, the
  // acquire fails with NO_DEVICE.
  std::string device;
  // Bytes that must be free on the device at the grant. Not reserved.
  Bytes min_free;
  // Bytes that the holder's processes will allocate on the device without Berth, in addition to their CUDA contexts.
  // Reserved until the release.
  Bytes declared;
  // Minimum compute capability times ten: 90 is 9.0. 0: any.
  uint32_t min_capability = 0;
  // The device must be in the NVLink island of the device with this UUID. Empty: any.
  std::string island_of;
  // Candidate devices, named as in `device`. Empty: any device.
  std::vector<std::string> among;
  // Wait while every device that satisfies the constraints is stopped or drained. False: fail at once (DEVICE_STOPPED,
  // DEVICE_DRAINING). A request that names no device always waits for drained devices.
  bool wait_for_device = false;
  // Never nest in the permit that `berth run` acquired for the session.
  bool independent = false;
  // Let every process of the session nest in this permit, as `berth run` does.
  bool adoptable = false;
  // Called when the permit is overdue, and when it ends before its release for any reason; once each. Runs on a thread
  // of the SDK, which waits for it: it must return soon, and must not wait for an SDK call. Not called after this guard
  // and the guards that nest in it in this process are released, nor for a guard that nests without a call.
  std::function<void(const PermitEvent&)> on_event;
  // Ends the wait. Not owned; must outlive the call. May be null.
  Cancellation* cancellation = nullptr;
};

// Options of an acquire without options. Constructed once: constructing options takes longer than nesting a permit.
const PermitOptions& DefaultPermitOptions();

// Move-only, movable between threads; one thread at a time uses one guard.
class Permit {
 public:
  // Acquires a permit, waiting for its turn. A thread that already holds a permit of the pool nests in it, without a
  // call. BERTH_GPU_TEST_CONCURRENCY, or else REALIZAR_GPU_TEST_CONCURRENCY, in this process's environment bounds pool
  // gpu-tests for this request: it is granted only while fewer units are in use.
  // Errors: WAIT_TIMED_OUT, NO_PERMIT (max_wait was 0), LIMIT (too many waiters): retry later. NOT_FOUND (pool,
  // device), INVALID_FIELD, OVER_CAP, NESTED_OVER_HELD, NO_DEVICE, DEVICE_STOPPED, DEVICE_DRAINING: do not retry the
  // same request. kCancelled; kDeadlineExceeded when the daemon does not answer in time (SessionOptions::timeout);
  // kUnavailable when the session is over.
  static absl::StatusOr<Permit> Acquire(const std::shared_ptr<Session>& session,
                                        const PermitOptions& options = DefaultPermitOptions());

  // Acquires only what is free now: Acquire() with max_wait 0.
  static absl::StatusOr<Permit> TryAcquire(const std::shared_ptr<Session>& session,
                                           PermitOptions options = {});

  // Acquires a permit, and calls `done` once with the result. `done` runs on a thread of the SDK, where it must not
  // wait for long, or before AcquireAsync() returns if nothing can be sent. The permit belongs to no thread: other
  // threads nest in it by Share(), or by the given holder key. Without a key, each call requests a separate permit. The
  // session stays open until `done` has run. The Cancellation in `options` must outlive `done`. Errors: as Acquire().
  static void AcquireAsync(const std::shared_ptr<Session>& session, const PermitOptions& options,
                           std::function<void(absl::StatusOr<Permit>)> done);

  Permit(Permit&& other) noexcept
      : held_permit_(std::exchange(other.held_permit_, nullptr)), placed_(std::move(other.placed_)) {}
  Permit& operator=(Permit&& other) noexcept {
    if (this != &other) {
      Reset();
      held_permit_ = std::exchange(other.held_permit_, nullptr);
      placed_ = std::move(other.placed_);
    }
    return *this;
  }
  // Releases the guard as Release() does; work that takes longer than 2 s continues in the background.
  ~Permit() { Reset(); }

  // Releases this guard; releasing the last guard returns the permit. Idempotent.
  // Errors: kAborted when the permit had ended before, with the reason and the actor; nothing is left to return then.
  // Those of the daemon or the transport; the SDK then returns the permit in the background.
  absl::Status Release();

  // Detaches the guard without returning the permit: the permit stays in use until the session's processes have ended.
  void Leave();

  // The UUID of the permit's device; empty if this acquire requested no device.
  std::string device_uuid() const { return placed_ == nullptr ? "" : placed_->uuid; }
  // The device's node-local number; empty if this acquire requested no device.
  std::optional<uint32_t> device_ordinal() const {
    return placed_ == nullptr ? std::nullopt : std::optional<uint32_t>(placed_->ordinal);
  }
  // If this acquire requested a device and nested in a permit of the session: how many others had done so, and share
  // the device. Does not count acquires before a restart of the broker. Empty otherwise.
  std::optional<uint64_t> device_sharers() const {
    return placed_ == nullptr ? std::nullopt : placed_->sharers;
  }
  // Environment entries (NAME=VALUE) that restrict a process to that device. Empty if this acquire requested no device.
  std::vector<std::string> environment() const {
    return placed_ == nullptr ? std::vector<std::string>() : placed_->environment;
  }

  // Whether the permit has ended before its release, for any reason. An ended permit no longer counts: other holders
  // may use the GPU. Release this guard, then acquire again.
  bool revoked() const { return end().has_value(); }
  // Whether the permit is held for longer than the pool's warning time.
  bool overdue() const;
  // Why the permit ended, and who ended it; empty while it counts.
  std::optional<EndNotice> end() const;

  // False after Release(), Leave() or a move.
  explicit operator bool() const { return held_permit_ != nullptr; }
  // The key under which other threads, and processes of the session, nest in this permit (PermitOptions::holder_key).
  // Requires: not released.
  const std::string& Share() const;

 private:
  friend class Gang;
  // The part of Acquire() that runs if the calling thread holds nothing to nest in. Separate, so that nesting does not
  // pay for its stack frame.
  static absl::StatusOr<Permit> AcquireAnew(const std::shared_ptr<internal::SessionCore>& core,
                                            const internal::HeldPermitKey& key, const PermitOptions& options);
  // Makes the guard of a permit that was just granted.
  static Permit Make(const std::shared_ptr<internal::SessionCore>& core, internal::Granted granted);
  explicit Permit(internal::HeldPermit* held_permit) : held_permit_(held_permit) {}
  void Reset();
  internal::HeldPermit* held_permit_ = nullptr;
  // The requested device; null for none, so that a nested guard costs nothing.
  struct Placed {
    uint32_t ordinal = 0;
    std::string uuid;
    std::vector<std::string> environment;
    // Empty if the acquire did not nest.
    std::optional<uint64_t> sharers;
  };
  std::unique_ptr<const Placed> placed_;
};

}  // namespace berth

#endif  // BERTH_PERMIT_H_
