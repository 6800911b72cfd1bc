// WorkerChannel: the broker's end of a worker's socket. The channel only sends and receives; the broker decides what to
// request and interprets the answers.
//
// SendCreate() requests a block; a CreatedBlock answers it. The last close of a block's fd is a driver call and has to
// happen in the worker. A block is therefore freed in this order: SendHold() with the fd; the broker closes its own fd
// and makes the supervisor drop its own; SendRelease(); ReleasedBlock.

#ifndef DAEMON_DEVICE_WORKER_WORKER_CHANNEL_H_
#define DAEMON_DEVICE_WORKER_WORKER_CHANNEL_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "common/wire/ipc_handle.h"
#include "daemon/device/worker/worker_wire.h"

namespace berth {

// Answers SendCreate().
// Errors: OUT_OF_MEMORY, DRIVER, INVALID_FIELD, as the backend reports.
struct CreatedBlock {
  BlockId block;
  // Empty if the block is exported by `handle`.
  absl::StatusOr<UniqueFd> fd;
  std::optional<IpcHandle> handle;
};
// Answers SendRelease(), and SendBegin() for each fd that an earlier broker made the worker hold. The worker has closed
// the block's fd, or still has it because the driver failed to close it, with the reason in `status`.
struct ReleasedBlock {
  BlockId block;
  absl::Status status = absl::OkStatus();
};
// Answers SendBegin() for each block that an earlier broker requested and that is exported by a handle: the block still
// exists.
struct RetainedBlock {
  BlockId block;
};
// Last answer to SendBegin(): every earlier request is answered.
struct BegunWorker {
  // Epoch of the SendBegin(), which may have been an earlier broker's.
  uint64_t epoch = 0;
  // Device memory that a context worker's context takes.
  Bytes context;
};
using WorkerReply = std::variant<CreatedBlock, ReleasedBlock, RetainedBlock, BegunWorker>;

// WorkerChannel is thread-safe; Read() has one caller at a time. No method blocks: messages that find no space in the
// socket wait in an outbox until Flush(). The outbox has no limit of its own: the core bounds the creates
// (Limits::creates_per_worker) and the blocks.
class WorkerChannel {
 public:
  // Takes over `socket`, which came with WorkerUp or a given kWorker key.
  explicit WorkerChannel(UniqueFd socket);
  WorkerChannel(const WorkerChannel&) = delete;
  WorkerChannel& operator=(const WorkerChannel&) = delete;

  // Errors of the four Send methods: kUnavailable if the worker has ended; kResourceExhausted if no fd is left for a
  // duplicate (SendHold), or if the kernel takes no message with an fd (SendHold) or no new request (SendCreate) for
  // now. Retry a SendHold later.

  // Makes the worker close the fds that an earlier broker left with it, and report when it has answered all earlier
  // requests. Must be sent before any other message, with an epoch that no other broker uses with this worker.
  absl::Status SendBegin(uint64_t epoch) ABSL_LOCKS_EXCLUDED(mu_);
  // Requests a block of `bytes`, a multiple of the device's granularity.
  absl::Status SendCreate(BlockId block, Bytes bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Gives the worker a duplicate of `fd`, which stays the caller's.
  absl::Status SendHold(BlockId block, int fd) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the worker close its fd of `block`, or free the block.
  absl::Status SendRelease(BlockId block) ABSL_LOCKS_EXCLUDED(mu_);

  // Poll for reading, and for writing while wants_write().
  int fd() const { return socket_.get(); }
  bool wants_write() const ABSL_LOCKS_EXCLUDED(mu_);

  // Sends from the outbox as much as the socket takes.
  // Errors: kUnavailable if the worker has ended.
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(mu_);

  // Reads one answer. Errors: IsWouldBlock() without an answer; IsEndOfStream() if the worker has ended; kInternal if
  // it breaks the protocol.
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

#endif  // DAEMON_DEVICE_WORKER_WORKER_CHANNEL_H_
