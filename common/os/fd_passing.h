// Messages with file descriptors over SEQPACKET sockets.

#ifndef COMMON_OS_FD_PASSING_H_
#define COMMON_OS_FD_PASSING_H_

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth {

// Limit for a message, in bytes; far above any Berth message. A longer message is an error of its sender.
inline constexpr size_t kMaxMessageBytes = 4096;
// Limit for the fds of a message. The kernel passes at most 253; Berth needs only a few.
inline constexpr size_t kMaxMessageFds = 8;

// A received message.
struct Message {
  std::string bytes;
  std::vector<UniqueFd> fds;
  // The message carried more fds than this process may open: `fds` is empty, `bytes` is complete.
  bool fds_lost = false;
};

// Creates a connected pair of SEQPACKET sockets, close-on-exec.
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> SocketPair();

// Sets `fd`'s open file to non-blocking mode.
absl::Status SetNonBlocking(int fd);

// Sends one message atomically. The caller still owns the fds. Never raises SIGPIPE. Retries for about 30 ms at most
// while the kernel lacks memory for the message.
// Errors: kUnavailable if the socket would block (errno EAGAIN) or the peer has closed it; kResourceExhausted if too
// many fds are in flight; kInternal else.
absl::Status SendMessage(int socket, std::span<const std::byte> bytes, std::span<const int> fds = {});

// Like SendMessage(), for a trivially copyable message struct.
template <typename T>
absl::Status SendStruct(int socket, const T& message, std::span<const int> fds = {}) {
  return SendMessage(socket, std::as_bytes(std::span(&message, 1)), fds);
}

// Receives one message. Blocks if the socket does.
// Errors: kUnavailable "would block" if a non-blocking socket has no message; kOutOfRange "end of stream" if the peer
// has closed its end and all its messages are read; kDataLoss if the message or its fds were truncated (received fds
// are closed, the message is lost); kResourceExhausted if its fds were truncated because this process may open no more.
absl::StatusOr<Message> ReceiveMessage(int socket);

// Like ReceiveMessage(), for callers that can use the bytes alone: truncated fds set `fds_lost` and are no error.
absl::StatusOr<Message> ReceiveMessageOrItsBytes(int socket);

// Like ReceiveMessage(), from an untrusted peer: every received fd goes into `fds`, also on error, and the message's
// own list is empty. The caller chooses the thread that closes them: the sender can make a close block indefinitely.
absl::StatusOr<Message> ReceiveFromStranger(int socket, std::vector<UniqueFd>* fds);

// Returns the bytes of the next message without receiving it, for callers that must act on a message before they
// consume it. `fds_lost` reports whether the message carries fds. Errors: as ReceiveMessage().
absl::StatusOr<Message> PeekMessage(int socket);

// Like recv(), for messages without fds. Repeats the call after a signal, and after the reset that the kernel reports
// once, before the peer's own messages, if the peer closed with unread messages.
ssize_t ReceiveBytes(int socket, std::span<char> bytes, int flags = 0);

// Makes the kernel reject fds sent to `socket`, or to a connection accepted from `socket`; the sender gets EPERM.
// Errors: kUnimplemented before Linux 6.16.
absl::Status RefuseFds(int socket);

// Returns whether `status` of ReceiveMessage() means that no message is available yet / that the peer has closed its
// end.
bool IsWouldBlock(const absl::Status& status);
bool IsEndOfStream(const absl::Status& status);

}  // namespace berth

#endif  // COMMON_OS_FD_PASSING_H_
