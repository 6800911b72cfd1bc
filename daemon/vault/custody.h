// Custody: the broker's end of its socket to the vault, which keeps duplicates of every fd that must outlive
// the broker.
//
//   BERTH_ASSIGN_OR_RETURN(Inheritance inherited, Custody::Receive(std::move(socket)));
//   for (HeldFd& held : inherited.held) ...         // what an earlier broker left, and the vault's own
//   // Before anyone else gets the fd.
//   BERTH_RETURN_IF_ERROR(inherited.custody->Put(key, fd, FdOwner::kClient));
//   BERTH_RETURN_IF_ERROR(inherited.custody->Ready());           // once the broker serves
//   ... poll custody->fd(): call Flush() when it has room, ReadNotice() until IsWouldBlock() when it has something
//
// Custody is mutual: a vault that is gone is followed by another, which is given all that it held, by whichever thread
// notices first. For that every fd that was put has to stay open here until Drop() is called.

#ifndef DAEMON_VAULT_CUSTODY_H_
#define DAEMON_VAULT_CUSTODY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/lane.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "daemon/vault/custody_wire.h"
#include "daemon/vault/fd_reserve.h"

namespace berth {

// An fd with what it is.
struct HeldFd {
  custody::Key key;
  UniqueFd fd;
};

// What the vault says after the start.

// `device` has a worker again; `socket` is the broker's end of its socket (daemon/device/worker_channel.h).
struct WorkerUp {
  uint32_t device = 0;
  Lane lane = Lane::kMain;
  UniqueFd socket;
};
// There is a monitor; `socket` is the broker's end of its socket (daemon/device/monitor_wire.h).
struct MonitorUp {
  UniqueFd socket;
};
// What becomes of the device's worker (custody_wire.h). After kGone a WorkerUp follows.
struct WorkerNews {
  uint32_t device = 0;
  Lane lane = Lane::kMain;
  custody::WorkerState state = custody::WorkerState::kRunning;
  uint32_t restarts_left = 0;
  uint64_t generation = 0;
  bool dropped = false;
  std::string last_failure;
  std::string drain_reason;
};
// The vault has closed what Drop(key) named.
struct DroppedFd {
  custody::Key key;
};
// The daemon is asked to stop: end within 500 ms.
struct StopRequested {};
// Another program has taken the vault's place, and wants everything: call HandOver().
struct HandOverRequested {};
// The configuration file is to be read anew.
struct ReloadRequested {};

using Notice =
    std::variant<WorkerUp, MonitorUp, WorkerNews, DroppedFd, StopRequested, HandOverRequested, ReloadRequested>;

struct Inheritance;

// Custody is thread-safe; ReadNotice() has one caller at a time.
class Custody {
 public:
  // Takes over `socket` and reads all that the vault gives to a new broker; blocks, at most 10 s. Calls `on_facts` as
  // soon as it knows them, before all the rest has come.
  // Errors: kDeadlineExceeded; kUnavailable if the vault is gone; kInternal if it breaks the protocol.
  static absl::StatusOr<Inheritance> Receive(
      UniqueFd socket, absl::FunctionRef<void(const custody::Facts&)> on_facts = [](const custody::Facts&) {});

  Custody(const Custody&) = delete;
  Custody& operator=(const Custody&) = delete;

  // How a vault that is gone is followed by another one.
  struct Succession {
    // Starts a vault that waits to be handed everything; returns our end of its socket.
    std::function<absl::StatusOr<UniqueFd>()> start;
    // fd() is another socket now, by its old number: whoever watched it does so anew. On any thread.
    std::function<void()> on_replaced;
  };
  // Before that a vault that is gone is an error. Called once, before threads are.
  void SetSuccession(Succession succession) { succession_ = std::move(succession); }

  // Has another vault follow the one that is gone, unless that was done. Waits until it has everything.
  // Errors: those of Succession::start; kUnavailable if three in a row ended before they had; another
  // call tries again.
  absl::Status Succeed() ABSL_LOCKS_EXCLUDED(mu_);
  // Gives everything to the program that asked for it. Errors: as Succeed(), by which it is followed if it fails.
  absl::Status HandOver() ABSL_LOCKS_EXCLUDED(mu_);

