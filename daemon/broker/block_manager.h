// BlockManager: manages block memory for the broker. The manager makes workers create blocks and holds the blocks' fds
// beside the supervisor. The manager releases blocks in the one order in which the last close, a driver call, happens
// in a worker:
//
//   made:  worker creates, exports, closes its own fd → the supervisor has the fd → the core is notified
//   freed: fd to the worker, the supervisor's copy closed, our copy closed, the worker closes, the core is notified
//
// A worker that dies meanwhile takes only its own copy along. As long as the supervisor may still have a copy, so does
// the manager, and the next worker gets it.
//
// Blocks of a context worker have no fd here: they belong to that worker and end with it.
//
// A worker that earlier brokers left at work must first answer their requests (daemon/device/worker/worker_wire.h). The
// manager retains a created block if the core has a record of it. The core then repeats each request for a missing
// block; a block that exists by then is the answer. Hence no block is requested while an answer for it may be on its
// way, and each block is made once. The manager ends a worker that answers a request that no broker made.

#ifndef DAEMON_BROKER_BLOCK_MANAGER_H_
#define DAEMON_BROKER_BLOCK_MANAGER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "daemon/base/worker_kind.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/device/worker/worker_channel.h"
#include "daemon/supervisor/fd_store/supervisor_fd_store.h"

namespace berth {

// Thread-safe: effects arrive on any thread, messages of workers and supervisor on the event loop's.
class BlockManager {
 public:
  // `loop`, `broker` and `fd_store` must outlive the manager. `epoch` is the broker's; no other broker of its workers
  // has the same. Ends the broker where no fd is left for its timer.
  BlockManager(EventLoop* loop, Broker* broker, SupervisorFdStore* fd_store, uint64_t epoch);
  BlockManager(const BlockManager&) = delete;
  BlockManager& operator=(const BlockManager&) = delete;
  ~BlockManager();

  // Executes the effect. Ends in Core::BlockCreated(), or in Core::WorkerDown() if the worker dies first.
  void Create(const core::CreateBlock& effect) ABSL_LOCKS_EXCLUDED(mu_);
  // Executes the effect. Ends in Core::BlockReleased(), possibly by a later worker of the device. For a context
  // worker's block, ends in Core::WorkerDown() if that worker dies first.
  void Release(const core::ReleaseBlock& effect) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the fd of a block that is neither being created nor released; the fd stays the manager's. Errors:
  // kNotFound.
  absl::StatusOr<int> Find(BlockId block) const ABSL_LOCKS_EXCLUDED(mu_);

