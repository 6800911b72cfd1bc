// The session capsule: a sealed memfd with what proves a session, inherited beside the lifeline, so that the secret is
// never in argv or the environment. BERTH_SESSION=<lifeline fd>,<capsule fd>,<pid> names both to descendants,
// and the process that has them, from which who did not inherit them reads the capsule.
//
// And the credentials that ride on every RPC, made from it.

#ifndef COMMON_SESSION_CAPSULE_H_
#define COMMON_SESSION_CAPSULE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "common/secret.h"
#include "common/unique_fd.h"

namespace berth {

// The environment variable that names the inherited fds.
inline constexpr char kSessionVariable[] = "BERTH_SESSION";
// The gRPC metadata that carries Credentials.
inline constexpr char kCredentialsHeader[] = "berth-session-bin";

// What a capsule holds.
struct SessionCapsule {
  SessionId session;
  Secret secret;
  // The folder of the daemon's sockets, at most 95 bytes.
  std::string folder;
};

// Writes `capsule` into a new sealed memfd, mode 0400, close-on-exec.
absl::StatusOr<UniqueFd> WriteCapsule(const SessionCapsule& capsule);

// Errors: kInvalidArgument if `fd` is no capsule or its seals are missing.
absl::StatusOr<SessionCapsule> ReadCapsule(int fd);

// Who calls: a session, proved by its secret, and the channel of the calling process (0 before it joined).
struct Credentials {
  SessionId session;
  ChannelId channel;
  Secret secret;
};

// 32 bytes: session and channel little-endian, then the secret.
std::string EncodeCredentials(const Credentials& credentials);
// Errors: kInvalidArgument naming the size.
absl::StatusOr<Credentials> DecodeCredentials(absl::string_view bytes);

}  // namespace berth

#endif  // COMMON_SESSION_CAPSULE_H_
