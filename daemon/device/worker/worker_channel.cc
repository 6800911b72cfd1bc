#include "daemon/device/worker/worker_channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include <span>
#include <utility>

#include "common/os/fd_passing.h"
#include "common/status_macros.h"
#include "daemon/device/worker/worker_wire.h"

namespace berth {
namespace {

template <typename T>
std::string BytesOf(const T& message) {
  return std::string(reinterpret_cast<const char*>(&message), sizeof(message));
}

absl::Status SendBytes(int socket, const std::string& bytes, int fd) {
  return SendMessage(socket, std::as_bytes(std::span(bytes)),
                     fd < 0 ? std::span<const int>() : std::span<const int>(&fd, 1));
}

// Returns whether a send that would block can never succeed.
bool IsHungUp(int socket) {
  pollfd entry = {.fd = socket, .events = 0, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

absl::Status WorkerIsGone() { return absl::UnavailableError("the device's worker is gone"); }

}  // namespace

WorkerChannel::WorkerChannel(UniqueFd socket) : socket_(std::move(socket)) {}

absl::Status WorkerChannel::SendBegin(uint64_t epoch) {
  return SendOrQueue(BytesOf(worker::Begin{.epoch = epoch}), -1);
}

absl::Status WorkerChannel::SendCreate(BlockId block, Bytes bytes) {
  return SendOrQueue(BytesOf(worker::Create{.block = block.value(), .bytes = bytes.count()}), -1);
}

absl::Status WorkerChannel::SendHold(BlockId block, int fd) {
  return SendOrQueue(BytesOf(worker::BlockMessage{.kind = worker::Kind::kHold, .block = block.value()}), fd);
}

absl::Status WorkerChannel::SendRelease(BlockId block) {
  return SendOrQueue(BytesOf(worker::BlockMessage{.kind = worker::Kind::kRelease, .block = block.value()}),
                     -1);
}

bool WorkerChannel::wants_write() const {
  MutexLock lock(&mu_);
  return !outbox_.empty();
}

absl::Status WorkerChannel::Flush() {
  MutexLock lock(&mu_);
  return FlushLocked();
}

absl::Status WorkerChannel::FlushLocked() {
  while (!outbox_.empty()) {
    const absl::Status sent = SendBytes(socket_.get(), outbox_.front().bytes, outbox_.front().fd.get());
    if (IsWouldBlock(sent)) return IsHungUp(socket_.get()) ? WorkerIsGone() : absl::OkStatus();
    // The kernel takes no message for now; the next Flush() repeats it.
    if (absl::IsResourceExhausted(sent)) return absl::OkStatus();
    BERTH_RETURN_IF_ERROR(sent);
    outbox_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status WorkerChannel::SendOrQueue(std::string bytes, int fd) {
  MutexLock lock(&mu_);
  // Only creates are rejected, and holds where an fd is missing: a Release must reach the worker that closes the block.
  const bool is_create = bytes.size() == sizeof(worker::Create);
  BERTH_RETURN_IF_ERROR(FlushLocked());
  if (outbox_.empty()) {
    const absl::Status sent = SendBytes(socket_.get(), bytes, fd);
    const bool waits = IsWouldBlock(sent) || (absl::IsResourceExhausted(sent) && fd < 0 && !is_create);
    if (!waits) return sent;
    if (IsHungUp(socket_.get())) return WorkerIsGone();
  }
  UniqueFd copy;
  if (fd >= 0) {
    BERTH_ASSIGN_OR_RETURN(copy, DuplicateFd(fd));
  }
  outbox_.push_back({std::move(bytes), std::move(copy)});
  return absl::OkStatus();
}

absl::StatusOr<WorkerReply> WorkerChannel::Read() {
  BERTH_ASSIGN_OR_RETURN(Message message, ReceiveMessage(socket_.get()));
  if (message.bytes.size() == sizeof(worker::Created)) {
    worker::Created created;
    memcpy(&created, message.bytes.data(), sizeof(created));
    const absl::Status status = worker::GetStatus(created.outcome);
    const bool by_handle = created.by_handle == 1;
    const size_t fds = status.ok() && !by_handle ? 1 : 0;
    if (created.kind == worker::Kind::kCreated && message.fds.size() == fds) {
      const BlockId block(created.block);
      if (!status.ok()) return CreatedBlock{block, status, std::nullopt};
      if (by_handle) return CreatedBlock{block, UniqueFd(), created.handle};
      return CreatedBlock{block, std::move(message.fds[0]), std::nullopt};
    }
  } else if (message.bytes.size() == sizeof(worker::Released) && message.fds.empty()) {
    worker::Released released;
    memcpy(&released, message.bytes.data(), sizeof(released));
    if (released.kind == worker::Kind::kReleased) {
      return ReleasedBlock{BlockId(released.block), worker::GetStatus(released.outcome)};
    }
  } else if (message.bytes.size() == sizeof(worker::BlockMessage) && message.fds.empty()) {
    worker::BlockMessage retained;
    memcpy(&retained, message.bytes.data(), sizeof(retained));
    if (retained.kind == worker::Kind::kRetained) return RetainedBlock{BlockId(retained.block)};
  } else if (message.bytes.size() == sizeof(worker::Begun) && message.fds.empty()) {
    worker::Begun begun;
    memcpy(&begun, message.bytes.data(), sizeof(begun));
    if (begun.kind == worker::Kind::kBegun) return BegunWorker{begun.epoch, Bytes(begun.context_bytes)};
  }
  return absl::InternalError("the worker sent an unknown message");
}

}  // namespace berth
