#include "client/sdk/transport/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <berth/error.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/sdk/transport/high_fd.h"
#include "common/label.h"
#include "common/os/fd_passing.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "common/wire/attach_wire.h"

namespace berth::internal {
namespace {

// Number of brokers that receive a question before the client gives up. A broker with too many unknown connections also
// ends connections.
constexpr int kMaxAsked = 3;
// Longest pause between two tries when the broker answers to retry later; the pause doubles up to this.
constexpr absl::Duration kLongestPause = absl::Seconds(1);

// Names the group whose members may connect to the socket at `path`; empty if there is none, or it cannot be seen.
std::string GroupWithAccess(const std::string& path) {
  struct stat info;
  // A folder that denies access hides its sockets.
  const bool seen = ::stat(path.c_str(), &info) == 0;
  if (!seen && ::stat(path.substr(0, path.rfind('/')).c_str(), &info) != 0) return "";
  if ((info.st_mode & (seen ? S_IWGRP : S_IXGRP)) == 0) return "";
  char text[4096];
  group entry;
  group* found = nullptr;
  ::getgrgid_r(info.st_gid, &entry, text, sizeof(text), &found);
  const std::string name = found == nullptr ? absl::StrCat(info.st_gid) : found->gr_name;
  return absl::StrCat("; the members of group ", name, " have access");
}

// Returns the reason why there is no connection to the socket at `path`.
absl::Status NoConnection(const std::string& path, int error) {
  const absl::Status status = OsError(path, error);
  if (absl::IsPermissionDenied(status)) {
    return absl::PermissionDeniedError(absl::StrCat("user ", ::geteuid(), " has no access to ", status.message(),
                                                     GroupWithAccess(path)));
  }
  // A missing folder or socket, or a backlog that stays full, means that no daemon serves.
  return absl::UnavailableError(absl::StrCat("no Berth daemon answers on ", status.message()));
}

// Returns OK for a path that a socket's address can hold.
absl::Status CheckAddress(const std::string& path) {
  constexpr size_t kLimit = sizeof(sockaddr_un::sun_path) - 1;
  if (path.find('\0') != std::string::npos) {
    return Refuse(Reason::kInvalidField, "{field} {value} has a zero byte; expected {limit}",
                  {{"field", "socket path"}, {"value", absl::CHexEscape(path)}, {"limit", "a path without one"}});
  }
  if (path.size() <= kLimit) return absl::OkStatus();
  return Refuse(Reason::kInvalidField,
                "{field} {path}: {value} bytes, limit {limit}; name the folder by a shorter path, e.g. a symbolic link",
                {{"field", "socket path"}, {"path", path}, {"value", path.size()}, {"limit", kLimit}});
}

// Bounds each call on the socket.
absl::Status SetTimeout(int socket, absl::Duration timeout) {
  const timeval bound = absl::ToTimeval(timeout);
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    if (::setsockopt(socket, SOL_SOCKET, option, &bound, sizeof(bound)) < 0) return OsError("setsockopt", errno);
  }
  return absl::OkStatus();
}

// Has the next call on the socket end in time to report a silent daemon.
absl::Status BeginStep(int socket, const AttachLimits& limits) {
  return SetTimeout(socket, limits.reports_silence() ? limits.silence() : limits.timeout);
}

// Reports a silent daemon once the first call of a step has timed out. Returns whether to call again, for the rest of
// the step's time.
bool ReportSilence(int socket, const std::string& path, const AttachLimits& limits) {
  if (!limits.reports_silence()) return false;
  limits.on_silence(path);
  return SetTimeout(socket, limits.timeout - limits.silence()).ok();
}

absl::StatusOr<UniqueFd> Connect(const std::string& path, const AttachLimits& limits) {
  BERTH_RETURN_IF_ERROR(CheckAddress(path));
  sockaddr_un address = {.sun_family = AF_UNIX};
  memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return OsError("socket", errno);
  BERTH_RETURN_IF_ERROR(BeginStep(socket.get(), limits));
  const auto connect = [&] {
    int connected;
    do {
      connected = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    } while (connected < 0 && errno == EINTR);
    return connected < 0 ? errno : 0;
  };
  int error = connect();
  if (error == EAGAIN && ReportSilence(socket.get(), path, limits)) error = connect();
  if (error != 0) return NoConnection(path, error);
  BERTH_RETURN_IF_ERROR(BeginStep(socket.get(), limits));
  return socket;
}

absl::Status FromRefused(const attach::Refused& refused) {
  absl::Status status(static_cast<absl::StatusCode>(refused.code),
                      absl::string_view(refused.text, strnlen(refused.text, sizeof(refused.text))));
  if (status.ok()) return absl::InternalError("the daemon sent a malformed refusal: its code is OK");
  if (const std::optional<Reason> reason = ReasonFromNumber(refused.reason)) {
    ErrorDetails details = {.reason = *reason};
    if (refused.retry_after > 0) details.retry_after = absl::Milliseconds(refused.retry_after);
    SetErrorDetails(details, &status);
  }
  return status;
}

// The broker ended while it answered; the next broker can be asked.
absl::Status Aborted() { return absl::AbortedError("the daemon ended before it answered on attach.sock"); }

// Receives the answer to Hello or Join, which carries one fd.
template <typename Answer>
absl::StatusOr<std::pair<Answer, UniqueFd>> ReceiveAnswer(int socket, const std::string& path,
                                                          const AttachLimits& limits) {
  absl::StatusOr<Message> message = ReceiveMessage(socket);
  if (IsWouldBlock(message.status()) && ReportSilence(socket, path, limits)) message = ReceiveMessage(socket);
  if (!message.ok()) {
    if (IsWouldBlock(message.status())) {
      return absl::UnavailableError(absl::StrCat("the daemon did not answer on ", path, " for ",
                                                 absl::FormatDuration(limits.timeout),
                                                 ": it is stopped or overloaded, or no daemon listens there"));
    }
    if (IsEndOfStream(message.status())) return Aborted();
    return message.status();
  }
  attach::Kind kind;
  if (message->bytes.size() < sizeof(kind)) return absl::InternalError("attach.sock answered with a truncated message");
  memcpy(&kind, message->bytes.data(), sizeof(kind));
  if (kind == attach::Kind::kRefused && message->bytes.size() == sizeof(attach::Refused)) {
    attach::Refused refused;
    memcpy(&refused, message->bytes.data(), sizeof(refused));
    return FromRefused(refused);
  }
  // Such messages belong to a channel that this process does not know of yet: the broker restarted before it answered.
  if (kind == attach::Kind::kResumed || kind == attach::Kind::kDelivery) return Aborted();
  Answer answer;
  if (kind != answer.kind || message->bytes.size() != sizeof(answer) || message->fds.size() != 1) {
    return absl::InternalError(absl::StrCat("attach.sock answered with an unexpected message: kind ",
                                            static_cast<uint32_t>(kind), ", ", message->bytes.size(), " bytes and ",
                                            message->fds.size(), " fds"));
  }
  memcpy(&answer, message->bytes.data(), sizeof(answer));
  return std::pair(answer, std::move(message->fds[0]));
}

// Sends `question` on a new connection and receives the answer. Errors: kAborted where the next broker must be asked.
template <typename Answer, typename Question>
absl::StatusOr<std::pair<Answer, UniqueFd>> AskOn(int socket, const Question& question, const std::string& path,
                                                  const AttachLimits& limits) {
  if (const absl::Status sent = SendStruct(socket, question); !sent.ok()) {
    // A daemon that refuses at once may have closed before the question arrived. The answer can be read all the same.
    absl::StatusOr<std::pair<Answer, UniqueFd>> answer = ReceiveAnswer<Answer>(socket, path, limits);
    if (answer.ok() || GetErrorDetails(answer.status()).has_value()) return answer;
    return absl::IsUnavailable(sent) ? Aborted() : sent;
  }
  return ReceiveAnswer<Answer>(socket, path, limits);
}

template <typename Answer>
struct Asked {
  // The connection on which the question was sent.
  UniqueFd socket;
  Answer answer;
  UniqueFd fd;
};

// Sends the question, and repeats it where a broker ended without an answer: objects that this broker made for the
// question end with its connection. A client that is refused for too many connections retries when the broker says so,
// for up to the limit of a step. `cancellation` ends the wait for an answer; it may be null.
template <typename Answer, typename Question>
absl::StatusOr<Asked<Answer>> Ask(const std::string& path, const Question& question, const AttachLimits& limits,
                                  Cancellation* cancellation = nullptr) {
  const absl::Time deadline = SteadyNow() + limits.timeout;
  absl::Duration pause;
  for (int asked = 1;;) {
    BERTH_ASSIGN_OR_RETURN(UniqueFd socket, Connect(path, limits));
    const Cancellation::Hook hook(cancellation, [fd = socket.get()] { ::shutdown(fd, SHUT_RDWR); });
    if (cancellation != nullptr && cancellation->cancelled()) return absl::CancelledError("the session is closed");
    absl::StatusOr<std::pair<Answer, UniqueFd>> answer = AskOn<Answer>(socket.get(), question, path, limits);
    if (answer.ok()) {
      return Asked<Answer>{
          .socket = std::move(socket), .answer = answer->first, .fd = std::move(answer->second)};
    }
    const std::optional<ErrorDetails> details = GetErrorDetails(answer.status());
    if (details.has_value() && details->retry_after.has_value()) {
      pause = std::clamp(2 * pause, *details->retry_after, std::max(*details->retry_after, kLongestPause));
      if (SteadyNow() + pause >= deadline) return answer.status();
      absl::SleepFor(pause);
      continue;
    }
    if (!absl::IsAborted(answer.status())) return answer.status();
    if (asked++ == kMaxAsked) return absl::UnavailableError(answer.status().message());
  }
}

template <typename Question>
absl::StatusOr<JoinedChannel> AskToJoin(const std::string& path, const Question& question, const AttachLimits& limits,
                                        Cancellation* cancellation = nullptr) {
  BERTH_ASSIGN_OR_RETURN(auto asked, Ask<attach::Joined>(path, question, limits, cancellation));
  BERTH_ASSIGN_OR_RETURN(StatePage page, StatePage::MapReadOnly(asked.fd.get()));
  BERTH_RETURN_IF_ERROR(SetNonBlocking(asked.socket.get()));
  return JoinedChannel{
      .socket = std::move(asked.socket), .channel = ChannelId(asked.answer.channel), .page = std::move(page)};
}

}  // namespace

