// Messages with file descriptors over SEQPACKET sockets.

#ifndef COMMON_FD_PASSING_H_
#define COMMON_FD_PASSING_H_

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace berth {

// Far above any message of Berth's; a longer one is an error of its sender.
inline constexpr size_t kMaxMessageBytes = 4096;
// The kernel passes at most 253 in one message; Berth never needs more than a few.
inline constexpr size_t kMaxMessageFds = 8;

// A received message.
struct Message {
  std::string bytes;
  std::vector<UniqueFd> fds;
  // The message came with more fds than this process had room for: `fds` is empty, `bytes` are whole.
  bool fds_lost = false;
};

// Makes a connected pair of SEQPACKET sockets, close-on-exec.
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> SocketPair();

// Makes reads and writes of `fd`'s open file return at once.
absl::Status SetNonBlocking(int fd);

// Sends one message whole, or nothing of it. The fds stay the caller's. Never raises SIGPIPE. Where the kernel has no
// memory for it just now it is tried again, for some 30 ms at most.
// Errors: kUnavailable when the socket would block (errno EAGAIN) or the peer is gone; kResourceExhausted when too many
// fds are in flight; kInternal else.
absl::Status SendMessage(int socket, std::span<const std::byte> bytes, std::span<const int> fds = {});

// The same for a trivially copyable message struct.
template <typename T>
absl::Status SendStruct(int socket, const T& message, std::span<const int> fds = {}) {
  return SendMessage(socket, std::as_bytes(std::span(&message, 1)), fds);
}

// Receives one message. Blocks if the socket does.
// Errors: kUnavailable "would block" when nothing is there on a non-blocking socket; kOutOfRange "end of stream" when
// the peer is gone and all that it sent is read; kDataLoss when the message or its fds were cut short (its fds are
// closed, what came of it is lost).
absl::StatusOr<Message> ReceiveMessage(int socket);

// The same for who can go on with the bytes alone: fds cut short are no error, but set `fds_lost`.
absl::StatusOr<Message> ReceiveMessageOrItsBytes(int socket);

// The same from a peer that may send what it likes: every fd that came is put into `fds`, the message's own is empty,
// also where the result is an error. So the caller chooses who closes them: a close may wait for as long as the sender
// wants it to.
absl::StatusOr<Message> ReceiveFromStranger(int socket, std::vector<UniqueFd>* fds);

// The bytes of the next message, which stays there to be received: for who has to have acted on it by then. Whether fds
// come with it `fds_lost` says. Errors: as ReceiveMessage().
absl::StatusOr<Message> PeekMessage(int socket);

// Has the kernel refuse fds that are sent to `socket`, or to one that `socket` accepts; their sender gets EPERM.
// Errors: kUnimplemented before Linux 6.16.
absl::Status RefuseFds(int socket);

// Whether `status` of ReceiveMessage() says that nothing is there yet / that the peer is gone.
bool IsWouldBlock(const absl::Status& status);
bool IsEndOfStream(const absl::Status& status);

}  // namespace berth

#endif  // COMMON_FD_PASSING_H_
