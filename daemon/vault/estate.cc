#include "daemon/vault/estate.h"

#include <errno.h>
#include <poll.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd_passing.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "common/struct_message.h"
#include "daemon/vault/vault_log.h"

namespace berth {
namespace {

using custody::Key;
using custody::KeyMessage;
using custody::KeyOf;
using custody::Kind;
using custody::MessageKind;

absl::StatusOr<Message> ReceiveBefore(int socket, MonotonicTime deadline) {
  while (true) {
    absl::StatusOr<Message> message = ReceiveMessage(socket);
    if (message.ok()) return message;
    if (IsEndOfStream(message.status())) return absl::UnavailableError("the broker ended while it handed over");
    if (!IsWouldBlock(message.status())) return message.status();
    if (Now() >= deadline) return absl::DeadlineExceededError("the broker handed nothing over in time");
    pollfd entry = {.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, PollTimeout(deadline)) < 0 && errno != EINTR) return OsError("poll(broker)", errno);
  }
}

absl::Status CheckWhole(const Estate& estate) {
  for (const Key& key : {KeyOf(Kind::kFolderLock), KeyOf(Kind::kStatePage), KeyOf(Kind::kDeviceTable),
                         KeyOf(custody::Listener::kBerthd), KeyOf(custody::Listener::kAdmin),
                         KeyOf(custody::Listener::kAttach)}) {
    if (!estate.held.contains(key)) {
      return absl::InternalError(
          absl::StrCat("the broker handed over nothing of kind ", static_cast<uint32_t>(key.kind)));
    }
  }
  return estate.broker ? absl::OkStatus() : absl::InternalError("the broker did not say who it is");
}

}  // namespace

absl::StatusOr<Estate> ReceiveEstate(int socket, MonotonicTime deadline) {
  Estate estate;
  bool begun = false;
  while (true) {
    BERTH_ASSIGN_OR_RETURN(Message message, ReceiveBefore(socket, deadline));
    if (const auto facts = AsStruct<custody::Facts>(message, MessageKind::kFacts, 0); facts.has_value()) {
      estate.facts = *facts;
      begun = true;
      continue;
    }
    // Said to who was here before. What was put then is given again, and what was asked is asked again.
    if (!begun) continue;
    if (AsStruct<custody::Signal>(message, MessageKind::kGiveEnd, 0).has_value()) break;
    if (const auto status = AsStruct<custody::WorkerStatus>(message, MessageKind::kWorkerStatus, 0)) {
      estate.statuses.push_back(*status);
      continue;
    }
    if (const auto given = custody::AsGive(message); given.has_value()) {
      for (size_t i = 0; i < message.fds.size(); ++i) estate.held[given->keys[i]] = std::move(message.fds[i]);
      continue;
    }
    // What another thread of the broker puts meanwhile comes in between.
    const auto put = AsStruct<KeyMessage>(message, MessageKind::kPut, 1);
    if (!put.has_value()) return absl::InternalError("the broker sent a message that breaks the protocol");
    estate.held[put->key] = std::move(message.fds[0]);
  }
  if (auto broker = estate.held.extract(KeyOf(Kind::kBroker))) estate.broker = std::move(broker.mapped());
  BERTH_RETURN_IF_ERROR(CheckWhole(estate));
  return estate;
}

}  // namespace berth
