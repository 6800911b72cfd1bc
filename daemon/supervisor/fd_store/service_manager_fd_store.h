// ServiceManagerFdStore: fds that the service manager holds for the daemon, in case supervisor and broker die together.
// The fds are listening sockets, pages, each session's lifeline, and the channel, pidfd and page of each of a session's
// processes. The next supervisor starts with these fds and continues. Blocks are never among them: the last close of a
// block is a driver call.
//
//   ServiceManagerFdStore store(std::move(record), SendToServiceManager);
//   store.Reconcile(now, held);                    // compares what the manager has with what it shall have
//   store.Put(now, key);                           // sent from now on
//   if (store.Drop(now, key)) ...                  // Attend() reports when the manager has released it, too
//   ... until wake(), or until fd() hangs up: for (Key key : store.Attend(now, held)) ...
//
// The store has 1,024 places. A session or process without a place ends when supervisor and broker die together; the
// constants below state the rule. An fd that is held only for a moment is never sent (kPause). Sending is paced,
// because the receiver is the machine's first process. docs/design/0025 gives the reasons.

#ifndef DAEMON_SUPERVISOR_FD_STORE_SERVICE_MANAGER_FD_STORE_H_
#define DAEMON_SUPERVISOR_FD_STORE_SERVICE_MANAGER_FD_STORE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"
#include "daemon/supervisor/broker_link.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"
#include "daemon/supervisor/fd_store/service_manager.h"
#include "daemon/supervisor/fd_store/store_record.h"
#include "daemon/supervisor/processes/restart_policy.h"

namespace berth {

// Thread-compatible. Callers pass the time.
class ServiceManagerFdStore {
 public:
  // Sends a message, and a duplicate of the fd unless it is -1. Never waits.
  using Send = std::function<absl::Status(const std::string& state, int fd)>;

  // Places of the daemon's own fds; of lifelines; and number of processes with places, three each. Sessions of one
  // process thus find as many places as their processes do, and a session with many processes leaves places for other
  // sessions' lifelines. Places go to the first that request them; whatever was left out gets the next free place.
  static constexpr size_t kOwn = 16;
  static constexpr size_t kLifelines = 252;
  static constexpr size_t kProcesses = 252;
  static_assert(kOwn + kLifelines + 3 * kProcesses <= StoreRecord::kPlaces);
  // Time from Put() until the fd is sent, and between two bursts.
  static constexpr std::chrono::milliseconds kPause{50};
  // Longest pause between two attempts to send to a manager that takes no message. The pauses double from kPause on.
  static constexpr std::chrono::milliseconds kLongestPause{5000};
  // Limit of messages per burst.
  static constexpr size_t kBurst = 64;
  // Time after which the store stops waiting for the manager to release fds.
  static constexpr std::chrono::seconds kBarrierPatience{5};

  // Returns whether fds of that kind have places in the store.
  static bool Stores(fd_store::Kind kind);
  // Convert between a key and the name by which the manager knows the fd; nullopt for an invalid name.
  static std::string NameOf(fd_store::Key key);
  static std::optional<fd_store::Key> KeyOfName(absl::string_view name);
  // Returns the message that makes the manager forget the fd.
  static std::string RemovalOf(fd_store::Key key);
  // Returns the handed-over fds that have one of the daemon's names, each key once. Closes the rest and makes the
  // manager forget them.
  static HeldFds Sort(std::vector<NamedFd> handed_over, const Send& send);
  // Makes the manager forget all of them. Waits, for a bounded time, while the manager takes no more messages.
  static void Forget(const HeldFds& stored, const Send& send);

  ServiceManagerFdStore(StoreRecord record, Send send) : record_(std::move(record)), send_(std::move(send)) {}

  StoreRecord& record() { return record_; }

  // Records that the manager has exactly these fds: it has just handed them over.
  void RecordStored(const HeldFds& stored);
  // Makes the manager hold exactly the fds of `held` that have places. With `again`, also resends what an earlier
  // supervisor had sent. That supervisor may have died before the manager could see whose message it was; the manager
  // never stores a file twice.
  void Reconcile(MonotonicTime now, const HeldFds& held, bool again);

  void Put(MonotonicTime now, fd_store::Key key);
  // Returns whether the manager has the fd, too.
  bool Drop(MonotonicTime now, fd_store::Key key);

  // Sends what is due. Returns those keys for which Drop() returned true and which the manager has released since, so
  // that only the broker still has them.
  std::vector<fd_store::Key> Attend(MonotonicTime now, const HeldFds& held);
  // Returns when Attend() is due; max() for never.
  MonotonicTime wake() const;
  // Hangs up when Attend() is due; -1 without a pending barrier.
  int fd() const { return barrier_.has_value() ? barrier_->fd.get() : -1; }

 private:
  // Keys that the manager was requested to forget, and has forgotten once the fd hangs up.
  struct Barrier {
    UniqueFd fd;
    std::vector<fd_store::Key> keys;
    MonotonicTime deadline;
  };

  // Gives the key a place. Returns false if none is free.
  bool Admit(fd_store::Key key);
  // Frees the key's place and gives it to an fd that was left out.
  void Leave(MonotonicTime now, fd_store::Key key);
  void Due(MonotonicTime when);
  void SendWaiting(MonotonicTime now, const HeldFds& held);
  // Sends, and decrements the budget. Returns whether the message was sent; on failure sets the time of the next try.
  bool SendOne(MonotonicTime now, const std::string& state, int fd, size_t* budget);
  void RaiseBarrier(MonotonicTime now);

  StoreRecord record_;
  const Send send_;
  // Sessions, processes and own fds that have a place, whether or not the manager has them yet.
  std::set<fd_store::Key> own_;
  std::set<uint64_t> lifelines_;
  std::map<uint64_t, std::set<fd_store::Key>> processes_;
  // Sessions and processes without a place.
  std::set<uint64_t> lifelines_left_out_;
  std::map<uint64_t, std::set<fd_store::Key>> processes_left_out_;
  // The full store was logged; reset once every session and process has a place.
  bool reported_full_ = false;

  std::set<fd_store::Key> outgoing_;
  std::set<fd_store::Key> removals_;
  // Keys removed since the last barrier.
  std::vector<fd_store::Key> removed_;
  std::optional<Barrier> barrier_;
  // When the next message is due; max() for never.
  MonotonicTime due_ = MonotonicTime::max();
  // Set while the manager takes no message: the time of the next attempt, and the pause after it if that fails, too.
  MonotonicTime retry_at_ = MonotonicTime::min();
  std::chrono::milliseconds next_pause_ = kPause;
  bool said_unsent_ = false;
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_FD_STORE_SERVICE_MANAGER_FD_STORE_H_
