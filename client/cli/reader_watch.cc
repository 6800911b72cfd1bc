#include "client/cli/reader_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// Interval of the checks for an end that the kernel does not signal.
constexpr int kCheckMs = 500;
// Seconds between two questions to a TCP peer whether its socket still exists, and their number without an answer.
constexpr int kAskSeconds = 2;
constexpr int kMaxUnanswered = 60;

int SocketOption(int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  return ::getsockopt(STDOUT_FILENO, SOL_SOCKET, option, &value, &size) < 0 ? -1 : value;
}

// Whether the reader can end unnoticed by poll(): a Unix stream socket whose other end is only shut down for reading.
// The connection of a TCP socket does not transmit that.
bool IsUnixStream() { return SocketOption(SO_DOMAIN) == AF_UNIX && SocketOption(SO_TYPE) == SOCK_STREAM; }

bool IsTcp() {
  const int domain = SocketOption(SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) && SocketOption(SO_TYPE) == SOCK_STREAM;
}

// Makes the kernel ask the peer again and again whether its socket still exists. The answer of a peer without the
// socket ends the connection.
void AskTcpPeer() {
  const struct {
    int level;
    int option;
    int value;
  } settings[] = {{IPPROTO_TCP, TCP_KEEPIDLE, kAskSeconds},
                  {IPPROTO_TCP, TCP_KEEPINTVL, kAskSeconds},
                  {IPPROTO_TCP, TCP_KEEPCNT, kMaxUnanswered},
                  {SOL_SOCKET, SO_KEEPALIVE, 1}};
  for (const auto& [level, option, value] : settings) {
    ::setsockopt(STDOUT_FILENO, level, option, &value, sizeof(value));
  }
}

// Whether a write would fail with EPIPE. An empty write sends nothing on a stream.
bool RefusesWrites() { return ::send(STDOUT_FILENO, nullptr, 0, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EPIPE; }

}  // namespace

absl::StatusOr<std::unique_ptr<ReaderWatch>> ReaderWatch::Start() {
  // As ReserveStandardFds() leaves a closed one. A view without news would never find out.
  if ((::fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) == O_RDONLY) return OsError("cannot write standard output", EBADF);
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop) return OsError("eventfd", errno);
  std::unique_ptr<ReaderWatch> watch(new ReaderWatch(std::move(stop)));
  BERTH_ASSIGN_OR_RETURN(watch->thread_,
                         Thread::Start("the reader of the output", [raw = watch.get()] { raw->Run(); }));
  return watch;
}

ReaderWatch::~ReaderWatch() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

absl::Status ReaderWatch::ResultOf(const absl::Status& result) const {
  if (!cancellation_.cancelled()) return result;
  return absl::InternalError(OsError("cannot write standard output", EPIPE).message());
}

void ReaderWatch::Run() {
  // Without requested events, poll() reports only errors and hang-ups.
  pollfd fds[2] = {{.fd = STDOUT_FILENO, .events = 0}, {.fd = stop_.get(), .events = POLLIN}};
  if (IsTcp()) fds[0].events = POLLRDHUP;
  const bool checks = IsUnixStream();
  while (fds[0].revents == 0 && !(checks && RefusesWrites())) {
    if (::poll(fds, 2, checks ? kCheckMs : -1) > 0 && fds[1].revents != 0) return;
    if (fds[0].revents != POLLRDHUP) continue;
    // The peer sends no more, and may have closed its socket.
    fds[0] = {.fd = STDOUT_FILENO, .events = 0};
    AskTcpPeer();
  }
  ::kill(::getpid(), SIGPIPE);
  cancellation_.Cancel();
}

}  // namespace berth::cli
