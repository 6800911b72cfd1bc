#include "daemon/supervisor/broker_link.h"

#include <string.h>

#include <span>

#include "common/os/fd_passing.h"
#include "common/status_macros.h"
#include "daemon/base/struct_message.h"

namespace berth {

using fd_store::KeyMessage;
using fd_store::MessageKind;

void BrokerLink::QueueGiveAll(const HeldFds& held) {
  std::vector<fd_store::Key> keys;
  // The broker reads its ledger while the other fds are on their way.
  for (const bool ledger : {true, false}) {
    for (const auto& [key, fd] : held) {
      if ((key.kind == fd_store::Kind::kLedger) != ledger) continue;
      keys.push_back(key);
      if (keys.size() == kMaxMessageFds) outbox_.push_back(std::exchange(keys, {}));
    }
  }
  if (!keys.empty()) outbox_.push_back(std::move(keys));
}

absl::Status BrokerLink::Give(const std::vector<fd_store::Key>& keys, const HeldFds& held) {
  fd_store::GiveMessage give;
  std::vector<int> fds;
  for (const fd_store::Key& key : keys) {
    const auto at = held.find(key);
    if (at == held.end()) continue;
    give.keys[fds.size()] = key;
    fds.push_back(at->second.get());
  }
  return fds.empty() ? absl::OkStatus() : SendStruct(socket_.get(), give, fds);
}

absl::Status BrokerLink::Send(const Outgoing& message, const HeldFds& held) {
  if (const auto* const bytes = std::get_if<std::string>(&message)) {
    return SendMessage(socket_.get(), std::as_bytes(std::span(*bytes)));
  }
  if (const auto* const with_fd = std::get_if<WithFd>(&message)) {
    const int fd = with_fd->fd.get();
    return SendMessage(socket_.get(), std::as_bytes(std::span(with_fd->bytes)), std::span(&fd, 1));
  }
  return Give(std::get<std::vector<fd_store::Key>>(message), held);
}

void BrokerLink::Flush(const HeldFds& held) {
  while (!outbox_.empty()) {
    if (!Send(outbox_.front(), held).ok()) return;
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
  if (message.bytes.size() == sizeof(fd_store::Signal) && message.fds.empty()) {
    fd_store::Signal signal;
    memcpy(&signal, message.bytes.data(), sizeof(signal));
    if (signal.kind == MessageKind::kReady) return ReadySignal{};
    if (signal.kind == MessageKind::kReset) return ResetSignal{};
  } else if (const auto bound = AsStruct<fd_store::BoundMessage>(message, MessageKind::kBound, 0)) {
    return BoundRequest{bound->bytes};
  } else if (message.bytes.size() == sizeof(fd_store::CommandMessage) && message.fds.empty()) {
    fd_store::CommandMessage command;
    memcpy(&command, message.bytes.data(), sizeof(command));
    const bool known = command.command >= WorkerCommand::kKill && command.command <= WorkerCommand::kStop;
    if (command.kind == MessageKind::kCommand && known) {
      return CommandRequest{.device = command.device,
                            .worker_kind = command.worker_kind,
                            .command = command.command,
                            .why = fd_store::ReasonOf(command.why)};
    }
  } else if (message.bytes.size() == sizeof(KeyMessage)) {
    KeyMessage request;
    memcpy(&request, message.bytes.data(), sizeof(request));
    // The broker may not change fds that the supervisor put there itself.
    const bool own =
        (request.key.kind >= fd_store::Kind::kLifeline && request.key.kind <= fd_store::Kind::kBlock) ||
        request.key.kind == fd_store::Kind::kFencePage || request.key.kind == fd_store::Kind::kConfiguration ||
        request.key.kind == fd_store::Kind::kLedger;
    if (own && request.kind == MessageKind::kPut && message.fds.size() == 1) {
      return PutRequest{request.key, std::move(message.fds[0])};
    }
    const bool may_drop = own || request.key.kind == fd_store::Kind::kInheritedOutput;
    if (may_drop && request.kind == MessageKind::kDrop && message.fds.empty()) return DropRequest{request.key};
  }
  return absl::InternalError("the broker sent a message that breaks the protocol");
}

}  // namespace berth
