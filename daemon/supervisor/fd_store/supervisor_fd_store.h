// SupervisorFdStore: the broker's end of its socket to the supervisor, whose fd store holds a duplicate of every fd
// that must outlive the broker.
//
//   BERTH_ASSIGN_OR_RETURN(Inheritance inherited, SupervisorFdStore::Receive(std::move(socket)));
//   for (HeldFd& held : inherited.held) ...         // what an earlier broker left, and the supervisor's own
//   // Before any other process gets the fd.
//   BERTH_RETURN_IF_ERROR(inherited.fd_store->Put(key, fd, FdOwner::kClient));
//   BERTH_RETURN_IF_ERROR(inherited.fd_store->Ready());           // once the broker serves
//   ... poll fd_store->fd(): call Flush() when it is writable; when it is readable, ReadNotice() until IsWouldBlock()
//
// The fd store works both ways. When the supervisor ends, the first thread that notices starts another supervisor and
// gives it every fd of the ended supervisor's fd store. Every fd passed to Put() therefore has to stay open in the
// broker until Drop() is called.

#ifndef DAEMON_SUPERVISOR_FD_STORE_SUPERVISOR_FD_STORE_H_
#define DAEMON_SUPERVISOR_FD_STORE_SUPERVISOR_FD_STORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "daemon/base/worker_kind.h"
#include "daemon/supervisor/fd_store/fd_reserve.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"

namespace berth {

// An fd and the key that names it.
struct HeldFd {
  fd_store::Key key;
  UniqueFd fd;
};

// Notices from the supervisor after the start.

// `device` has a worker again; `socket` is the broker's end of the worker's socket
// (daemon/device/worker/worker_channel.h).
struct WorkerUp {
  uint32_t device = 0;
  WorkerKind worker_kind = WorkerKind::kMain;
  UniqueFd socket;
};
// A monitor has started; `socket` is the broker's end of its socket (daemon/device/monitor/monitor_wire.h).
struct MonitorUp {
  UniqueFd socket;
};
// New state of the device's worker (fd_store_wire.h). A WorkerUp follows kGone.
struct WorkerNews {
  uint32_t device = 0;
  WorkerKind worker_kind = WorkerKind::kMain;
  fd_store::WorkerState state = fd_store::WorkerState::kRunning;
  uint32_t restarts_left = 0;
  uint64_t generation = 0;
  bool dropped = false;
  std::string last_failure;
  std::string drain_reason;
};
// The supervisor has closed the fd that Drop(key) named.
struct DroppedFd {
  fd_store::Key key;
};
// The daemon shall stop: end within 500 ms.
struct StopRequested {};
// Another program has replaced the supervisor's and requests the handover state: call HandOver().
struct HandOverRequested {};
// The broker shall reload the configuration file.
struct ReloadRequested {};
// `socket` replaces a listening socket that clients can no longer reach.
struct ListenerUp {
  fd_store::Listener listener = fd_store::Listener::kBerthd;
  UniqueFd socket;
};
// The run folder may have changed: the broker shall check its own files there.
struct FolderChanged {};
// The supervisor is about to execute another program in its process, of which this is a pidfd; empty for want of fds.
struct ExecAnnounced {
  UniqueFd process;
};
// The supervisor could not execute that program, and continues.
struct ExecFailed {
  std::string why;
};

using Notice = std::variant<WorkerUp, MonitorUp, WorkerNews, DroppedFd, StopRequested, HandOverRequested,
                            ReloadRequested, ListenerUp, FolderChanged, ExecAnnounced, ExecFailed>;

struct Inheritance;

// SupervisorFdStore is thread-safe; ReadNotice() has one caller at a time.
class SupervisorFdStore {
 public:
  // Called with duplicates of the ledgers that the supervisor holds.
  using OnFacts = absl::FunctionRef<void(const fd_store::Facts&, std::vector<HeldFd> ledgers)>;
  // Takes over `socket` and reads everything that the supervisor gives to a new broker. Blocks for at most 10 s. Calls
  // `on_facts` as soon as the facts and ledgers have arrived, before the rest.
  // Errors: kDeadlineExceeded; kUnavailable if the supervisor has ended; kInternal if the supervisor breaks the
  // protocol.
  static absl::StatusOr<Inheritance> Receive(
      UniqueFd socket, OnFacts on_facts = [](const fd_store::Facts&, const std::vector<HeldFd>&) {});

  SupervisorFdStore(const SupervisorFdStore&) = delete;
  SupervisorFdStore& operator=(const SupervisorFdStore&) = delete;

  // How a supervisor that has ended is replaced.
  struct SupervisorReplacement {
    // Starts a supervisor that waits for the handover state; returns the broker's end of its socket.
    std::function<absl::StatusOr<UniqueFd>()> start;
    // Called on any thread after fd() became another socket under the same number: register the fd anew with poll or
    // epoll.
    std::function<void()> on_replaced;
  };
  // Enables replacement; until then a supervisor that has ended is an error. Called once, before threads exist.
  void SetReplacement(SupervisorReplacement replacement) { replacement_ = std::move(replacement); }

  // Replaces the supervisor if it has ended and no other thread has replaced it. Waits until the new supervisor has
  // everything.
  // Errors: those of SupervisorReplacement::start; kUnavailable if three supervisors in a row ended before they had
  // everything. The next call tries again.
  absl::Status Succeed() ABSL_LOCKS_EXCLUDED(mu_);
  // Kills the process in which the supervisor executes another program (ExecAnnounced), and hangs up on those to which
  // it passed its socket: Succeed() then replaces it. Does nothing if another supervisor has replaced it already.
  // Returns whether the process left a request to stop the daemon pending, which the next supervisor does not get.
  bool EndExecuted() ABSL_LOCKS_EXCLUDED(mu_);
  // Gives everything to the program that requested it; on failure continues as Succeed(). Errors: as Succeed().
  absl::Status HandOver() ABSL_LOCKS_EXCLUDED(mu_);

