// SessionEntry: how a process enters a session. The process joins the session that BERTH_SESSION names, or opens a new
// one.
//
// The variable names a session by its ID. The session credentials come from the fd that this process inherited, or else
// from the session's owner process. Credentials of any other session are refused. A session that has ended counts as
// none: the process opens a new one, as if the variable were not set (docs/design/0031).

#ifndef CLIENT_SDK_TRANSPORT_SESSION_ENTRY_H_
#define CLIENT_SDK_TRANSPORT_SESSION_ENTRY_H_

#include <optional>
#include <string>

#include <berth/ids.h>
#include <berth/session_options.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sdk/transport/attach.h"
#include "client/sdk/transport/environment.h"
#include "common/os/unique_fd.h"
#include "common/wire/session_credentials.h"

namespace berth::internal {

// A session that the environment names but whose credentials this process cannot obtain.
struct MissedSession {
  SessionId session;
  // kFailedPrecondition: the reason why there are no credentials. Reported if the session turns out to live.
  absl::Status why;
};

struct SessionEntry {
  // Folder of the daemon's sockets.
  std::string folder;
  SessionCredentials session_credentials;
  // Empty where the session was joined; the same applies to credentials_fd.
  UniqueFd lifeline;
  UniqueFd credentials_fd;
  JoinedChannel joined;
  // Set where a new session was opened in place of a session that may still live. Only the daemon knows whether it
  // does.
  std::optional<MissedSession> missed;
};

// Returns the path of the daemon's socket in `folder` for calls with `options`.
std::string SocketPath(const std::string& folder, const SessionOptions& options);

// Whether this process inherited the session that `name` names: its credentials are open under the fd number in `name`.
bool HasInherited(const SessionName& name);

// Returns the credentials of the session that `name` names.
// Errors: kFailedPrecondition where the session may live but this process cannot reach its credentials. kNotFound where
// neither this process nor the owner process has them (any more).
absl::StatusOr<SessionCredentials> FindSessionCredentials(const SessionName& name);

// Joins or opens a session for this process. Errors: those of Session::Open().
absl::StatusOr<SessionEntry> EnterSession(const SessionOptions& options);

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_SESSION_ENTRY_H_
