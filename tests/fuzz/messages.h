// Inputs that are messages of a SEQPACKET socket: for each the number of its fds, its size, and its bytes.

#ifndef TESTS_FUZZ_MESSAGES_H_
#define TESTS_FUZZ_MESSAGES_H_

#include <fcntl.h>
#include <string.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"

namespace berth::fuzz {

struct MessageHead {
  uint8_t fds = 0;
  uint8_t padding = 0;
  uint16_t size = 0;
};

// Returns one message of an input.
inline std::string AsInput(absl::string_view bytes, uint8_t fds = 0) {
  const MessageHead head = {.fds = fds, .size = static_cast<uint16_t>(bytes.size())};
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)).append(bytes.data(), bytes.size());
}

// Sends the input's messages, as many as the socket accepts.
inline void SendAll(int socket, absl::string_view input) {
  static const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  MessageHead head;
  while (input.size() >= sizeof(head)) {
    memcpy(&head, input.data(), sizeof(head));
    input.remove_prefix(sizeof(head));
    const absl::string_view bytes = input.substr(0, std::min<size_t>(head.size, kMaxMessageBytes));
    const std::vector<int> fds(head.fds % (kMaxMessageFds + 1), nothing.get());
    if (!SendMessage(socket, std::as_bytes(std::span(bytes.data(), bytes.size())), fds).ok()) return;
    input.remove_prefix(bytes.size());
  }
}

// Returns a socket from which the input's messages can be read, followed by its end.
inline UniqueFd SocketWith(absl::string_view input) {
  auto [ours, theirs] = *SocketPair();
  SetNonBlocking(ours.get()).IgnoreError();
  SetNonBlocking(theirs.get()).IgnoreError();
  SendAll(theirs.get(), input);
  return std::move(ours);
}

}  // namespace berth::fuzz

#endif  // TESTS_FUZZ_MESSAGES_H_
