// SessionCredentials: the session credentials, a sealed memfd that authenticates a session. Descendants inherit it
// together with the lifeline, so the secret is never in argv or the environment. BERTH_SESSION names both fds, the
// process that opened the session, and the session's id (client/sdk/transport/environment.h). A descendant that did not
// inherit the fds reads the session credentials from that process.
//
// Credentials: the metadata of every RPC, derived from the session credentials.

#ifndef COMMON_WIRE_SESSION_CREDENTIALS_H_
#define COMMON_WIRE_SESSION_CREDENTIALS_H_

#include <cstdint>
#include <string>

#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"
#include "common/secret.h"

namespace berth {

// The environment variable that names the inherited fds.
inline constexpr char kSessionVariable[] = "BERTH_SESSION";
// The gRPC metadata that carries Credentials.
inline constexpr char kCredentialsHeader[] = "berth-session-bin";

// The contents of the session credentials.
struct SessionCredentials {
  SessionId session;
  Secret secret;
  // Folder of the daemon's sockets, at most 95 bytes.
  std::string folder;
};

// Writes `session_credentials` into a new sealed memfd, mode 0444, close-on-exec.
absl::StatusOr<UniqueFd> WriteSessionCredentials(const SessionCredentials& session_credentials);

// Reads the session credentials. Errors: kInvalidArgument if `fd` holds none or its seals are missing.
absl::StatusOr<SessionCredentials> ReadSessionCredentials(int fd);

// The caller: a session, proved by its secret, and the channel of the calling process (0 before it joined).
struct Credentials {
  SessionId session;
  ChannelId channel;
  Secret secret;
};

// Returns 32 bytes: session and channel little-endian, then the secret.
std::string EncodeCredentials(const Credentials& credentials);
// Parses credentials. Errors: kInvalidArgument naming the size.
absl::StatusOr<Credentials> DecodeCredentials(absl::string_view bytes);

}  // namespace berth

#endif  // COMMON_WIRE_SESSION_CREDENTIALS_H_
