// WorkerChannel: the broker's end of a worker's socket. It only sends and receives; what is asked of whom,
// and what an answer means, is the broker's.
//
// A block is made by SendCreate(), answered by a CreatedBlock. It is freed in this order, so that the last
// close, which is a driver call, happens in the worker: SendHold() with the fd; the broker closes its own and
// has the vault drop its own; SendRelease(); ReleasedBlock.

#ifndef DAEMON_DEVICE_WORKER_CHANNEL_H_
#define DAEMON_DEVICE_WORKER_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "common/ipc_handle.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "daemon/device/worker_wire.h"

namespace berth {

// Answers SendCreate().
// Errors: OUT_OF_MEMORY, DRIVER, INVALID_FIELD, as the backend refused.
struct CreatedBlock {
  BlockId block;
  // Empty where the block is exported by `handle`.
  absl::StatusOr<UniqueFd> fd;
  std::optional<IpcHandle> handle;
};
// Answers SendRelease(), and SendBegin() for each fd that an earlier broker had it hold: the worker has closed the
// block's fd, or has it still because the driver did not take it, and why.
struct ReleasedBlock {
  BlockId block;
  absl::Status status = absl::OkStatus();
};
// Answers SendBegin() for each block that an earlier broker had it make and that is exported by a handle: it is there.
struct KeptBlock {
  BlockId block;
};
// Answers SendBegin() at last: whatever was asked before it is answered.
struct BegunWorker {
  // That of the SendBegin(), which may have been an earlier broker's.
  uint64_t epoch = 0;
  // What a context worker's context takes of the device.
  Bytes context;
};
using WorkerReply = std::variant<CreatedBlock, ReleasedBlock, KeptBlock, BegunWorker>;

// WorkerChannel is thread-safe; Read() has one caller at a time. No method blocks: what the socket has no
// room for waits in an outbox until Flush().
class WorkerChannel {
 public:
  // Creates that may wait in the outbox: a worker that is this far behind is stuck in its driver.
  static constexpr size_t kMaxWaitingCreates = 1024;

  // Takes over `socket`, which WorkerUp or a given kWorker key brought.
  explicit WorkerChannel(UniqueFd socket);
  WorkerChannel(const WorkerChannel&) = delete;
  WorkerChannel& operator=(const WorkerChannel&) = delete;

  // Errors of the four: kUnavailable if the worker is gone; LIMIT when the outbox is full (SendCreate) or no
  // fd is left for a duplicate (SendHold).

  // Has the worker close the fds that a broker before this one left with it, and say when it has answered all that was
  // asked before. To be sent before anything else, with a number that no other broker gives this worker.
  absl::Status SendBegin(uint64_t epoch) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks for a block of `bytes`, a multiple of the device's granularity.
  absl::Status SendCreate(BlockId block, Bytes bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Gives the worker a duplicate of `fd`, which stays the caller's.
  absl::Status SendHold(BlockId block, int fd) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks the worker to close what it holds of `block`, or to free it.
  absl::Status SendRelease(BlockId block) ABSL_LOCKS_EXCLUDED(mu_);

  // To be polled for reading, and for writing while wants_write().
  int fd() const { return socket_.get(); }
  bool wants_write() const ABSL_LOCKS_EXCLUDED(mu_);

  // Sends of the outbox what the socket takes.
  // Errors: kUnavailable if the worker is gone.
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(mu_);

  // Errors: IsWouldBlock() when there is nothing; IsEndOfStream() when the worker is gone; kInternal if it
  // breaks the protocol.
  absl::StatusOr<WorkerReply> Read();

 private:
  struct Waiting {
    std::string bytes;
    UniqueFd fd;
  };

  absl::Status SendOrQueue(std::string bytes, int fd) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const UniqueFd socket_;

  mutable Mutex mu_;
  std::deque<Waiting> outbox_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_DEVICE_WORKER_CHANNEL_H_
