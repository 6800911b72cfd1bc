#include "client/internal/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/attach_wire.h"
#include "common/error.h"
#include "common/fd_passing.h"
#include "common/label.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth::internal {
namespace {

// Brokers that are asked one thing. One that has too many strangers ends their connections, too.
constexpr int kMaxAsked = 3;
// Between two questions of one that is to come again later: it doubles up to that.
constexpr absl::Duration kLongestPause = absl::Seconds(1);

// Says why there is no connection to the socket at `path`.
absl::Status NoConnection(const std::string& path, int error) {
  const absl::Status status = OsError(path, error);
  if (absl::IsPermissionDenied(status)) {
    return absl::PermissionDeniedError(
        absl::StrCat("user ", ::geteuid(), " may not connect to ", status.message()));
  }
  // A folder or socket that is not there, and a backlog that stays full, are a daemon that does not serve.
  return absl::UnavailableError(absl::StrCat("no Berth daemon answers on ", status.message()));
}

absl::StatusOr<UniqueFd> Connect(const std::string& path, absl::Duration timeout) {
  sockaddr_un address = {.sun_family = AF_UNIX};
  if (path.size() >= sizeof(address.sun_path)) {
    return Refuse(Reason::kInvalidField, "{field}: {value} bytes, limit {limit}",
                  {{"field", "the path of attach.sock"},
                   {"value", path.size()},
                   {"limit", sizeof(address.sun_path) - 1}});
  }
  memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return OsError("socket", errno);
  const timeval bound = absl::ToTimeval(timeout);
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    if (::setsockopt(socket.get(), SOL_SOCKET, option, &bound, sizeof(bound)) < 0)
      return OsError("setsockopt", errno);
  }
  int connected;
  do {
    connected = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (connected < 0 && errno == EINTR);
  if (connected < 0) return NoConnection(path, errno);
  return socket;
}

absl::Status FromRefused(const attach::Refused& refused) {
  absl::Status status(static_cast<absl::StatusCode>(refused.code),
                      absl::string_view(refused.text, strnlen(refused.text, sizeof(refused.text))));
  if (status.ok()) return absl::InternalError("the daemon refused with the code OK");
  if (const std::optional<Reason> reason = ReasonFromNumber(refused.reason)) {
    ErrorDetails details = {.reason = *reason};
    if (refused.retry_after > 0) details.retry_after = absl::Milliseconds(refused.retry_after);
    SetErrorDetails(details, &status);
  }
  return status;
}

// A broker that ended with the question; the next one can be asked.
absl::Status Aborted() { return absl::AbortedError("the daemon ended while it answered on attach.sock"); }

// Receives the one answer to Hello or Join, which brings one fd.
template <typename Answer>
absl::StatusOr<std::pair<Answer, UniqueFd>> ReceiveAnswer(int socket) {
  absl::StatusOr<Message> message = ReceiveMessage(socket);
  if (!message.ok()) {
    if (IsWouldBlock(message.status()))
      return absl::UnavailableError("the daemon did not answer on attach.sock");
    if (IsEndOfStream(message.status())) return Aborted();
    return message.status();
  }
  attach::Kind kind;
  if (message->bytes.size() < sizeof(kind))
    return absl::InternalError("attach.sock answered less than a kind");
  memcpy(&kind, message->bytes.data(), sizeof(kind));
  if (kind == attach::Kind::kRefused && message->bytes.size() == sizeof(attach::Refused)) {
    attach::Refused refused;
    memcpy(&refused, message->bytes.data(), sizeof(refused));
    return FromRefused(refused);
  }
  // What a channel carries, of which this process has not heard yet.
  if (kind == attach::Kind::kResumed || kind == attach::Kind::kDelivery) return Aborted();
  Answer answer;
  if (kind != answer.kind || message->bytes.size() != sizeof(answer) || message->fds.size() != 1) {
    return absl::InternalError(absl::StrCat("attach.sock answered kind ", static_cast<uint32_t>(kind),
                                            " with ", message->bytes.size(), " bytes and ",
                                            message->fds.size(), " fds"));
  }
  memcpy(&answer, message->bytes.data(), sizeof(answer));
  return std::pair(answer, std::move(message->fds[0]));
}

// Sends `question` on a new connection and receives its answer. Errors: kAborted where another broker has to be asked.
template <typename Answer, typename Question>
absl::StatusOr<std::pair<Answer, UniqueFd>> AskOn(int socket, const Question& question) {
  if (const absl::Status sent = SendStruct(socket, question); !sent.ok()) {
    // A daemon that refuses at once may have closed before the question came; its answer is there all the
    // same.
    absl::StatusOr<std::pair<Answer, UniqueFd>> answer = ReceiveAnswer<Answer>(socket);
    if (answer.ok() || GetErrorDetails(answer.status()).has_value()) return answer;
    return absl::IsUnavailable(sent) ? Aborted() : sent;
  }
  return ReceiveAnswer<Answer>(socket);
}

template <typename Answer>
struct Asked {
  // The connection that it was asked on.
  UniqueFd socket;
  Answer answer;
  UniqueFd fd;
};

// Asks, and asks again where a broker ended without an answer: what it may have made then ends with its connection. Who
// is one of too many at once comes again when it is told to, for as long as `timeout`.
template <typename Answer, typename Question>
absl::StatusOr<Asked<Answer>> Ask(const std::string& path, const Question& question, absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  absl::Duration pause;
  for (int asked = 1;;) {
    BERTH_ASSIGN_OR_RETURN(UniqueFd socket, Connect(path, timeout));
    absl::StatusOr<std::pair<Answer, UniqueFd>> answer = AskOn<Answer>(socket.get(), question);
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

}  // namespace

absl::Status CheckMayConnect(const std::string& path) {
  if (::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0) return absl::OkStatus();
  return NoConnection(path, errno);
}

std::string AttachPath(const std::string& folder, bool of_operator) {
  return absl::StrCat(folder, of_operator ? "/admin-attach.sock" : "/attach.sock");
}

absl::StatusOr<OpenedSession> OpenSession(const std::string& path, absl::string_view label,
                                          absl::Duration timeout) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("label", label));
  attach::Hello hello;
  memcpy(hello.label, label.data(), label.size());
  BERTH_ASSIGN_OR_RETURN(auto asked, Ask<attach::Welcome>(path, hello, timeout));
  BERTH_ASSIGN_OR_RETURN(SessionCapsule capsule, ReadCapsule(asked.fd.get()));
  return OpenedSession{
      .lifeline = std::move(asked.socket), .capsule_fd = std::move(asked.fd), .capsule = std::move(capsule)};
}

absl::StatusOr<JoinedChannel> JoinSession(const std::string& path, const SessionCapsule& capsule,
                                          absl::Duration timeout) {
  const attach::Join join = {.session = capsule.session.value(), .secret = capsule.secret};
  BERTH_ASSIGN_OR_RETURN(auto asked, Ask<attach::Joined>(path, join, timeout));
  BERTH_ASSIGN_OR_RETURN(StatePage page, StatePage::MapReadOnly(asked.fd.get()));
  BERTH_RETURN_IF_ERROR(SetNonBlocking(asked.socket.get()));
  return JoinedChannel{
      .socket = std::move(asked.socket), .channel = ChannelId(asked.answer.channel), .page = std::move(page)};
}

}  // namespace berth::internal
