// BrokerLink: the supervisor's end of its socket to one broker (daemon/supervisor/fd_store/fd_store_wire.h).

#ifndef DAEMON_SUPERVISOR_BROKER_LINK_H_
#define DAEMON_SUPERVISOR_BROKER_LINK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"

namespace berth {

// The fds that the supervisor holds.
using HeldFds = std::map<fd_store::Key, UniqueFd>;

// Requests that a broker sends.
struct PutRequest {
  fd_store::Key key;
  UniqueFd fd;
};
struct DropRequest {
  fd_store::Key key;
};
struct ReadySignal {};
struct ResetSignal {};
struct BoundRequest {
  uint64_t bytes = 0;
};
struct CommandRequest {
  uint32_t device = 0;
  WorkerKind worker_kind = WorkerKind::kMain;
  WorkerCommand command = WorkerCommand::kKill;
  std::string why;
};
using BrokerRequest =
    std::variant<PutRequest, DropRequest, ReadySignal, ResetSignal, BoundRequest, CommandRequest>;

// BrokerLink never blocks: messages wait in an outbox until the broker reads. Thread-compatible.
class BrokerLink {
 public:
  // Limit of queued messages. With so many queued, the supervisor stops reading from the broker until the broker has
  // read some.
  static constexpr size_t kOutboxMax = size_t{1} << 16;

  explicit BrokerLink(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  bool wants_write() const { return !outbox_.empty(); }
  bool wants_read() const { return outbox_.size() < kOutboxMax; }
  // Whether no further message can be read: the broker hung up or broke the protocol.
  bool ended() const { return ended_; }

  // Queues a message.
  template <typename T>
  void Queue(const T& message) {
    outbox_.push_back(std::string(reinterpret_cast<const char*>(&message), sizeof(message)));
  }
  // Queues a message that takes `fd` along.
  template <typename T>
  void Queue(const T& message, UniqueFd fd) {
    outbox_.push_back(WithFd{std::string(reinterpret_cast<const char*>(&message), sizeof(message)), std::move(fd)});
  }
  // Queues a Give of the fd that `key` names at the time of sending. The Give is skipped if that fd is no longer held
  // then.
  void QueueGive(fd_store::Key key) { outbox_.push_back(std::vector{key}); }
  // Queues Gives of all held fds, in few messages.
  void QueueGiveAll(const HeldFds& held);

  // Sends as many messages as the socket takes. Does not detect a dead broker: its pidfd does.
  void Flush(const HeldFds& held);

  // Errors: IsWouldBlock(); IsEndOfStream() after the last message of a dead broker; kInternal for a message that
  // breaks the protocol; kDataLoss if this process had no free number for a received fd.
  absl::StatusOr<BrokerRequest> Read();

 private:
  struct WithFd {
    std::string bytes;
    UniqueFd fd;
  };
  // A message without or with an fd, or the keys of the fds that one Give carries.
  using Outgoing = std::variant<std::string, WithFd, std::vector<fd_store::Key>>;

  absl::Status Send(const Outgoing& message, const HeldFds& held);
  absl::Status Give(const std::vector<fd_store::Key>& keys, const HeldFds& held);
  absl::StatusOr<BrokerRequest> ReadOne();

  UniqueFd socket_;
  std::deque<Outgoing> outbox_;
  bool ended_ = false;
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_BROKER_LINK_H_
