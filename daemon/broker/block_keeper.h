// BlockKeeper: the broker's hands on block memory. It asks workers for blocks, holds their fds beside the vault, and
// gives them back in the one order in which the last close, a driver call, happens in a worker:
//
//   made:  worker creates, exports, lets go of its own → vault has the fd → the core is told
//   freed: fd to the worker → the vault's copy closed → our copy closed → the worker closes → the core is told
//
// A worker that dies on the way takes only its own copy along: as long as the vault may still have one, so have we, and
// the next worker gets it.
//
// Of blocks that a context worker makes there is nothing to hold here: they are its own, and gone with it.
//
// A worker that earlier brokers left at work is first waited for (daemon/device/worker_wire.h): what it answers is of
// their asking. What was made is kept where the core has a row of it; the core asks again for everything that it lacks,
// and what is there by then is the answer. So no block is asked for while an answer for it may be on its way, and each
// is made once; a worker that answers what nobody asked is ended.

#ifndef DAEMON_BROKER_BLOCK_KEEPER_H_
#define DAEMON_BROKER_BLOCK_KEEPER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "common/lane.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/device/worker_channel.h"
#include "daemon/vault/custody.h"

namespace berth {

// Thread-safe: effects come on any thread, workers and the vault speak on the event loop's.
class BlockKeeper {
 public:
  // The three must outlive the keeper. `epoch` is the broker's, which no other one has that its workers hear.
  BlockKeeper(EventLoop* loop, Broker* broker, Custody* custody, uint64_t epoch)
      : loop_(*loop), broker_(*broker), custody_(*custody), epoch_(epoch) {}

  // Carries the effect out; ends in Core::BlockCreated(), or in Core::WorkerDown() if the worker dies first.
  void Create(const core::CreateBlock& effect) ABSL_LOCKS_EXCLUDED(mu_);
  // Carries the effect out; ends in Core::BlockReleased(), if need be by a later worker of the device; for a block of a
  // context worker's in Core::WorkerDown() if that dies first.
  void Release(const core::ReleaseBlock& effect) ABSL_LOCKS_EXCLUDED(mu_);
  // The fd of a block that is neither being made nor released; it stays the keeper's. Errors: kNotFound.
  absl::StatusOr<int> Find(BlockId block) const ABSL_LOCKS_EXCLUDED(mu_);

  // A worker serves `device` on `socket`, which nobody has asked anything before; or it is `at_work` for earlier
  // brokers, and serves once it has answered them.
  void WorkerIsUp(uint32_t device, Lane lane, UniqueFd socket, bool at_work = false) ABSL_LOCKS_EXCLUDED(mu_);
  // What the vault says of the device's worker. What only one that is gone still held is released with it.
  void OnWorkerNews(const WorkerNews& news) ABSL_LOCKS_EXCLUDED(mu_);
  // The vault has closed its copy of a block's fd.
  void VaultDropped(BlockId block) ABSL_LOCKS_EXCLUDED(mu_);
  // Goes on with a block of the core's that an earlier broker has put into custody; or has not, as it is being made, or
  // its worker keeps it itself. Both before that worker is up.
  void Adopt(BlockId block, uint32_t device, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);
  void Expect(BlockId block) ABSL_LOCKS_EXCLUDED(mu_);
  // Has a worker close a block's fd that no row of the core's stands for.
  void ReleaseOrphan(BlockId block, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Where a block's fd is, beside here.
  enum class Stage {
    kHeld,       // with the vault
    kReleasing,  // with the vault, the worker, or both
    kClosing,    // with the worker alone, and not here any more
    kRefused,    // the same, and the driver did not take it
  };
  struct Held {
    uint32_t device = 0;
    Stage stage = Stage::kHeld;
    UniqueFd fd;
    // Of kReleasing: the worker there is has it; the vault was asked to close its copy; it has.
    bool with_worker = false;
    bool drop_asked = false;
    bool vault_dropped = false;
  };
  struct Worker {
    std::unique_ptr<WorkerChannel> channel;
    EventLoop::WatchId watch = 0;
    // Asked for and not answered, or answered and not kept yet.
    absl::flat_hash_set<BlockId> creating;
    // It answers what earlier brokers have asked; blocks that it kept for the last of them.
    bool at_work = false;
    std::vector<BlockId> kept;
  };

  using Key = std::pair<uint32_t, Lane>;

  // Asks a worker for it. Returns whether there is nothing to wait for: `*outcome` is the answer then.
  bool StartCreate(const core::CreateBlock& effect, absl::Status* outcome) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether there is anything to release.
  bool StartRelease(const core::ReleaseBlock& effect) ABSL_LOCKS_EXCLUDED(mu_);
  Worker* FindWorkerLocked(Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseOrphanLocked(BlockId block, uint32_t device, UniqueFd fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes a block that is being released as far as it goes now.
  void AdvanceLocked(BlockId block, Held* held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks the worker once more for what the driver did not take.
  void ReleaseAgainLocked(BlockId block, Held* held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WatchForRoomLocked(Worker* worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One that broke the protocol, or is gone: the vault says so, and what was asked is asked of the next one.
  void EndWorkerLocked(Worker* worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same, of one that made a block that is not waited for.
  void EndUnaskedLocked(Key key, BlockId block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What a worker that is gone still held goes with it.
  std::vector<BlockId> ForgetWorker(Key key, bool abandoned) ABSL_LOCKS_EXCLUDED(mu_);
  void OnWorkerEvent(Key key, uint32_t events) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes one answer of the worker's. Returns whether there may be more.
  bool TakeReply(Key key) ABSL_LOCKS_EXCLUDED(mu_);
  void OnReply(Key key, WorkerReply reply) ABSL_LOCKS_EXCLUDED(mu_);
  // The same of a worker that is at work for earlier brokers.
  void OnEarlierReply(Key key, WorkerReply reply) ABSL_LOCKS_EXCLUDED(mu_);
  void OnCreatedEarlier(uint32_t device, CreatedBlock created) ABSL_LOCKS_EXCLUDED(mu_);
  void OnReleasedEarlier(uint32_t device, const ReleasedBlock& released) ABSL_LOCKS_EXCLUDED(mu_);
  // It has answered all that. Returns whether it has: this may be the answer to a broker before.
  bool OnBegun(Key key, const BegunWorker& begun) ABSL_LOCKS_EXCLUDED(mu_);
  // Has the vault keep a block's fd, which is waited for until then. Errors: those of Custody::Put(); it is on its way
  // back then.
  absl::Status Keep(BlockId block, uint32_t device, UniqueFd fd) ABSL_LOCKS_EXCLUDED(mu_);
  void OnCreated(uint32_t device, CreatedBlock created) ABSL_LOCKS_EXCLUDED(mu_);
  void OnCreatedByHandle(Key key, const CreatedBlock& created) ABSL_LOCKS_EXCLUDED(mu_);
  void OnReleased(BlockId block, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  EventLoop& loop_;
  Broker& broker_;
  Custody& custody_;
  const uint64_t epoch_;

  mutable Mutex mu_;
  std::map<Key, Worker> workers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<BlockId, Held> blocks_ ABSL_GUARDED_BY(mu_);
  // Expect()ed, and not come.
  absl::flat_hash_set<BlockId> expected_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_BROKER_BLOCK_KEEPER_H_
