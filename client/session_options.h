// How a session is opened.

#ifndef CLIENT_SESSION_OPTIONS_H_
#define CLIENT_SESSION_OPTIONS_H_

#include <string>

#include "absl/time/time.h"

namespace berth {

struct SessionOptions {
  // The folder of the daemon's sockets. Empty: $BERTH_FOLDER; else what an inherited session brings along;
  // else /run/berth if a daemon's socket is there; else $XDG_RUNTIME_DIR/berth.
  std::string folder;
  // Free text for those who look, at most 128 bytes, printable.
  std::string label;
  // Speak to the operator's socket, where the admin verbs are. Without the right to it Open() answers
  // kPermissionDenied.
  bool admin = false;
  // Speak to the observers' socket: an Inspector shows every tenant's, and nothing can be asked for
  // (OBSERVER_ONLY_LOOKS). No session is opened, so none is joined either. With `admin` the same on the operator's
  // socket, which is served when no session can be had any more.
  bool observer = false;
  // Open a new session even if the environment has one to join.
  bool always_new = false;
  // Keep one permit between its uses: who acquires and releases often does so without a call, as long as nobody else
  // waits. Meanwhile the permit shows as out and kept; whoever comes has it at once (docs/fairness.md).
  bool cache_permits = false;
  // Bounds each step of Open(), also where it waits because the user's processes connect faster than the daemon takes
  // them; and every call that does not wait for a lease.
  absl::Duration timeout = absl::Seconds(10);
};

}  // namespace berth

#endif  // CLIENT_SESSION_OPTIONS_H_
