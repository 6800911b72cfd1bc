// SideChannel is this process's end of its side channel to the daemon (common/wire/attach_wire.h). The channel receives
// the fds of blocks and fence pages, passes each fd to its waiter and acknowledges it. The channel also marks the lease
// states of recalled blocks. The channel hands over fence state that only this process tracks, and notifies the daemon
// of released imports.
//
// One thread sleeps on the socket. A waiter for an fd also reads the socket itself: an fd that is already there costs
// no wake-up, a later fd costs one. Callers of GiveBack() sleep on the socket, too: one caller polls for all of them.

#ifndef CLIENT_SDK_TRANSPORT_SIDE_CHANNEL_H_
#define CLIENT_SDK_TRANSPORT_SIDE_CHANNEL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include <berth/block_event.h>
#include <berth/cancellation.h>
#include <berth/end_notice.h>
#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/sdk/fences/fences.h"
#include "client/sdk/memory/atomic_lease.h"
#include "client/sdk/memory/block_watch.h"
#include "client/sdk/permits/permit_watch.h"
#include "client/sdk/plans/plan_watch.h"
#include "common/mutex.h"
#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"
#include "common/steady_cond_var.h"
#include "common/thread.h"
#include "common/wire/attach_wire.h"

namespace berth::internal {

// The delivery for a request: a block, a compiled module, a place for a module, or this process's fence page. Only a
// block has an import.
struct Arrival {
  BlockId block;
  ImportId import;
  // Empty for a block that is imported by a handle.
  UniqueFd fd;
  // Shared by every import of the block in this process.
  std::shared_ptr<TrackedBlock> tracked;
  // Shared by every import of the block in this process. The channel holds a weak reference.
  std::shared_ptr<LeaseRecord> lease;
};

// Thread-safe.
class SideChannel {
 public:
  // Callbacks. The channel's thread calls them, and holds no lock.
  struct Events {
    // Called once: the stream has ended or is broken.
    std::function<void(const absl::Status&)> on_lost;
    // Called when the stream has ended and a later daemon may know the session. Returns this process's new connection.
    // Errors: IsRejoinRefused() if the session is over; the channel retries after any other error. Without this
    // callback the end of the stream is a loss.
    std::function<absl::StatusOr<UniqueFd>()> rejoin;
    // Called when another broker serves.
    std::function<void()> on_resumed;
    // Called when waiting calls are to be sent to the new broker again.
    std::function<void()> on_return;
  };

  // `socket` remains the caller's and must be non-blocking. `socket` and `fences` must outlive the channel.
  static absl::StatusOr<std::unique_ptr<SideChannel>> Start(int socket, Fences* fences, Events events);
  SideChannel(const SideChannel&) = delete;
  SideChannel& operator=(const SideChannel&) = delete;
  ~SideChannel();

