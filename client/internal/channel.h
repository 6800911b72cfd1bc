// Channel is this process's end of its channel to the daemon (common/attach_wire.h): it takes in the fds of
// blocks and fence pages and hands each to who waits for it, acknowledges, marks the lease words of recalled
// blocks, hands over what this process tracks of a block alone, and sends what this process lets go.
//
// One thread sleeps on the socket. Who waits for an fd also looks at the socket itself, so that an fd that is
// there already costs no wake-up, and one that is not costs one. Who gives a permit back sleeps on it, too: one of
// them, for all of them.

#ifndef CLIENT_INTERNAL_CHANNEL_H_
#define CLIENT_INTERNAL_CHANNEL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/internal/fences.h"
#include "client/internal/lease_word.h"
#include "client/internal/permit_watch.h"
#include "client/internal/plan_watch.h"
#include "common/attach_wire.h"
#include "common/fd_passing.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/unique_fd.h"

namespace berth::internal {

// What came for a request: a block; or a compiled module, a place for one, or this process's fence page, which have no
// import.
struct Arrival {
  BlockId block;
  ImportId import;
  // Empty for a block that is imported by a handle.
  UniqueFd fd;
  // Shared by every import of the block in this process.
  std::shared_ptr<TrackedBlock> tracked;
  // Shared by every import of the block in this process, and by the channel while one of them lives.
  std::shared_ptr<LeaseRecord> lease;
};

// Thread-safe.
class Channel {
 public:
  // Called from the channel's thread, without a lock.
  struct Events {
    // Once: the stream has ended or is broken.
    std::function<void(const absl::Status&)> on_lost;
    // Another broker serves than before.
    std::function<void()> on_resumed;
    // It has calls come again that waited already.
    std::function<void()> on_return;
  };

  // `socket` stays the caller's and must be non-blocking; it and `fences` must outlive this.
  static absl::StatusOr<std::unique_ptr<Channel>> Start(int socket, Fences* fences, Events events);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel();

  // Announces that a block, or what else there is, for `sequence` is wanted. Call it before the request is sent, then
  // Await() or Abandon().
  void Expect(uint64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits for the block of an expected sequence.
  // Errors: kDeadlineExceeded; kUnavailable when the channel is lost; kResourceExhausted when this process
  // had no fd free for it; kNotFound for a module that has left the cache. After an error the sequence is abandoned.
  absl::StatusOr<Arrival> Await(uint64_t sequence, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Nobody wants the block of `sequence` any more: should it come, or have come, it is closed and let go.
  void Abandon(uint64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives an acquisition of a permit back, and waits until the daemon has it. Not OK: it may or may not have it, and
  // ReleasePermit is to say the same; kDeadlineExceeded, kUnavailable, or those of a full socket.
  absl::Status GiveBack(AcquisitionId acquisition, bool if_idle, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Sends what is handed over of a block. Never waits.
  void HandOver(const attach::HandedOver& handed) ABSL_LOCKS_EXCLUDED(mu_);

  // Tells the daemon that this process has unmapped and closed `import`. Never waits: what a full socket does
  // not take is sent later.
  void LetGo(ImportId import) ABSL_LOCKS_EXCLUDED(mu_);

  // What the daemon says of permits. Callbacks are called from the channel's thread, without a lock of its own.
  PermitWatch& permits() { return permits_; }
  // The same of plans.
  PlanWatch& plans() { return plans_; }

  // Ends every lease of this process, as the daemon will say too: the session is over.
  void EndLeases() ABSL_LOCKS_EXCLUDED(mu_);

  // Whether the daemon has been sent all that it is to know, or the channel is lost.
  bool sent() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Lease words kept before those of blocks long gone are looked for.
  static constexpr size_t kFirstSweep = 64;

  struct Expected {
    SteadyCondVar arrived;
    std::optional<absl::StatusOr<Arrival>> result;
  };

  // Of who waits in GiveBack().
  struct GivingBack {
    SteadyCondVar news;
    std::optional<bool> taken;
  };

  Channel(int socket, Fences* fences, UniqueFd wake, UniqueFd looker_wake, Events events);
  void Run();
  void Wake();
  void EndLeasesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the leases of every block here, and what waits, with `why`.
  void LoseLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until the socket has something, or another thread has taken off it what is `own`'s; the lock is given up
  // meanwhile.
  void LookLocked(GivingBack* own, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes who waits in GiveBack().
  void TellLocked(GivingBack* giving_back) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes in and acknowledges what is there.
  void DrainLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status DispatchLocked(Message message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `fd` is empty where this process had none free for it, or there is none.
  void DeliverLocked(const attach::Delivery& delivery, UniqueFd fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What comes without an import. `without` is said where `fd` is empty.
  void DeliverFdLocked(uint64_t sequence, UniqueFd fd, const absl::Status& without)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasToSendLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return acknowledged_ < received_ || !let_go_.empty() || !handed_over_.empty();
  }
  void FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LetGoLocked(ImportId import) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<LeaseRecord> LeaseOfLocked(BlockId block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int socket_;
  Fences& fences_;
  const UniqueFd wake_;
  // Wakes who looks.
  const UniqueFd looker_wake_;
  const Events events_;
  // Synchronised by itself.
  PermitWatch permits_;
  PlanWatch plans_;

  mutable Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  // on_resumed is to be called, and on_return from then on; at no time for InfiniteFuture.
  bool resumed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time return_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  // Not OK once the channel is lost.
  absl::Status state_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Expected>> expected_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<BlockId, std::weak_ptr<LeaseRecord>> leases_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = kFirstSweep;
  uint64_t received_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t acknowledged_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<ImportId> let_go_ ABSL_GUARDED_BY(mu_);
  // Blocks that the daemon wants to be handed over.
  std::deque<BlockId> wanted_ ABSL_GUARDED_BY(mu_);
  std::deque<attach::HandedOver> handed_over_ ABSL_GUARDED_BY(mu_);
  // By acquisition.
  absl::flat_hash_map<uint64_t, GivingBack*> giving_back_ ABSL_GUARDED_BY(mu_);
  // The one of them that looks at the socket, for all of them; null for none.
  GivingBack* looker_ ABSL_GUARDED_BY(mu_) = nullptr;

  std::thread thread_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_CHANNEL_H_
