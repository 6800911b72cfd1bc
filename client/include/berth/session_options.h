// Options for opening a session.

#ifndef BERTH_SESSION_OPTIONS_H_
#define BERTH_SESSION_OPTIONS_H_

#include <functional>
#include <string>

#include "absl/time/time.h"

namespace berth {

struct SessionOptions {
  // The folder of the daemon's sockets. Empty: the first of $BERTH_FOLDER; the folder of an inherited session;
  // /run/berth if it contains a daemon's socket; $XDG_RUNTIME_DIR/berth.
  std::string folder;
  // Free text for display. Non-printable bytes and invalid UTF-8 become "?"; text past 128 bytes is cut off.
  std::string label;
  // Connect to the operator's socket, which offers the admin verbs. Without access to it Open() returns
  // kPermissionDenied.
  bool admin = false;
  // Connect to the observers' socket: an Inspector shows every tenant, and nothing can be requested
  // (OBSERVER_ONLY_LOOKS). Neither opens nor joins a session. With `admin`, the same on the operator's socket, which is
  // served even when no session can be opened any more.
  bool observer = false;
  // Open a new session even if the environment names a session to join.
  bool always_new = false;
  // Cache one permit between its uses: repeated acquires and releases then often need no call, while no other request
  // waits. The cached permit is shown as in use and cached; another request gets it at once
  // (docs/concepts/fairness.md).
  bool cache_permits = false;
  // Bounds each step of Open(), including its wait when this user's processes connect faster than the daemon accepts
  // them. Also bounds every call that does not wait for a lease, and the time in which a call that does wait tries to
  // reach a daemon that does not restart.
  absl::Duration timeout = absl::Seconds(10);
  // Called with the socket's path when the daemon has not answered for kSilence: in each step of Open(), and in each
  // call that does not wait for a lease. Runs on any thread, must be short, and must not use the session.
  std::function<void(const std::string& socket)> on_silence;
  static constexpr absl::Duration kSilence = absl::Seconds(2);
};

}  // namespace berth

#endif  // BERTH_SESSION_OPTIONS_H_
