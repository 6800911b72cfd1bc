#include "daemon/vault/broker_link.h"

#include <string.h>

#include <span>

#include "common/fd_passing.h"
#include "common/status_macros.h"
#include "common/struct_message.h"

namespace berth {

using custody::KeyMessage;
using custody::MessageKind;

void BrokerLink::QueueGiveAll(const HeldFds& held) {
  std::vector<custody::Key> keys;
  for (const auto& [key, fd] : held) {
    keys.push_back(key);
    if (keys.size() == kMaxMessageFds) outbox_.push_back(std::exchange(keys, {}));
  }
  if (!keys.empty()) outbox_.push_back(std::move(keys));
}

absl::Status BrokerLink::Give(const std::vector<custody::Key>& keys, const HeldFds& held) {
  custody::GiveMessage give;
  std::vector<int> fds;
  for (const custody::Key& key : keys) {
    const auto at = held.find(key);
    if (at == held.end()) continue;
    give.keys[fds.size()] = key;
    fds.push_back(at->second.get());
  }
  return fds.empty() ? absl::OkStatus() : SendStruct(socket_.get(), give, fds);
}

void BrokerLink::Flush(const HeldFds& held) {
  while (!outbox_.empty()) {
    const auto* const bytes = std::get_if<std::string>(&outbox_.front());
    const absl::Status sent = bytes != nullptr
                                  ? SendMessage(socket_.get(), std::as_bytes(std::span(*bytes)))
                                  : Give(std::get<std::vector<custody::Key>>(outbox_.front()), held);
    if (!sent.ok()) return;
    outbox_.pop_front();
  }
}

absl::StatusOr<BrokerRequest> BrokerLink::Read() {
  absl::StatusOr<BrokerRequest> request = ReadOne();
  if (!request.ok() && !IsWouldBlock(request.status())) ended_ = true;
  return request;
}

absl::StatusOr<BrokerRequest> BrokerLink::ReadOne() {
  BERTH_ASSIGN_OR_RETURN(Message message, ReceiveMessage(socket_.get()));
  if (message.bytes.size() == sizeof(custody::Signal) && message.fds.empty()) {
    custody::Signal signal;
    memcpy(&signal, message.bytes.data(), sizeof(signal));
    if (signal.kind == MessageKind::kReady) return ReadySignal{};
    if (signal.kind == MessageKind::kReset) return ResetSignal{};
  } else if (const auto bound = AsStruct<custody::BoundMessage>(message, MessageKind::kBound, 0)) {
    return BoundRequest{bound->bytes};
  } else if (message.bytes.size() == sizeof(custody::Order) && message.fds.empty()) {
    custody::Order order;
    memcpy(&order, message.bytes.data(), sizeof(order));
    const bool known =
        order.order >= custody::OrderKind::kKill && order.order <= custody::OrderKind::kUpgrade;
    if (order.kind == MessageKind::kOrder && known) {
      return OrderRequest{.device = order.device,
                          .lane = order.lane,
                          .order = order.order,
                          .why = custody::ReasonOf(order.why)};
    }
  } else if (message.bytes.size() == sizeof(KeyMessage)) {
    KeyMessage request;
    memcpy(&request, message.bytes.data(), sizeof(request));
    // What the vault put there itself is not the broker's to change.
    const bool own =
        (request.key.kind >= custody::Kind::kLifeline && request.key.kind <= custody::Kind::kBlock) ||
        request.key.kind == custody::Kind::kFencePage || request.key.kind == custody::Kind::kConfiguration;
    if (own && request.kind == MessageKind::kPut && message.fds.size() == 1) {
      return PutRequest{request.key, std::move(message.fds[0])};
    }
    if (own && request.kind == MessageKind::kDrop && message.fds.empty()) return DropRequest{request.key};
  }
  return absl::InternalError("the broker sent a message that breaks the protocol");
}

}  // namespace berth
