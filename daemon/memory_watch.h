// MemoryWatch: keeps a process's memory within a bound. Past it the process first gives back what its allocator keeps,
// and, where that does not help, is ended: the broker, whose end loses nothing.

#ifndef DAEMON_MEMORY_WATCH_H_
#define DAEMON_MEMORY_WATCH_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"

namespace berth {

// What a broker may have, unless it is configured: gRPC's own bound is half of it (GrpcLimits).
inline constexpr Bytes kBrokerMemory = GiB(2);

// Bytes of this process's that are nobody else's: neither of files nor shared. Errors: those of /proc.
absl::StatusOr<Bytes> ReadOwnMemory();

// What a process whose memory is read now and then is to do. Arithmetic only. Thread-compatible.
class MemoryBound {
 public:
  // A process is not ended before it has served for so long, so that one that cannot be within its bound is a pause
  // now and then rather than for good.
  static constexpr absl::Duration kLeastLife = absl::Seconds(10);
  // How often it gives back what its allocator keeps, while it is past its bound.
  static constexpr absl::Duration kTrimPause = absl::Seconds(2);

  enum class Verdict { kGoOn, kTrim, kEnd };

  // The process has `at_start`, serving nobody, or what an earlier one has left it.
  MemoryBound(Bytes bound, Bytes at_start, absl::Time start)
      : bound_(std::max(bound, Bytes(2 * at_start.count()))), start_(start) {}

  // Whether `bound` has room for clients beside what a process has that serves nobody. Errors: kInvalidArgument, with
  // what is needed.
  static absl::Status Check(Bytes bound, Bytes idle);

  // Twice what it started with at least: where its books need that much, another one would, too.
  Bytes bound() const { return bound_; }
  // It has `now_has`, read after it was told to trim where `trimmed`.
  Verdict Judge(absl::Time now, Bytes now_has, bool trimmed);

 private:
  const Bytes bound_;
  const absl::Time start_;
  absl::Time last_trim_ = absl::InfinitePast();
};

// Looks by a thread of its own, whatever the others are at. Thread-safe.
class MemoryWatch {
 public:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(250);

  // Calls `end` with what the process has, once that is to end it; it does not return.
  MemoryWatch(MemoryBound bound, std::function<void(Bytes)> end);
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;
  ~MemoryWatch();

  // As of the last look.
  Bytes has() const { return Bytes(has_.load(std::memory_order_relaxed)); }
  Bytes bound() const { return shown_bound_; }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const Bytes shown_bound_;
  const std::function<void(Bytes)> end_;
  std::atomic<uint64_t> has_ = 0;
  // The thread's.
  MemoryBound bound_;

  Mutex mu_;
  SteadyCondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace berth

#endif  // DAEMON_MEMORY_WATCH_H_