absl::Status CheckMayConnect(const std::string& path) {
  BERTH_RETURN_IF_ERROR(CheckAddress(path));
  if (::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0) return absl::OkStatus();
  return NoConnection(path, errno);
}

std::string AttachPath(const std::string& folder, bool of_operator) {
  return absl::StrCat(folder, of_operator ? "/admin-attach.sock" : "/attach.sock");
}

absl::StatusOr<OpenedSession> OpenSession(const std::string& path, absl::string_view label,
                                          const AttachLimits& limits) {
  attach::Hello hello;
  const std::string shown = ToLabel(label);
  memcpy(hello.label, shown.data(), shown.size());
  BERTH_ASSIGN_OR_RETURN(auto asked, Ask<attach::Welcome>(path, hello, limits));
  BERTH_ASSIGN_OR_RETURN(SessionCredentials session_credentials, ReadSessionCredentials(asked.fd.get()));
  // Descendants inherit both fds, and use low fd numbers for fds of their own.
  return OpenedSession{.lifeline = MoveFarUp(std::move(asked.socket)),
                       .credentials_fd = MoveFarUp(std::move(asked.fd)),
                       .session_credentials = std::move(session_credentials)};
}

absl::StatusOr<JoinedChannel> JoinSession(const std::string& path, const SessionCredentials& session_credentials,
                                          const AttachLimits& limits) {
  const attach::Join join = {.session = session_credentials.session.value(), .secret = session_credentials.secret};
  return AskToJoin(path, join, limits);
}

absl::StatusOr<JoinedChannel> RejoinSession(const std::string& path, const Credentials& credentials,
                                            absl::Duration timeout, Cancellation* cancellation) {
  const attach::Rejoin rejoin = {.session = credentials.session.value(),
                                 .secret = credentials.secret,
                                 .channel = credentials.channel.value()};
  return AskToJoin(path, rejoin, {.timeout = timeout}, cancellation);
}

bool IsRejoinRefused(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value()) return false;
  switch (details->reason) {
    case Reason::kBadCredentials:
    case Reason::kSessionEnded:
    case Reason::kNotJoined:
    // The daemon is too old to know the message.
    case Reason::kInvalidField:
      return true;
    default:
      return false;
  }
}

}  // namespace berth::internal
