// Notification: abseil's, in a form that ThreadSanitizer can see, as the types of mutex.h are.
//
// Thread-safe, with abseil's names and meanings. Code of ours takes this one, never absl::Notification; one method more
// is to be added below before it is used.

#ifndef COMMON_NOTIFICATION_H_
#define COMMON_NOTIFICATION_H_

#include "absl/base/config.h"
#include "absl/synchronization/notification.h"

#ifdef ABSL_HAVE_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>

#include "absl/time/time.h"
#endif

namespace berth {

#ifndef ABSL_HAVE_THREAD_SANITIZER

using Notification = absl::Notification;

#else

class Notification {
 public:
  Notification() = default;
  Notification(const Notification&) = delete;
  Notification& operator=(const Notification&) = delete;

  void Notify() {
    __tsan_release(this);
    notification_.Notify();
  }
  bool HasBeenNotified() const { return Seen(notification_.HasBeenNotified()); }
  void WaitForNotification() const {
    notification_.WaitForNotification();
    Seen(true);
  }
  bool WaitForNotificationWithTimeout(absl::Duration timeout) const {
    return Seen(notification_.WaitForNotificationWithTimeout(timeout));
  }

 private:
  bool Seen(bool notified) const {
    if (notified) __tsan_acquire(const_cast<Notification*>(this));
    return notified;
  }

  absl::Notification notification_;
};

#endif

}  // namespace berth

#endif  // COMMON_NOTIFICATION_H_
