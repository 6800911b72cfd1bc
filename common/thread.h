// Thread: the only way to start a thread in Berth (tests/tidy). A thread limit must not end the program, so Start()
// returns an error where std::thread throws. If memory is short, too, std::thread would even end the program instead of
// throwing.

#ifndef COMMON_THREAD_H_
#define COMMON_THREAD_H_

#include <errno.h>
#include <pthread.h>

#include <exception>
#include <future>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/os/process_capacity.h"

namespace berth {

// Move-only, as std::thread is: it must be joined or detached before it is destroyed.
class Thread {
 public:
  // Empty: owns no thread.
  Thread() = default;
  Thread(Thread&& other) noexcept : thread_(other.thread_), joinable_(std::exchange(other.joinable_, false)) {}
  Thread& operator=(Thread&& other) noexcept {
    if (joinable_) std::terminate();
    thread_ = other.thread_;
    joinable_ = std::exchange(other.joinable_, false);
    return *this;
  }
  ~Thread() {
    if (joinable_) std::terminate();
  }

  // Runs `run` on a new thread. `purpose` appears in the error, e.g. "signals".
  // Errors: kResourceExhausted, with the limits in force (NotStarted()).
  template <typename Run>
  static absl::StatusOr<Thread> Start(absl::string_view purpose, Run&& run) {
    using Held = std::decay_t<Run>;
    std::unique_ptr<Held> held(new (std::nothrow) Held(std::forward<Run>(run)));
    Thread thread;
    const int error = held == nullptr ? ENOMEM : ::pthread_create(&thread.thread_, nullptr, &Call<Held>, held.get());
    if (error != 0) return NotStarted(absl::StrCat("a thread for ", purpose), error);
    // The new thread owns it now.
    [[maybe_unused]] Held* const given = held.release();
    thread.joinable_ = true;
    return thread;
  }

  bool joinable() const { return joinable_; }
  void join() {
    ::pthread_join(thread_, nullptr);
    joinable_ = false;
  }
  void detach() {
    ::pthread_detach(thread_);
    joinable_ = false;
  }

 private:
  template <typename Held>
  static void* Call(void* argument) {
    const std::unique_ptr<Held> held(static_cast<Held*>(argument));
    (*held)();
    return nullptr;
  }

  pthread_t thread_ = {};
  bool joinable_ = false;
};

// Runs a call on a thread of its own, or inline if no thread can be started. The destructor waits for the call.
template <typename Result>
class ParallelCall {
 public:
  template <typename Run>
  ParallelCall(absl::string_view purpose, Run run) : task_(std::move(run)), result_(task_.get_future()) {
    absl::StatusOr<Thread> thread = Thread::Start(purpose, [this] { task_(); });
    if (thread.ok()) {
      thread_ = *std::move(thread);
    } else {
      task_();
    }
  }
  ParallelCall(const ParallelCall&) = delete;
  ParallelCall& operator=(const ParallelCall&) = delete;
  ~ParallelCall() {
    if (thread_.joinable()) thread_.join();
  }

  // Waits for the call and returns its result. Call once.
  Result get() { return result_.get(); }

 private:
  std::packaged_task<Result()> task_;
  std::future<Result> result_;
  Thread thread_;
};

}  // namespace berth

#endif  // COMMON_THREAD_H_