  // Gives the vault a duplicate of `fd`, which stays the caller's. On return it survives the broker's death.
  // Waits up to 1 s for room in the socket, longer if the vault is being replaced.
  // Errors: LIMIT at the vault's fd limit or the broker's, both of which end sooner for clients (fd_reserve.h);
  // kAlreadyExists if `key` is held; kUnavailable if the vault is gone or takes nothing; nothing is held after an
  // error.
  absl::Status Put(custody::Key key, int fd, FdOwner owner) ABSL_LOCKS_EXCLUDED(mu_);

  // Asks the vault to close its duplicate; a DroppedFd notice says that it has. A key that is not held is
  // answered too. Never waits: what the socket has no room for is sent by Flush(). A vault that is gone is noticed by
  // fd() alone.
  void Drop(custody::Key key) ABSL_LOCKS_EXCLUDED(mu_);

  // Sends what waits, as far as there is room. To be called whenever fd() turns writable; watched edge-triggered it
  // costs nothing between.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

  // Has the vault do something with a device; WorkerNews says what came of it. Waits no more than Drop().
  void Order(uint32_t device, Lane lane, custody::OrderKind order, absl::string_view why)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Says that the broker serves: the vault sets the state page's serving word and reports the daemon as
  // started.
  absl::Status Ready() ABSL_LOCKS_EXCLUDED(mu_);

  // Says what this process bounds its memory to, for the kernel to have a bound above it. Errors: as Ready().
  absl::Status Bound(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // Has the vault begin a new incarnation with the next broker. The caller is to end.
  absl::Status Reset() ABSL_LOCKS_EXCLUDED(mu_);

  // Readable when ReadNotice() has something; the socket stays this object's.
  int fd() const { return socket_.get(); }

  // Never blocks.
  // Errors: IsWouldBlock() when there is nothing; IsEndOfStream() when the vault is gone; kInternal if it
  // breaks the protocol.
  absl::StatusOr<Notice> ReadNotice() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What is in custody.
  struct Held {
    // Open as long as this is here, but where `dropping`.
    int fd = -1;
    // The same, of what nobody else here keeps for as long.
    UniqueFd own;
    // The vault was asked to close it, and has not said that it has.
    bool dropping = false;
  };
  using HeldByKey = std::map<custody::Key, Held>;

  Custody(UniqueFd socket, const custody::Facts& facts, HeldByKey held)
      : socket_(std::move(socket)), facts_(facts), held_(std::move(held)) {}
  // Notes what the vault gave. Returns what is the caller's of it: nothing of what only vaults need.
  static absl::StatusOr<UniqueFd> Keep(const custody::Key& key, UniqueFd fd, HeldByKey* held);
  // Sends, to another vault where the one that there was is gone.
  template <typename T>
  absl::Status SendOrSucceed(const T& message) ABSL_LOCKS_EXCLUDED(mu_);
  // How many may be in custody for one more to be put there by that owner.
  size_t LimitOf(FdOwner owner) const;
  absl::Status SucceedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends all that a vault has to know, on `socket`.
  absl::Status GiveAllLocked(int socket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetLocked(const custody::WorkerStatus& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends behind what waits already.
  template <typename T>
  void QueueLocked(const T& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Of whichever vault there is: the number stays.
  const UniqueFd socket_;
  const custody::Facts facts_;
  Succession succession_;

  Mutex mu_;
  HeldByKey held_ ABSL_GUARDED_BY(mu_);
  // Ready() was said.
  bool served_ ABSL_GUARDED_BY(mu_) = false;
  // What the vault said last of each worker.
  std::map<custody::Key, custody::WorkerStatus> statuses_ ABSL_GUARDED_BY(mu_);
  // Orders that nothing was heard of since, by device.
  std::deque<custody::Order> orders_ ABSL_GUARDED_BY(mu_);
  // Drops and orders that found no room. Drops are of what is held, so at most the vault's limit, and a few that never
  // were; orders are few.
  std::deque<std::string> outbox_ ABSL_GUARDED_BY(mu_);
};

// What a new broker starts from.
struct Inheritance {
  custody::Facts facts;
  std::vector<HeldFd> held;
  std::unique_ptr<Custody> custody;
};

}  // namespace berth

#endif  // DAEMON_VAULT_CUSTODY_H_
