#include "common/os/fd_passing.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "common/os/os_error.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

namespace berth {
namespace {

// Most fds that the kernel passes in one message (SCM_MAX_FD).
constexpr size_t kMaxPassedFds = 253;

// Number of retries while the kernel lacks memory for a message, or while the processes of this user have more fds in
// messages than this process's RLIMIT_NOFILE. The wait doubles each time, to about 30 ms in total: a longer wait blocks
// other work.
constexpr int kSendsAgain = 5;
constexpr long kFirstWaitNs = 1'000'000;

void WaitToSendAgain(int again) {
  timespec wait = {.tv_sec = 0, .tv_nsec = kFirstWaitNs << again};
  ::nanosleep(&wait, nullptr);
}

// Calls `receive` again after a signal, and after a reset: if the peer closed with unread messages, the kernel reports
// one before the peer's own messages.
template <typename Receive>
ssize_t Repeat(const Receive& receive) {
  ssize_t got;
  do {
    got = receive();
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  return got;
}

// Receives one message, with capacity for `capacity` fds. All received fds are in `fds`, also on error.
absl::StatusOr<Message> Receive(int socket, size_t capacity, std::vector<UniqueFd>* fds, int flags = 0) {
  // The extra byte distinguishes a message that is too long from one that fits.
  char buffer[kMaxMessageBytes + 1];
  iovec part = {buffer, sizeof(buffer)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPassedFds)];
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = capacity > 0 ? control : nullptr;
  header.msg_controllen = capacity > 0 ? CMSG_SPACE(sizeof(int) * capacity) : 0;
  const ssize_t got = Repeat([&] { return ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | flags); });
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return absl::UnavailableError("would block");
    return OsError("recvmsg", errno);
  }
  for (cmsghdr* at = CMSG_FIRSTHDR(&header); at != nullptr; at = CMSG_NXTHDR(&header, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
  Message message;
  message.fds_lost = (header.msg_flags & MSG_CTRUNC) != 0;
  if ((header.msg_flags & MSG_TRUNC) != 0 || got > static_cast<ssize_t>(kMaxMessageBytes)) {
    return absl::DataLossError("message longer than 4,096 bytes");
  }
  // The end of a SEQPACKET stream reads as an empty message; Berth never sends one.
  if (got == 0 && fds->empty() && !message.fds_lost) return absl::OutOfRangeError("end of stream");
  message.bytes.assign(buffer, static_cast<size_t>(got));
  return message;
}

absl::Status LostFds() { return absl::DataLossError("file descriptors were lost in transit"); }

// Returns why fds of a message were lost. The received fds are still open.
absl::Status WhyFdsLost() {
  const UniqueFd another(::open("/", O_PATH | O_CLOEXEC));
  return another ? LostFds() : OsError("recvmsg: a file descriptor", errno);
}

}  // namespace

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> SocketPair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) return OsError("socketpair", errno);
  return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

absl::Status SetNonBlocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return OsError("fcntl(O_NONBLOCK)", errno);
  return absl::OkStatus();
}

absl::Status SendMessage(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  if (fds.size() > kMaxMessageFds) return absl::InternalError("too many fds for one message");
  iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxMessageFds)] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  ssize_t sent = ::sendmsg(socket, &header, MSG_NOSIGNAL);
  for (int again = 0; sent < 0; sent = ::sendmsg(socket, &header, MSG_NOSIGNAL)) {
    if (errno == EINTR) continue;
    // The kernel sends a message completely or not at all.
    const bool passes = errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS;
    if (!passes || again == kSendsAgain) break;
    WaitToSendAgain(again++);
  }
  if (sent < 0) {
    if (errno == ETOOMANYREFS)
      return absl::ResourceExhaustedError("sendmsg: too many file descriptors in flight");
    return OsError("sendmsg", errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<Message> ReceiveMessageOrItsBytes(int socket) {
  std::vector<UniqueFd> fds;
  absl::StatusOr<Message> message = Receive(socket, kMaxMessageFds, &fds);
  if (message.ok() && !message->fds_lost) message->fds = std::move(fds);
  return message;
}

absl::StatusOr<Message> ReceiveMessage(int socket) {
  std::vector<UniqueFd> fds;
  absl::StatusOr<Message> message = Receive(socket, kMaxMessageFds, &fds);
  if (message.ok() && message->fds_lost) return WhyFdsLost();
  if (message.ok()) message->fds = std::move(fds);
  return message;
}

absl::StatusOr<Message> ReceiveFromStranger(int socket, std::vector<UniqueFd>* fds) {
  absl::StatusOr<Message> message = Receive(socket, kMaxPassedFds, fds);
  if (message.ok() && message->fds_lost) return LostFds();
  return message;
}

absl::StatusOr<Message> PeekMessage(int socket) {
  std::vector<UniqueFd> none;
  return Receive(socket, /*capacity=*/0, &none, MSG_PEEK);
}

ssize_t ReceiveBytes(int socket, std::span<char> bytes, int flags) {
  return Repeat([&] { return ::recv(socket, bytes.data(), bytes.size(), flags); });
}

absl::Status RefuseFds(int socket) {
  const int no = 0;
  if (::setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no)) == 0) return absl::OkStatus();
  if (errno == ENOPROTOOPT)
    return absl::UnimplementedError("the kernel cannot reject file descriptors (SO_PASSRIGHTS)");
  return OsError("setsockopt(SO_PASSRIGHTS)", errno);
}

bool IsWouldBlock(const absl::Status& status) { return status.code() == absl::StatusCode::kUnavailable; }

bool IsEndOfStream(const absl::Status& status) { return status.code() == absl::StatusCode::kOutOfRange; }

}  // namespace berth
