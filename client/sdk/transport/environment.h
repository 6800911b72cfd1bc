// Settings that a client reads from its environment: the daemon's folder, and the session that the client belongs to.

#ifndef CLIENT_SDK_TRANSPORT_ENVIRONMENT_H_
#define CLIENT_SDK_TRANSPORT_ENVIRONMENT_H_

#include <cstdint>
#include <optional>
#include <string>

#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth::internal {

// Names the folder of the daemon's sockets. Takes precedence over every default, and over the folder in an inherited
// session's credentials.
inline constexpr char kFolderVariable[] = "BERTH_FOLDER";

// Returns $BERTH_FOLDER; empty where it is not set.
std::string FolderFromEnvironment();

// Returns $BERTH_FOLDER; else /run/berth if a daemon's socket is there; else $XDG_RUNTIME_DIR/berth; else /run/berth.
std::string DefaultFolder();

// Returns `folder` as an absolute path, so that it remains valid after a change of the working folder.
std::string Absolute(const std::string& folder);

// The session that BERTH_SESSION names, and the ways to its credentials.
struct SessionName {
  // Fd numbers under which descendants of the opener inherit the fds; the same applies to `session_credentials`.
  int lifeline = -1;
  int session_credentials = -1;
  // The owner process, which opened the session and has both fds under these numbers: its PID, its start time
  // (process_start.h) and its PID namespace. Processes that did not inherit the fds read the credentials there. 0:
  // none.
  int opener = 0;
  uint64_t opener_start = 0;
  uint64_t pid_namespace = 0;
  // 0 in a name that an earlier version of Berth wrote.
  SessionId session;
};

// Parses "<lifeline>,<credentials>,<opener>,<start>,<PID namespace>,<session>". Takes only the fds from an earlier
// version's "<lifeline>,<credentials>" and "<lifeline>,<credentials>,<opener>". Errors: kInvalidArgument naming the
// text.
absl::StatusOr<SessionName> ParseSessionName(absl::string_view text);
std::string FormatSessionName(const SessionName& name);

// Returns the session that this process's environment names; nullopt if the variable is not set or empty.
absl::StatusOr<std::optional<SessionName>> SessionNameFromEnvironment();

// Returns this process's PID namespace: the number of its file in /proc. 0 if /proc does not show it.
uint64_t PidNamespace();

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_ENVIRONMENT_H_