  // Adds a worker that serves `device` on `socket` and has received no request yet. With `at_work` it still works for
  // earlier brokers, and serves once it has answered them.
  void WorkerIsUp(uint32_t device, WorkerKind worker_kind, UniqueFd socket, bool at_work = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Applies the supervisor's news of the device's worker. Blocks that only an ended worker still held are released with
  // it.
  void OnWorkerNews(const WorkerNews& news) ABSL_LOCKS_EXCLUDED(mu_);
  // Records that the supervisor has closed its copy of a block's fd.
  void SupervisorDropped(BlockId block) ABSL_LOCKS_EXCLUDED(mu_);
  // Adopt() continues with a block of the core's whose fd an earlier broker had put into the supervisor's fd store.
  // Expect() does so for a block without an fd there: it is being created, or its context worker holds it. Requires for
  // both: that worker is not up yet.
  void Adopt(BlockId block, uint32_t device, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);
  void Expect(BlockId block) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes a worker close the fd of a block that the core has no record of.
  void ReleaseOrphan(BlockId block, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Location of a block's fd, beside the manager itself.
  enum class Stage {
    kHeld,       // with the supervisor
    kReleasing,  // with the supervisor, the worker, or both
    kClosing,    // with the worker alone, and no longer here
    kRefused,    // as kClosing, after the driver failed to release it
  };
  struct Held {
    uint32_t device = 0;
    Stage stage = Stage::kHeld;
    UniqueFd fd;
    // While kReleasing: the current worker has the fd; the supervisor was requested to close its copy; it has closed
    // it.
    bool with_worker = false;
    bool drop_asked = false;
    bool supervisor_dropped = false;
  };
  struct Worker {
    std::unique_ptr<WorkerChannel> channel;
    EventLoop::WatchId watch = 0;
    // Blocks requested and not answered, or answered and not held yet.
    absl::flat_hash_set<BlockId> creating;
    // The worker still answers requests of earlier brokers; `retained` lists the blocks that it reported as held in its
    // latest answers.
    bool at_work = false;
    std::vector<BlockId> retained;
  };

  using Key = std::pair<uint32_t, WorkerKind>;

  // Sends a create request to a worker. Returns whether there is nothing to wait for; `*outcome` is then the answer.
  bool StartCreate(const core::CreateBlock& effect, absl::Status* outcome) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether there is a block to release.
  bool StartRelease(const core::ReleaseBlock& effect) ABSL_LOCKS_EXCLUDED(mu_);
  Worker* FindWorkerLocked(Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseOrphanLocked(BlockId block, uint32_t device, UniqueFd fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Advances a block's release as far as possible now. If the worker cannot get the fd for now, the timer repeats it.
  void AdvanceLocked(BlockId block, Held* held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Advances the releases whose fd the device's worker has not got.
  void AdvanceAllLocked(uint32_t device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnRetryTimer() ABSL_LOCKS_EXCLUDED(mu_);
  // Repeats the release request for a block that the driver failed to release.
  void ReleaseAgainLocked(BlockId block, Held* held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WatchForCapacityLocked(Worker* worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends a worker that broke the protocol or has died. The supervisor reports its end, and the next worker gets its
  // open requests.
  void EndWorkerLocked(Worker* worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // As EndWorkerLocked(), for a worker that made a block without a pending request.
  void EndUnaskedLocked(Key key, BlockId block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the worker. Returns the blocks that only an ended worker held; they ended with it.
  std::vector<BlockId> ForgetWorker(Key key, bool abandoned) ABSL_LOCKS_EXCLUDED(mu_);
  void OnWorkerEvent(Key key, uint32_t events) ABSL_LOCKS_EXCLUDED(mu_);
  // Handles one answer of the worker. Returns whether there may be more.
  bool TakeReply(Key key) ABSL_LOCKS_EXCLUDED(mu_);
  void OnReply(Key key, WorkerReply reply) ABSL_LOCKS_EXCLUDED(mu_);
  // As OnReply(), for a worker that is at work for earlier brokers.
  void OnEarlierReply(Key key, WorkerReply reply) ABSL_LOCKS_EXCLUDED(mu_);
  void OnCreatedEarlier(uint32_t device, CreatedBlock created) ABSL_LOCKS_EXCLUDED(mu_);
  void OnReleasedEarlier(uint32_t device, const ReleasedBlock& released) ABSL_LOCKS_EXCLUDED(mu_);
  // Handles the answer to a Begin. Returns whether it answers this broker's Begin, so that all earlier requests are
  // answered.
  bool OnBegun(Key key, const BegunWorker& begun) ABSL_LOCKS_EXCLUDED(mu_);
  // Puts a block's fd into the supervisor's fd store; the block counts as being created until then. Errors: those of
  // SupervisorFdStore::Put(); the fd is then being released.
  absl::Status HoldBlock(BlockId block, uint32_t device, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);
  void OnCreated(uint32_t device, CreatedBlock created) ABSL_LOCKS_EXCLUDED(mu_);
  void OnCreatedByHandle(Key key, const CreatedBlock& created) ABSL_LOCKS_EXCLUDED(mu_);
  void OnReleased(BlockId block, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  EventLoop& loop_;
  Broker& broker_;
  SupervisorFdStore& fd_store_;
  const uint64_t epoch_;
  const UniqueFd retry_timer_;
  EventLoop::WatchId retry_watch_ = 0;

  mutable Mutex mu_;
  std::map<Key, Worker> workers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<BlockId, Held> blocks_ ABSL_GUARDED_BY(mu_);
  // Blocks passed to Expect() that have not arrived.
  absl::flat_hash_set<BlockId> expected_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_BROKER_BLOCK_MANAGER_H_
