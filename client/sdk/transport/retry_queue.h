// RetryQueue retries in the background the actions that a client owes the daemon, until the daemon has answered: forget
// a request, release a permit, free a block. A caller that leaves before that waits a bounded time (Flush), and then
// lets the retry queue go on alone (FinishWith).

#ifndef CLIENT_SDK_TRANSPORT_RETRY_QUEUE_H_
#define CLIENT_SDK_TRANSPORT_RETRY_QUEUE_H_

#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/thread.h"

namespace berth::internal {

// Thread-safe. The retry queue's thread starts with the first debt. If it cannot start, the next Add(), Flush() or
// FinishWith() tries again. The queue is at most as long as the open requests and leases
// (client/sdk/transport/open_requests.h bounds them); no entry is dropped.
class RetryQueue {
 public:
  // One attempt, of bounded duration. Returns whether the debt is settled.
  using Debt = std::function<bool()>;

  // Pause between attempts while the daemon does not answer: doubles from the first to the last.
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
  static constexpr absl::Duration kLastPause = absl::Seconds(1);

  RetryQueue() = default;
  RetryQueue(const RetryQueue&) = delete;
  RetryQueue& operator=(const RetryQueue&) = delete;
  ~RetryQueue() { Stop(); }

  // Stops after the current attempt; the remaining debts stay unsettled.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Adds a debt. Never waits.
  void Add(Debt debt) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until no debt is left, at most `patience`; meanwhile debts are retried with the shortest pauses. Returns
  // whether no debt is left.
  bool Flush(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);

  // Continues until no debt is left, then runs `last` on the retry queue's thread; `last` may destroy the retry queue.
  // If no thread can start, neither happens, and the debts remain until the process ends.
  // Requires: a debt was added before, and only the destructor is called afterwards.
  void FinishWith(std::function<void()> last) ABSL_LOCKS_EXCLUDED(mu_);

  // Number of debts, including the debt under way.
  size_t owed() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Starts the thread where it does not run and a debt is queued.
  void StartLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the next debt when there is one. Returns false when the thread must end; after that, the thread must not
  // touch the retry queue.
  bool Next(Debt* debt) ABSL_LOCKS_EXCLUDED(mu_);
  // Records the result of an attempt. After a failed attempt, waits before the next.
  void Done(Debt debt, bool settled) ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  // Signalled when a debt is settled, when a caller flushes, or when the retry queue stops.
  SteadyCondVar changed_;
  std::deque<Debt> debts_ ABSL_GUARDED_BY(mu_);
  bool working_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  int flushers_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration pause_ ABSL_GUARDED_BY(mu_) = kFirstPause;
  std::function<void()> last_ ABSL_GUARDED_BY(mu_);
  Thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_RETRY_QUEUE_H_
