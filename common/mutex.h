// Mutex, MutexLock and CondVar: abseil's, in a form that ThreadSanitizer can see.
//
// The system's abseil is a library that no sanitizer instrumented: to ThreadSanitizer its mutexes order nothing,
// and whatever they guard is a race. A build with -fsanitize=thread therefore announces every lock, unlock and
// wait by hand. Any other build takes abseil's own types under these names, and pays nothing.
//
// Thread-safe, with abseil's names, meanings and annotations. Code of ours takes these, never absl::Mutex; one
// method more is to be added below before it is used.

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
  // For a variable of static storage, which is never destroyed as far as ThreadSanitizer is told.
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

  // Conditions are evaluated, by whichever thread unlocks, where ThreadSanitizer looks away: what they alone
  // read is not checked.
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

  // Runs and announces `wait`, which gives the mutex up and has it again when it returns. Returns its result.
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

// What orders two threads is the mutex that both hold, so only the waits are announced.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  bool WaitWithDeadline(Mutex* mu, absl::Time deadline) {
    return mu->WaitAloud([&] { return cv_.WaitWithDeadline(&mu->mu_, deadline); });
  }
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
