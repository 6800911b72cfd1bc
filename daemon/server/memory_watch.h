// MemoryWatch limits the memory of a process, the broker. Past the limit, the process first returns its allocator's
// free memory to the system. If that is not enough, the process ends, which loses nothing.

#ifndef DAEMON_SERVER_MEMORY_WATCH_H_
#define DAEMON_SERVER_MEMORY_WATCH_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include <berth/bytes.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/thread.h"

namespace berth {

// The default memory limit of a broker; gRPC's own limit is half of it (GrpcLimits).
inline constexpr Bytes kBrokerMemory = GiB(2);

// Returns the bytes of this process that are neither shared nor of files. Errors: those of /proc.
absl::StatusOr<Bytes> ReadOwnMemory();

// Decides what a process does about its memory, from periodic readings. Arithmetic only. Thread-compatible.
class MemoryBound {
 public:
  // The least time a process serves before it is ended. A process that cannot stay within its limit thus causes short
  // pauses, not a permanent outage.
  static constexpr absl::Duration kLeastLife = absl::Seconds(10);
  // The least time between two trims of the allocator past the limit.
  static constexpr absl::Duration kTrimPause = absl::Seconds(2);

  enum class Verdict { kGoOn, kTrim, kEnd };

  // `idle` is the memory of the process without any client, and without the restored state of clients.
  MemoryBound(Bytes bound, Bytes idle, absl::Time start) : bound_(Effective(bound, idle)), start_(start) {}

  // Checks that `bound` leaves memory for clients beyond `idle`. Errors: kInvalidArgument, with the least limit.
  static absl::Status Check(Bytes bound, Bytes idle);

  // The configured limit, or twice `idle` if a newer program needs more, but at most twice the configured limit.
  // Clients cannot raise the limit.
  Bytes bound() const { return bound_; }
  // Judges a reading `now_has`; `trimmed` if it was taken after a trim.
  Verdict Judge(absl::Time now, Bytes now_has, bool trimmed);

 private:
  static Bytes Effective(Bytes bound, Bytes idle);

  const Bytes bound_;
  const absl::Time start_;
  absl::Time last_trim_ = absl::InfinitePast();
};

// Reads the memory on a thread of its own, independent of all other threads. Thread-safe.
class MemoryWatch {
 public:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(250);

  // Calls `end` with the process's memory when the process has to end; `end` does not return.
  MemoryWatch(MemoryBound bound, std::function<void(Bytes)> end);
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;
  ~MemoryWatch();

  // The last reading.
  Bytes has() const { return Bytes(has_.load(std::memory_order_relaxed)); }
  Bytes bound() const { return shown_bound_; }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const Bytes shown_bound_;
  const std::function<void(Bytes)> end_;
  std::atomic<uint64_t> has_ = 0;
  // Used by the thread only.
  MemoryBound bound_;

  Mutex mu_;
  SteadyCondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace berth

#endif  // DAEMON_SERVER_MEMORY_WATCH_H_
