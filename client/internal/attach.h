// The client's side of attach.sock: opens a session, joins one. Blocking, with a bound.

#ifndef CLIENT_INTERNAL_ATTACH_H_
#define CLIENT_INTERNAL_ATTACH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/session_capsule.h"
#include "common/state_page.h"
#include "common/unique_fd.h"

namespace berth::internal {

struct OpenedSession {
  // Silent from now on; the session lives while anybody holds it. Close-on-exec.
  UniqueFd lifeline;
  // Names and proves the session.
  UniqueFd capsule_fd;
  SessionCapsule capsule;
};

struct JoinedChannel {
  // Non-blocking, close-on-exec.
  UniqueFd socket;
  ChannelId channel;
  StatePage page;
};

// Whether this process may connect to the socket at `path`, by the file's mode and without connecting.
// Errors: kPermissionDenied naming socket and user; kUnavailable where there is no such socket.
absl::Status CheckMayConnect(const std::string& path);

// The socket in `folder` that sessions are opened on and joined: an operator's, or everybody's.
std::string AttachPath(const std::string& folder, bool of_operator);

// Opens a session on the socket at `path`. `timeout` bounds each step.
// Errors: kUnavailable when no daemon answers there; kPermissionDenied where this user may not connect;
// a refusal of the daemon as it made it; kInternal when what answers does not speak Berth's protocol.
absl::StatusOr<OpenedSession> OpenSession(const std::string& path, absl::string_view label,
                                          absl::Duration timeout);

// Joins a session for this process. Errors: as OpenSession.
absl::StatusOr<JoinedChannel> JoinSession(const std::string& path, const SessionCapsule& capsule,
                                          absl::Duration timeout);

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_ATTACH_H_
