// Mutex, MutexLock and CondVar: abseil's types, made visible to ThreadSanitizer.
//
// The system's abseil library is not instrumented: for ThreadSanitizer its mutexes order nothing, and all data under
// them races. A build with -fsanitize=thread therefore announces every lock, unlock and wait explicitly. Any other
// build aliases abseil's own types, at no cost.
//
// Thread-safe, with abseil's names, meanings and annotations. Berth uses these types, never absl::Mutex. To use another
// method of abseil's, add it below first.

#ifndef COMMON_MUTEX_H_
#define COMMON_MUTEX_H_

#include "absl/base/config.h"
#include "absl/synchronization/mutex.h"

#ifdef ABSL_HAVE_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#endif

namespace berth {

#ifndef ABSL_HAVE_THREAD_SANITIZER

using Mutex = absl::Mutex;
using MutexLock = absl::MutexLock;
using CondVar = absl::CondVar;

#else

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() { __tsan_mutex_create(this, __tsan_mutex_not_static); }
  // For variables of static storage, whose destruction ThreadSanitizer never sees.
  explicit constexpr Mutex(absl::ConstInitType init) : mu_(init) {}
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  ~Mutex() { __tsan_mutex_destroy(this, __tsan_mutex_not_static); }

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    __tsan_mutex_pre_lock(this, 0);
    mu_.Lock();
    __tsan_mutex_post_lock(this, 0, 0);
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    __tsan_mutex_pre_unlock(this, 0);
    mu_.Unlock();
    __tsan_mutex_post_unlock(this, 0);
  }

  // The unlocking thread evaluates conditions where ThreadSanitizer does not observe it: data that only conditions read
  // is not checked.
  void Await(const absl::Condition& condition) {
    WaitAloud([&] {
      mu_.Await(condition);
      return true;
    });
  }
  bool AwaitWithTimeout(const absl::Condition& condition, absl::Duration timeout) {
    return WaitAloud([&] { return mu_.AwaitWithTimeout(condition, timeout); });
  }

 private:
  friend class CondVar;

  // Runs and announces `wait`, which releases the mutex and holds it again on return. Returns its result.
  template <typename WaitFunction>
  bool WaitAloud(WaitFunction wait) {
    __tsan_mutex_pre_unlock(this, 0);
    __tsan_mutex_post_unlock(this, 0);
    __tsan_mutex_pre_lock(this, 0);
    const bool result = wait();
    __tsan_mutex_post_lock(this, 0, 0);
    return result;
  }

  absl::Mutex mu_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }

 private:
  Mutex* const mu_;
};

// The shared mutex orders the two threads, so only the waits are announced.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // Has no timed wait: abseil's uses the wall clock. SteadyCondVar has one (steady_cond_var.h).
  void Wait(Mutex* mu) {
    mu->WaitAloud([&] {
      cv_.Wait(&mu->mu_);
      return true;
    });
  }
  void Signal() { cv_.Signal(); }
  void SignalAll() { cv_.SignalAll(); }

 private:
  absl::CondVar cv_;
};

#endif

}  // namespace berth

#endif  // COMMON_MUTEX_H_
