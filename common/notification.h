// Notification: abseil's type, made visible to ThreadSanitizer like the types of mutex.h.
//
// Thread-safe, with abseil's names and meanings. Berth uses this type, never absl::Notification. To use another method
// of abseil's, add it below first.

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