  // Registers `sequence` as expecting a delivery. Requires: called before the request is sent, and followed by Await()
  // or Abandon().
  void Expect(uint64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits for the delivery of an expected sequence.
  // Errors: kDeadlineExceeded; kUnavailable when the channel is lost; kResourceExhausted when this process had no free
  // fd for the delivery; kNotFound for a module that has left the cache. An error abandons the sequence.
  absl::StatusOr<Arrival> Await(uint64_t sequence, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Cancels the expectation of `sequence`. The channel closes and releases a block that has arrived or arrives later.
  void Abandon(uint64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives an acquisition of a permit back and waits until the daemon has taken it. Errors: kDeadlineExceeded,
  // kUnavailable, and those of a full socket. After an error the daemon may or may not have taken the acquisition, and
  // the caller repeats the release with ReleasePermit.
  absl::Status GiveBack(AcquisitionId acquisition, bool if_idle, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls an RPC on the side channel, under a number that this method chooses, and waits for its answer. Waits for the
  // next daemon where none serves. An acquire that ends without an answer is cancelled at the daemon, too.
  // Errors: kUnavailable where the channel is lost, or where the daemon ended before it answered; kDeadlineExceeded;
  // kCancelled; kUnimplemented where the daemon rejects the message, e.g. an earlier version, and for an acquire while
  // another one waits here.
  absl::StatusOr<attach::Answer> Ask(attach::Ask ask, absl::Time deadline, Cancellation* cancellation)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Sends the fence state of a block that is handed over to the daemon. Never waits.
  void HandOver(const attach::HandedOver& handed) ABSL_LOCKS_EXCLUDED(mu_);

  // Notifies the daemon that this process has unmapped and closed `import`. Never waits: the channel's thread sends
  // later what a full socket does not take.
  void LetGo(ImportId import) ABSL_LOCKS_EXCLUDED(mu_);

  // The daemon's notices about permits. The channel's thread calls the callbacks and holds no lock of the channel.
  PermitWatch& permits() { return permits_; }
  // The daemon's notices about plans; the same rules apply.
  PlanWatch& plans() { return plans_; }
  // Creates a listener to the end of a block; the same rules apply.
  std::shared_ptr<BlockListener> WatchBlock(LeaseRecord& lease, std::function<void(const BlockEvent&)> on_event)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Reads and dispatches all messages that the daemon has sent so far.
  void TakeIn() ABSL_LOCKS_EXCLUDED(mu_);
  enum class Return {
    // The channel is connected. The daemon's notices precede its answer to any message.
    kPresent,
    // No daemon has resumed the session.
    kAbsent,
    kLost,
  };
  // As TakeIn(). While the channel is away, waits for the next daemon, for `patience` at most. Calls that begin up to
  // `patience` after the end of a wait share that wait.
  Return AwaitReturn(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);
  // As TakeIn(). Returns why the session ended; nullopt if it has not ended, or this process itself has ended it.
  std::optional<EndNotice> TakeInEnd() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends this process's leases on blocks before the daemon's own message arrives: this process has ended the session.
  void EndLeases() ABSL_LOCKS_EXCLUDED(mu_);

  // Whether the channel waits for the next daemon.
  bool away() const ABSL_LOCKS_EXCLUDED(mu_);

  // Whether all acknowledgements and releases are sent to the daemon, or the channel is lost or away.
  bool sent() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Number of lease records at which the first sweep for expired records runs.
  static constexpr size_t kFirstSweep = 64;

  struct Expected {
    SteadyCondVar arrived;
    std::optional<absl::StatusOr<Arrival>> result;
  };

  // State of one caller of Ask().
  struct Asking {
    SteadyCondVar news;
    bool sent = false;
    std::optional<absl::StatusOr<attach::Answer>> answer;
    bool cancelled = false;
  };

  // State of one caller of GiveBack().
  struct GivingBack {
    SteadyCondVar news;
    std::optional<bool> taken;
  };

  SideChannel(int socket, Fences* fences, UniqueFd wake, UniqueFd looker_wake, Events events);
  void Run();
  void Wake();
  // Ends the lease of every block in this process. Notifies the listeners of `event`; nullopt: this process itself has
  // ended the session, or the listeners were notified before.
  void EndBlocksLocked(Lease how, const std::optional<BlockEvent>& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Handles the end of one block.
  void OnRecallLocked(const attach::Delivery& delivery) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends every lease of this process and notifies the holders. Only the first call has an effect.
  void EndLeasesLocked(const EndNotice& end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls the holders that have notices. Returns whether any holder was called.
  bool CallBack();
  // Marks the channel as lost and ends every lease and every wait with `why`. Notifies the holders unless the session
  // is over.
  void LoseLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Handles the end of the stream: the other end of the socket is closed.
  void OnEndLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes the callers of Ask().
  void WakeAsksLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends every call of Ask() that is sent with `why`.
  void EndAsksLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Passes an Answer, or the rejection of an Ask, to its waiter. Returns whether `message` is one of them.
  bool DispatchAnswerLocked(const Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends every wait for a message with `why`.
  void EndWaitsLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Connects to the next daemon. Returns when connected or when the session is over.
  void Rejoin() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the socket is readable or another thread has read the message for `own`. Releases the lock meanwhile.
  void LookLocked(GivingBack* own, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes one waiter in GiveBack().
  void NotifyLocked(GivingBack* giving_back) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Receives, dispatches and acknowledges all pending messages.
  void DrainLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status DispatchLocked(Message message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `fd` is empty where the delivery carries no fd or this process had no free fd for it.
  void DeliverLocked(const attach::Delivery& delivery, UniqueFd fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Delivers an fd without an import. `without` is the waiter's error where `fd` is empty.
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
  // Wakes the GiveBack() caller that polls the socket.
  const UniqueFd looker_wake_;
  const Events events_;
  // Internally synchronized.
  PermitWatch permits_;
  PlanWatch plans_;
  BlockWatch blocks_;

  mutable Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  // Whether on_resumed is due, and the time at which on_return is due; InfiniteFuture if on_return is not due.
  bool resumed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time return_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  // Not OK once the channel is lost.
  absl::Status state_ ABSL_GUARDED_BY(mu_);
  // Whether the stream has ended and the thread looks for the next daemon.
  bool away_ ABSL_GUARDED_BY(mu_) = false;
  // The end of the last wait in AwaitReturn().
  absl::Time await_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  // Signalled when the channel is no longer away.
  SteadyCondVar returned_;
  // Whether the session is over, so that the end of the stream is a final loss.
  bool session_over_ ABSL_GUARDED_BY(mu_) = false;
  // The first notice of the session's end.
  std::optional<EndNotice> end_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Expected>> expected_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<BlockId, std::weak_ptr<LeaseRecord>> leases_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = kFirstSweep;
  uint64_t received_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t acknowledged_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<ImportId> let_go_ ABSL_GUARDED_BY(mu_);
  // Blocks that the daemon has asked this process to hand over.
  std::deque<BlockId> wanted_ ABSL_GUARDED_BY(mu_);
  std::deque<attach::HandedOver> handed_over_ ABSL_GUARDED_BY(mu_);
  // By the number of the Ask, and the latest such number.
  absl::flat_hash_map<uint64_t, Asking*> asking_ ABSL_GUARDED_BY(mu_);
  uint64_t last_ask_ ABSL_GUARDED_BY(mu_) = 0;
  // Whether an Ask of kAcquirePermit waits: the daemon takes one at a time.
  bool acquiring_ ABSL_GUARDED_BY(mu_) = false;
  // Number of Asks on this connection that the daemon has not answered, also those whose caller no longer waits.
  uint64_t unanswered_asks_ ABSL_GUARDED_BY(mu_) = 0;
  // By acquisition ID.
  absl::flat_hash_map<uint64_t, GivingBack*> giving_back_ ABSL_GUARDED_BY(mu_);
  // The GiveBack() caller that polls the socket for all callers; null for none.
  GivingBack* looker_ ABSL_GUARDED_BY(mu_) = nullptr;

  Thread thread_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_SIDE_CHANNEL_H_
