// Cancellation ends waiting calls from another thread.
//
// Thread-safe. Not async-signal-safe: cancel from a thread that receives signals by sigwait().
//
//   berth::Cancellation cancellation;
//   std::thread watcher([&] { WaitForTheUser(); cancellation.Cancel(); });
//   auto permit = berth::Permit::Acquire(session, {.cancellation = &cancellation});
//
// If Cancel() comes before the grant, Acquire() returns kCancelled, and the request has left the daemon's queue.

#ifndef BERTH_CANCELLATION_H_
#define BERTH_CANCELLATION_H_

#include <functional>
#include <list>
#include <memory>

namespace berth {

class Cancellation {
 public:
  // Runs `on_cancel` once at Cancel(), or at once if Cancel() came first; never after the destructor returns.
  // `on_cancel` runs under the cancellation's lock: it must be short and must not use the cancellation.
  class Hook {
   public:
    // `cancellation` may be null: then `on_cancel` never runs.
    Hook(Cancellation* cancellation, std::function<void()> on_cancel);
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;
    ~Hook();

   private:
    Cancellation* const cancellation_;
    std::list<std::function<void()>>::iterator at_;
  };

  Cancellation();
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;
  ~Cancellation();

  // Ends every current and later call that uses this cancellation. Idempotent.
  void Cancel();

  bool cancelled() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace berth

#endif  // BERTH_CANCELLATION_H_
