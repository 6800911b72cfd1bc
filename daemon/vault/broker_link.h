// BrokerLink: the vault's end of its socket to one broker (daemon/vault/custody_wire.h).

#ifndef DAEMON_VAULT_BROKER_LINK_H_
#define DAEMON_VAULT_BROKER_LINK_H_

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
#include "common/unique_fd.h"
#include "daemon/vault/custody_wire.h"

namespace berth {

// What the vault holds.
using HeldFds = std::map<custody::Key, UniqueFd>;

// What a broker asks.
struct PutRequest {
  custody::Key key;
  UniqueFd fd;
};
struct DropRequest {
  custody::Key key;
};
struct ReadySignal {};
struct ResetSignal {};
struct BoundRequest {
  uint64_t bytes = 0;
};
struct OrderRequest {
  uint32_t device = 0;
  Lane lane = Lane::kMain;
  custody::OrderKind order = custody::OrderKind::kKill;
  std::string why;
};
using BrokerRequest =
    std::variant<PutRequest, DropRequest, ReadySignal, ResetSignal, BoundRequest, OrderRequest>;

// BrokerLink never blocks: messages wait in its outbox until the broker reads. Thread-compatible.
class BrokerLink {
 public:
  // Messages that may wait: with as many, the vault reads no more from the broker until it has read some.
  static constexpr size_t kOutboxMax = size_t{1} << 16;

  explicit BrokerLink(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  bool wants_write() const { return !outbox_.empty(); }
  bool wants_read() const { return outbox_.size() < kOutboxMax; }
  // Whether there will be nothing more to read: the broker hung up, or broke the protocol.
  bool ended() const { return ended_; }

  // Queues a message.
  template <typename T>
  void Queue(const T& message) {
    outbox_.push_back(std::string(reinterpret_cast<const char*>(&message), sizeof(message)));
  }
  // Queues a Give of what `key` holds when it is sent; one that is no longer held then is left out.
  void QueueGive(custody::Key key) { outbox_.push_back(std::vector{key}); }
  // The same of all that is held, in few messages.
  void QueueGiveAll(const HeldFds& held);

  // Sends what the socket takes. A broker that is gone is noticed by its pidfd, not here.
  void Flush(const HeldFds& held);

  // Errors: IsWouldBlock(); IsEndOfStream() once a dead broker's last message has been read; kInternal for a
  // message that breaks the protocol; kDataLoss if an fd found no room here.
  absl::StatusOr<BrokerRequest> Read();

 private:
  // A message, or whose fds go with one.
  using Outgoing = std::variant<std::string, std::vector<custody::Key>>;

  absl::Status Give(const std::vector<custody::Key>& keys, const HeldFds& held);
  absl::StatusOr<BrokerRequest> ReadOne();

  UniqueFd socket_;
  std::deque<Outgoing> outbox_;
  bool ended_ = false;
};

}  // namespace berth

#endif  // DAEMON_VAULT_BROKER_LINK_H_
