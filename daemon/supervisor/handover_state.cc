#include "daemon/supervisor/handover_state.h"

#include <errno.h>
#include <poll.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/fd_passing.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "daemon/base/struct_message.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {
namespace {

using fd_store::Key;
using fd_store::KeyMessage;
using fd_store::KeyOf;
using fd_store::Kind;
using fd_store::MessageKind;

absl::StatusOr<Message> ReceiveBefore(int socket, MonotonicTime deadline) {
  while (true) {
    absl::StatusOr<Message> message = ReceiveMessage(socket);
    if (message.ok()) return message;
    if (IsEndOfStream(message.status())) return absl::UnavailableError("the broker ended during the handover");
    if (!IsWouldBlock(message.status())) return message.status();
    if (Now() >= deadline) return absl::DeadlineExceededError("the broker did not complete the handover in time");
    pollfd entry = {.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, PollTimeout(deadline)) < 0 && errno != EINTR) return OsError("poll(broker)", errno);
  }
}

absl::Status CheckWhole(const HandoverState& handover_state) {
  for (const Key& key : {KeyOf(Kind::kFolderLock), KeyOf(Kind::kStatePage), KeyOf(Kind::kDeviceTable),
                         KeyOf(fd_store::Listener::kBerthd), KeyOf(fd_store::Listener::kAdmin),
                         KeyOf(fd_store::Listener::kAttach)}) {
    if (!handover_state.held.contains(key)) {
      return absl::InternalError(
          absl::StrCat("the broker handed over no fd of kind ", static_cast<uint32_t>(key.kind)));
    }
  }
  return handover_state.broker ? absl::OkStatus() : absl::InternalError("the broker did not identify itself");
}

}  // namespace

absl::StatusOr<HandoverState> ReceiveHandoverState(int socket, MonotonicTime deadline) {
  HandoverState handover_state;
  bool begun = false;
  while (true) {
    BERTH_ASSIGN_OR_RETURN(Message message, ReceiveBefore(socket, deadline));
    if (const auto facts = AsStruct<fd_store::Facts>(message, MessageKind::kFacts, 0); facts.has_value()) {
      handover_state.facts = *facts;
      begun = true;
      continue;
    }
    // A message to an earlier supervisor. The broker gives again what it had put then, and repeats its requests.
    if (!begun) continue;
    if (AsStruct<fd_store::Signal>(message, MessageKind::kGiveEnd, 0).has_value()) break;
    if (const auto status = AsStruct<fd_store::WorkerStatus>(message, MessageKind::kWorkerStatus, 0)) {
      handover_state.statuses.push_back(*status);
      continue;
    }
    if (const auto given = fd_store::AsGive(message); given.has_value()) {
      for (size_t i = 0; i < message.fds.size(); ++i) handover_state.held[given->keys[i]] = std::move(message.fds[i]);
      continue;
    }
    // Puts of other broker threads arrive in between.
    const auto put = AsStruct<KeyMessage>(message, MessageKind::kPut, 1);
    if (!put.has_value()) return absl::InternalError("the broker sent a message that breaks the protocol");
    handover_state.held[put->key] = std::move(message.fds[0]);
  }
  if (auto broker = handover_state.held.extract(KeyOf(Kind::kBroker)))
    handover_state.broker = std::move(broker.mapped());
  BERTH_RETURN_IF_ERROR(CheckWhole(handover_state));
  return handover_state;
}

}  // namespace berth
