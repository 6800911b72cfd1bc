// Cancellation ends calls that wait, from another thread.
//
// Thread-safe. Not async-signal-safe: cancel from a thread that takes signals by sigwait().
//
//   berth::Cancellation cancellation;
//   std::thread watcher([&] { WaitForTheUser(); cancellation.Cancel(); });
//   auto permit = berth::Permit::Acquire(session, {.cancellation = &cancellation});
//   // kCancelled if the user was faster; nothing is left waiting at the daemon.

#ifndef CLIENT_CANCELLATION_H_
#define CLIENT_CANCELLATION_H_

#include <functional>
#include <list>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace berth {

class Cancellation {
 public:
  // Runs `on_cancel` at Cancel(), at once if that was before, and never again once destroyed. `on_cancel`
  // runs under the cancellation's lock: it must be short and must not use the cancellation.
  class Hook {
   public:
    // `cancellation` may be null: then nothing is ever called.
    Hook(Cancellation* cancellation, std::function<void()> on_cancel);
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;
    ~Hook();

   private:
    Cancellation* const cancellation_;
    std::list<std::function<void()>>::iterator at_;
  };

  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // Ends the calls that use this, and every later one. Idempotent.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

  bool cancelled() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::list<std::function<void()>> hooks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // CLIENT_CANCELLATION_H_
