// Session: what one job holds at the node's daemon, over all of its processes. It is opened once and
// inherited on purpose; it lives while any process holds its lifeline, and what it holds returns when its
// processes are gone, however they end.
//
//   absl::StatusOr<std::shared_ptr<berth::Session>> session = berth::Session::Open({.label = "train"});
//   if (!session.ok()) return session.status();
//   absl::StatusOr<berth::Permit> permit = berth::Permit::Acquire(*session);
//   absl::StatusOr<berth::Block> block = berth::Block::Allocate(*session, {.bytes = berth::MiB(256)});
//
// Errors of every call of the SDK are statuses; a refusal of the daemon carries its reason and figures
// (common/error.h, proto/berth/v1/errors.proto). kUnavailable: retry the call. kAborted: retry the larger
// step. kFailedPrecondition: not until something is mended. A session that is over answers kUnavailable to
// everything.

#ifndef CLIENT_SESSION_H_
#define CLIENT_SESSION_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session_options.h"
#include "common/ids.h"

namespace berth {

namespace internal {
class SessionCore;
}  // namespace internal

// Thread-safe. Shared, because permits, blocks and what the SDK still owes the daemon keep it alive. In the
// child of a plain fork() every call fails with kFailedPrecondition: exec first.
class Session {
 public:
  // Opens a session, or joins the one that BERTH_SESSION in the environment names.
  // Errors: kUnavailable when no daemon answers; kPermissionDenied when this user may not connect to the
  // daemon's sockets; kFailedPrecondition when BERTH_SESSION names fds that this process did not inherit, and
  // in a forked child; refusals: BAD_CREDENTIALS, UNKNOWN_PEER, SESSION_ENDED, LIMIT.
  static absl::StatusOr<std::shared_ptr<Session>> Open(const SessionOptions& options = {});

  // Leaves the session when its last permit, block and mapping here have gone too: it ends with its last
  // lifeline. What is still owed to the daemon then (a release or a cancel that it has not answered) gets half
  // a second; if that is too short it goes on in the background and keeps the session open until the daemon
  // has answered. What this process owes when it ends comes back when the session's processes are gone.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  SessionId id() const;
  // The folder of the daemon's sockets, absolute.
  const std::string& folder() const;
  // Whether it was inherited and not opened here.
  bool joined() const;

  // Lets processes that this one execs from now on inherit the session. Returns the environment entry to give
  // them, e.g. "BERTH_SESSION=5,6,4711". Those to whom the fds do not come down (Python's subprocess closes them)
  // join all the same as long as this process lives, if they are of its user and PID namespace.
  absl::StatusOr<std::string> Inherit();

  // Ends the session at the daemon, for every process in it; tries no longer than `max_wait`, and no longer
  // than SessionOptions::timeout.
  absl::Status End(absl::Duration max_wait = absl::InfiniteDuration());

  // OK while the session can be used; else why not.
  absl::Status status() const;

  // The SDK's own: what the units of this library share.
  const std::shared_ptr<internal::SessionCore>& core() const { return core_; }

 private:
  explicit Session(std::shared_ptr<internal::SessionCore> core);
  const std::shared_ptr<internal::SessionCore> core_;
};

}  // namespace berth

#endif  // CLIENT_SESSION_H_
