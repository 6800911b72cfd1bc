// Client side of attach.sock: opens and joins sessions. The calls block for a bounded time.

#ifndef CLIENT_SDK_TRANSPORT_ATTACH_H_
#define CLIENT_SDK_TRANSPORT_ATTACH_H_

#include <functional>
#include <string>

#include <berth/cancellation.h>
#include <berth/ids.h>
#include <berth/session_options.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/os/unique_fd.h"
#include "common/patience.h"
#include "common/wire/session_credentials.h"
#include "common/wire/state_page.h"

namespace berth::internal {

// Time-outs of the steps of a call.
struct AttachLimits {
  // The limit of each step.
  absl::Duration timeout;
  // SessionOptions::on_silence; may be empty.
  std::function<void(const std::string& socket)> on_silence = nullptr;

  bool reports_silence() const { return on_silence != nullptr && timeout > silence(); }
  static absl::Duration silence() { return Patient(SessionOptions::kSilence); }
};

struct OpenedSession {
  // Carries no data after this. The session lives while any process holds the lifeline. Close-on-exec.
  UniqueFd lifeline;
  // The session credentials: they name and prove the session.
  UniqueFd credentials_fd;
  SessionCredentials session_credentials;
};

struct JoinedChannel {
  // Non-blocking, close-on-exec.
  UniqueFd socket;
  ChannelId channel;
  StatePage page;
};

// Checks by the file's mode, without a connection, whether this process may connect to the socket at `path`.
// Errors: kPermissionDenied naming the socket and the user; kUnavailable where no such socket exists; INVALID_FIELD for
// a path that no address of a socket can hold.
absl::Status CheckMayConnect(const std::string& path);

// Path of the socket in `folder` on which sessions are opened and joined: the operators' socket or the general one.
std::string AttachPath(const std::string& folder, bool of_operator);

// Opens a session on the socket at `path`.
// Errors: kUnavailable when no daemon answers; kPermissionDenied where this user may not connect; the daemon's refusal,
// unchanged; kInternal when the peer does not speak Berth's protocol.
absl::StatusOr<OpenedSession> OpenSession(const std::string& path, absl::string_view label,
                                          const AttachLimits& limits);

// Joins a session for this process. Errors: those of OpenSession.
absl::StatusOr<JoinedChannel> JoinSession(const std::string& path, const SessionCredentials& session_credentials,
                                          const AttachLimits& limits);

// Reconnects to the next daemon after the earlier daemon was stopped or killed: this process's channel, or with channel
// 0 the session's lifeline. `timeout` bounds each step, `cancellation` ends it. Errors: those of OpenSession.
// IsRejoinRefused() is true of the error where the session is over for this process; after any other error the caller
// retries.
absl::StatusOr<JoinedChannel> RejoinSession(const std::string& path, const Credentials& credentials,
                                            absl::Duration timeout, Cancellation* cancellation);
bool IsRejoinRefused(const absl::Status& status);

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_ATTACH_H_
