// FdsInFlight: limits the fds of each user in messages that the user's processes have not received.
//
// The kernel counts the fds in flight of all processes of the daemon's user, and refuses a message with an fd once they
// exceed the sender's RLIMIT_NOFILE (ETOOMANYREFS). A process that receives no message, whatever it acknowledges, would
// keep the daemon from sending any fd: nobody could open a session. Messages stay in flight after the daemon has closed
// its end, so a socket stays open here until its peer has received them or is closed.

#ifndef DAEMON_SERVICE_ATTACH_FDS_IN_FLIGHT_H_
#define DAEMON_SERVICE_ATTACH_FDS_IN_FLIGHT_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "daemon/service/limits/uid_quota.h"

namespace berth::service {

// Thread-safe.
class FdsInFlight {
 public:
  // `total` is the limit of all users; each has a share.
  explicit FdsInFlight(uint32_t total) : quota_("fds sent to processes and not received", UINT32_MAX, total) {}

  // Counts an fd that is about to be sent on `socket`. Errors: LIMIT.
  absl::Status Add(uint32_t uid, int socket) ABSL_LOCKS_EXCLUDED(mu_);
  // Counts the messages that an earlier broker sent on `socket`, beyond any limit.
  void Adopt(uint32_t uid, int socket) ABSL_LOCKS_EXCLUDED(mu_);
  // Call before `socket` is closed. Returns false if its peer has not received each fd: the socket must stay open.
  bool Forget(uint32_t uid, int socket) ABSL_LOCKS_EXCLUDED(mu_);
  // Like Forget(), for a socket that is closed in any case.
  void Drop(uint32_t uid, int socket) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Places = std::vector<UidQuota::Place>;
  struct User {
    // Places of the fds that may be in flight, by socket; none is empty.
    std::map<int, Places> sockets;
    // The time from which the sockets may be examined again.
    absl::Time next_sweep = absl::InfinitePast();
  };

  // Returns the places of the fds that the peers have received. Returns false if the last sweep was just before.
  static bool Sweep(User& user);
  // Returns whether the socket is not counted any more.
  bool Erase(uint32_t uid, int socket, bool received_only) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EraseIfUnused(uint32_t uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  UidQuota quota_;
  Mutex mu_;
  absl::flat_hash_map<uint32_t, User> users_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_ATTACH_FDS_IN_FLIGHT_H_