  // Gives the supervisor a duplicate of `fd`, which stays the caller's. On return the duplicate survives the broker's
  // death. Waits up to 1 s for space in the socket, longer while the supervisor is being replaced.
  // Errors: LIMIT at the supervisor's or the broker's fd limit, both of which are lower for clients (fd_reserve.h);
  // kAlreadyExists if `key` is held, or its drop is not confirmed; kUnavailable if the supervisor has ended or reads
  // nothing. After an error nothing more is held.
  absl::Status Put(fd_store::Key key, int fd, FdOwner owner) ABSL_LOCKS_EXCLUDED(mu_);

  // Requests that the supervisor close its duplicate; a DroppedFd notice confirms it. A key that is not held is
  // confirmed too, and one notice confirms all drops of a key. Until then Put() refuses the key, so that no drop
  // reaches the supervisor after a later Put(). Never waits: Flush() sends a message that finds no space in the socket.
  // Does not detect a supervisor that has ended; only fd() does.
  void Drop(fd_store::Key key) ABSL_LOCKS_EXCLUDED(mu_);

  // Sends queued messages until the socket is full. Call whenever fd() becomes writable; edge-triggered polling for
  // that costs nothing in between.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);

  // Sends a worker command for a device to the supervisor; WorkerNews reports the result. Never waits, as Drop().
  void SendCommand(uint32_t device, WorkerKind worker_kind, WorkerCommand command, absl::string_view why)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Reports that the broker serves: the supervisor sets the state page's serving value and reports the daemon as
  // started.
  absl::Status Ready() ABSL_LOCKS_EXCLUDED(mu_);

  // Reports the memory limit that this process sets itself, so that the kernel's limit is set above it. Errors: as
  // Ready().
  absl::Status Bound(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // Makes the supervisor begin a new incarnation with the next broker. Requires: the caller ends afterwards.
  absl::Status Reset() ABSL_LOCKS_EXCLUDED(mu_);

  // Readable when ReadNotice() has a notice; the socket stays this object's.
  int fd() const { return socket_.get(); }

  // Reads one notice; never blocks.
  // Errors: IsWouldBlock() without a notice; IsEndOfStream() if the supervisor has ended; kInternal if the supervisor
  // breaks the protocol.
  absl::StatusOr<Notice> ReadNotice() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // One fd that the supervisor holds too.
  struct Held {
    // Open for the lifetime of this entry, except while `dropping`.
    int fd = -1;
    // Owns `fd` if no other object of the broker keeps it open that long; empty otherwise.
    UniqueFd own;
    // The supervisor was requested to close its duplicate and has not confirmed it.
    bool dropping = false;
    // Put() is sending the fd.
    bool putting = false;
  };
  using HeldByKey = std::map<fd_store::Key, Held>;

  SupervisorFdStore(UniqueFd socket, const fd_store::Facts& facts, HeldByKey held)
      : socket_(std::move(socket)), facts_(facts), held_(std::move(held)) {}
  // Records an fd that the supervisor gave. Returns the caller's fd: empty for kinds that only supervisors need.
  static absl::StatusOr<UniqueFd> Hold(const fd_store::Key& key, UniqueFd fd, HeldByKey* held);
  // Sends; replaces a supervisor that has ended and sends to the new one.
  template <typename T>
  absl::Status SendOrSucceed(const T& message) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of held fds at which Put() fails for that owner.
  size_t LimitOf(FdOwner owner) const;
  absl::Status SucceedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Kills the process of executed_, if any, and waits for its end.
  void KillExecutedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends everything that a supervisor has to know, on `socket`.
  absl::Status GiveAllLocked(int socket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetLocked(const fd_store::WorkerStatus& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Queues a message behind those that already wait, then flushes.
  template <typename T>
  void QueueLocked(const T& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void QueueDropLocked(fd_store::Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The socket to the current supervisor: the number stays the same across replacements.
  const UniqueFd socket_;
  const fd_store::Facts facts_;
  SupervisorReplacement replacement_;

  Mutex mu_;
  HeldByKey held_ ABSL_GUARDED_BY(mu_);
  // Keys without an fd whose drop is not confirmed.
  std::set<fd_store::Key> dropping_absent_ ABSL_GUARDED_BY(mu_);
  // The pidfd of the current supervisor's process since it announced an exec; empty before.
  UniqueFd executed_ ABSL_GUARDED_BY(mu_);
  // Ready() and Bound() were called. A supervisor may end before it has read either, so the next one gets them, too.
  bool served_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<uint64_t> bound_ ABSL_GUARDED_BY(mu_);
  // The last status that the supervisor sent for each worker.
  std::map<fd_store::Key, fd_store::WorkerStatus> statuses_ ABSL_GUARDED_BY(mu_);
  // Worker commands without a later WorkerNews for their device.
  std::deque<fd_store::CommandMessage> commands_ ABSL_GUARDED_BY(mu_);
  // Drops and worker commands that found no space in the socket. Bounded by the supervisor's fd limit: each drop names
  // another key, and only a few of these were never held. Worker commands are few.
  std::deque<std::string> outbox_ ABSL_GUARDED_BY(mu_);
};

// The state that a new broker starts from.
struct Inheritance {
  fd_store::Facts facts;
  std::vector<HeldFd> held;
  std::unique_ptr<SupervisorFdStore> fd_store;
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_FD_STORE_SUPERVISOR_FD_STORE_H_
