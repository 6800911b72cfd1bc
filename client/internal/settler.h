// Settler does in the background what a client owes the daemon: it repeats each debt (forget a request,
// release a permit, free a block) until the daemon has answered. Who leaves before that gives it a bounded
// moment (Flush), and then leaves it to go on alone (FinishWith).

#ifndef CLIENT_INTERNAL_SETTLER_H_
#define CLIENT_INTERNAL_SETTLER_H_

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"

namespace berth::internal {

// Thread-safe. Its thread starts with the first debt. The queue is as long as there are open requests and
// leases (client/internal/request_book.h bounds them); nothing is dropped.
class Settler {
 public:
  // One attempt, of bounded time. Returns whether the debt is settled.
  using Debt = std::function<bool()>;

  // Between attempts while the daemon does not answer: doubles from the first to the last.
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
  static constexpr absl::Duration kLastPause = absl::Seconds(1);

  Settler() = default;
  Settler(const Settler&) = delete;
  Settler& operator=(const Settler&) = delete;
  ~Settler() { Stop(); }

  // Ends after the attempt that is under way; what is owed then stays owed.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Never waits.
  void Add(Debt debt) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until nothing is owed, at most `patience`; meanwhile debts are tried with the shortest pauses.
  // Returns whether nothing is owed any more.
  bool Flush(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);

  // Goes on until nothing is owed, then runs `last` on its own thread; `last` may destroy the settler.
  // Requires: something was owed once; nothing but the destructor is called afterwards.
  void FinishWith(std::function<void()> last) ABSL_LOCKS_EXCLUDED(mu_);

  // What is owed, the debt under way included.
  size_t owed() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the next debt when there is one. Returns false when the thread is to end: after it, nothing of this
  // may be touched any more.
  bool Next(Debt* debt) ABSL_LOCKS_EXCLUDED(mu_);
  // Notes how an attempt went; after one that did not settle its debt, waits before the next.
  void Done(Debt debt, bool settled) ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  // A debt was settled, or somebody waits for that, or stops it.
  SteadyCondVar changed_;
  std::deque<Debt> debts_ ABSL_GUARDED_BY(mu_);
  bool working_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  int flushers_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration pause_ ABSL_GUARDED_BY(mu_) = kFirstPause;
  std::function<void()> last_ ABSL_GUARDED_BY(mu_);
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_SETTLER_H_
