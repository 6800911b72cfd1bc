#include "daemon/device/worker.h"

#include <string.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "common/fd_passing.h"
#include "common/status_macros.h"
#include "daemon/device/fault.h"
#include "daemon/device/worker_wire.h"

namespace berth {
namespace {

template <typename T>
std::optional<T> As(const Message& message, worker::Kind kind, size_t fds) {
  T value;
  if (message.bytes.size() != sizeof(T) || message.fds.size() != fds) return std::nullopt;
  memcpy(&value, message.bytes.data(), sizeof(T));
  if (value.kind != kind) return std::nullopt;
  return value;
}

// Answers `create` with a block, or with why there is none, which is `*outcome` then.
absl::Status AnswerCreate(int socket, const worker::Create& create, MemoryBackend& backend,
                          absl::Status* outcome) {
  const absl::StatusOr<UniqueFd> fd = backend.Create(Bytes(create.bytes));
  worker::Created created = {.block = create.block};
  worker::SetStatus(fd.status(), &created);
  *outcome = fd.status();
  if (!fd.ok()) return SendStruct(socket, created);
  const int sent = fd->get();
  return SendStruct(socket, created, std::span(&sent, 1));
}

}  // namespace

absl::StatusOr<WorkerEnd> ServeWorker(int socket, MemoryBackend& backend) {
  // Fds of blocks that the broker frees, until it says that everybody else has closed theirs.
  std::map<uint64_t, UniqueFd> held;
  while (true) {
    absl::StatusOr<Message> message = ReceiveMessage(socket);
    if (!message.ok()) {
      if (IsEndOfStream(message.status())) return WorkerEnd{};
      return message.status();
    }
    if (const auto create = As<worker::Create>(*message, worker::Kind::kCreate, 0); create.has_value()) {
      absl::Status outcome;
      BERTH_RETURN_IF_ERROR(AnswerCreate(socket, *create, backend, &outcome));
      if (const FaultDirective directive = DirectiveOf(outcome); directive != FaultDirective::kGoOn) {
        return WorkerEnd{.exit = ExitFor(directive), .fault = outcome};
      }
    } else if (const auto hold = As<worker::BlockMessage>(*message, worker::Kind::kHold, 1);
               hold.has_value()) {
      // A broker that died after its Hold is followed by one that holds the same block again.
      held.insert_or_assign(hold->block, std::move(message->fds[0]));
    } else if (const auto release = As<worker::BlockMessage>(*message, worker::Kind::kRelease, 0);
               release.has_value()) {
      held.erase(release->block);
      BERTH_RETURN_IF_ERROR(
          SendStruct(socket, worker::BlockMessage{.kind = worker::Kind::kReleased, .block = release->block}));
    } else if (As<worker::BlockMessage>(*message, worker::Kind::kBegin, 0).has_value()) {
      held.clear();
    } else {
      return absl::InternalError("the broker sent a message that breaks the worker's protocol");
    }
  }
}

}  // namespace berth
