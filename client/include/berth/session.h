// Session: the leases that one job holds at the node's daemon, across all of its processes. A process opens a session
// once, and child processes inherit it explicitly. The session lives while any process holds its lifeline. Its leases
// return when its processes have ended, for any reason.
//
//   absl::StatusOr<std::shared_ptr<berth::Session>> session = berth::Session::Open({.label = "train"});
//   if (!session.ok()) return session.status();
//   absl::StatusOr<berth::Permit> permit = berth::Permit::Acquire(*session);
//   absl::StatusOr<berth::Block> block = berth::Block::Allocate(*session, {.bytes = berth::MiB(256)});
//
// All errors of SDK calls are statuses. A refusal of the daemon carries its reason and named values (berth/error.h,
// proto/berth/v1/errors.proto). kUnavailable: retry the call. kAborted: retry the larger step. kFailedPrecondition: do
// not retry before the cause is fixed. After the end of the session every call returns kUnavailable.

#ifndef BERTH_SESSION_H_
#define BERTH_SESSION_H_

#include <memory>
#include <string>

#include <berth/ids.h>
#include <berth/session_options.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace berth {

namespace internal {
class SessionCore;
}  // namespace internal

// Thread-safe. Shared: permits, blocks and unfinished releases to the daemon hold a reference. In the child of a plain
// fork() every call fails with kFailedPrecondition: exec first.
class Session {
 public:
  // Opens a session, or joins the session that BERTH_SESSION in the environment names. If that session has ended,
  // Open() opens a new session, as if the variable were not set.
  // Errors: kUnavailable when no daemon answers; kPermissionDenied when this user may not connect to the daemon's
  // sockets; kFailedPrecondition in a forked child, and when BERTH_SESSION names a live session whose credentials this
  // process neither inherited nor can read from the owner process; kInvalidArgument when the variable is malformed;
  // kResourceExhausted, naming the limit, when this process may not have the threads, address space and fds that a
  // session needs (docs/concepts/limits.md): nothing is opened then. The first call that needs gRPC returns the same
  // error where this process may not have what gRPC needs. Refusals: BAD_CREDENTIALS (the named session belongs to
  // another user or container), UNKNOWN_PEER, LIMIT.
  static absl::StatusOr<std::shared_ptr<Session>> Open(const SessionOptions& options = {});

  // Leaves the session once its last permit, block and mapping in this process are destroyed too. The session ends with
  // its last lifeline. A release or cancel that the daemon has not yet answered gets half a second. If that is too
  // short, the call continues in the background and the session stays open until the daemon has answered. Leases whose
  // release is still unanswered when the process ends return when all of the session's processes have ended.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  SessionId id() const;
  // The absolute path of the folder with the daemon's sockets.
  const std::string& folder() const;
  // Whether the session was inherited rather than opened here.
  bool joined() const;

  // Lets processes that this process execs from now on inherit the session. Returns the environment entry to give them,
  // e.g. "BERTH_SESSION=960,961,4711,...". A process that does not inherit the fds (Python's subprocess closes them)
  // can still join while this process lives. It must then belong to the same user and PID namespace.
  // Errors: kUnavailable when the session is over; kFailedPrecondition in a forked child, and when the environment no
  // longer names the session that this process joined.
  absl::StatusOr<std::string> Inherit();

  // Ends the session at the daemon, for all of its processes. Tries no longer than `max_wait`, and no longer than
  // SessionOptions::timeout.
  // Errors: kUnavailable, kDeadlineExceeded (no answer in time: retry); kFailedPrecondition in a forked child.
  absl::Status End(absl::Duration max_wait = absl::InfiniteDuration());

  // OK while the session can be used; otherwise the reason why not.
  absl::Status status() const;

  // For internal use by the SDK: the state shared by the units of this library.
  const std::shared_ptr<internal::SessionCore>& core() const { return core_; }

 private:
  explicit Session(std::shared_ptr<internal::SessionCore> core);
  const std::shared_ptr<internal::SessionCore> core_;
};

}  // namespace berth

#endif  // BERTH_SESSION_H_
