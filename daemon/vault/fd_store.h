// FdStore: what the service manager keeps for the daemon, for the case that vault and broker die at once: listening
// sockets, pages, of each session its lifeline, and of each of its processes the channel, the pidfd and the page. The
// next vault is started with them, and goes on. Never a block: its last close is a driver's call.
//
//   FdStore store(std::move(record), SendToServiceManager);
//   store.Reconcile(now, held);                    // what the manager has, and what it shall have
//   store.Put(now, key);                           // held from now on
//   if (store.Drop(now, key)) ...                  // Attend() says when the manager has let go of it, too
//   ... until wake(), or until fd() hangs up: for (Key key : store.Attend(now, held)) ...
//
// It has 1,024 places, and who finds none ends when vault and broker die at once: the rule is at the constants. What is
// held for a moment only is never sent (kPause), and what is sent is paced, for it is the machine's first process that
// reads it. docs/design/0025 says why.

#ifndef DAEMON_VAULT_FD_STORE_H_
#define DAEMON_VAULT_FD_STORE_H_

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
#include "common/unique_fd.h"
#include "daemon/vault/broker_link.h"
#include "daemon/vault/custody_wire.h"
#include "daemon/vault/restart_policy.h"
#include "daemon/vault/service_manager.h"
#include "daemon/vault/store_record.h"

namespace berth {

// Thread-compatible. The time comes in.
class FdStore {
 public:
  // Sends a message, and a duplicate of the fd where that is none of -1. Never waits.
  using Send = std::function<absl::Status(const std::string& state, int fd)>;

  // Places of the daemon's own fds; of lifelines; and processes that have theirs, three each. So sessions of one
  // process find as many places as their processes, and one with many leaves room for others' lifelines. Who comes
  // first has one, and who is left out has the next that is free.
  static constexpr size_t kOwn = 16;
  static constexpr size_t kLifelines = 252;
  static constexpr size_t kProcesses = 252;
  static_assert(kOwn + kLifelines + 3 * kProcesses <= StoreRecord::kPlaces);
  // From when something is held until it is sent; and between two bursts.
  static constexpr std::chrono::milliseconds kPause{50};
  // Messages at a time.
  static constexpr size_t kBurst = 64;
  // A manager that has not let go by then is not waited for.
  static constexpr std::chrono::seconds kBarrierPatience{5};

  // Whether it has a place here.
  static bool Keeps(custody::Kind kind);
  // What the manager knows it by, and the other way round; nothing for what is no such name.
  static std::string NameOf(custody::Key key);
  static std::optional<custody::Key> KeyOfName(absl::string_view name);
  // What has the manager forget it.
  static std::string RemovalOf(custody::Key key);
  // What was handed over that has a name of the daemon's, each once. The rest is closed, and the manager told to forget
  // it.
  static HeldFds Sort(std::vector<NamedFd> handed_over, const Send& send);
  // Has the manager forget all of them; waits, not for long, where it takes no more at a time.
  static void Forget(const HeldFds& kept, const Send& send);

  FdStore(StoreRecord record, Send send) : record_(std::move(record)), send_(std::move(send)) {}

  StoreRecord& record() { return record_; }

  // Notes that the manager has exactly these: it has just handed them over.
  void NoteKept(const HeldFds& kept);
  // Has the manager keep what it shall of `held`, and no more. What it was given by an earlier vault it is given again
  // where `again`, in case that died too soon after for the manager to see whose it was; it takes no file twice.
  void Reconcile(MonotonicTime now, const HeldFds& held, bool again);

  void Put(MonotonicTime now, custody::Key key);
  // Returns whether the manager has it, too.
  bool Drop(MonotonicTime now, custody::Key key);

  // Sends what is due. Returns of what Drop() returned true for what nobody but the broker has any more.
  std::vector<custody::Key> Attend(MonotonicTime now, const HeldFds& held);
  // When Attend() is due; max() for never.
  MonotonicTime wake() const;
  // Hangs up when Attend() is due; -1 for none.
  int fd() const { return barrier_.has_value() ? barrier_->fd.get() : -1; }

 private:
  // What the manager has been told to forget, and will have forgotten when the fd hangs up.
  struct Barrier {
    UniqueFd fd;
    std::vector<custody::Key> keys;
    MonotonicTime deadline;
  };

  // Gives it a place, unless there is none.
  bool Admit(custody::Key key);
  // Its place is somebody else's.
  void Leave(MonotonicTime now, custody::Key key);
  void Due(MonotonicTime when);
  void SendWaiting(MonotonicTime now, const HeldFds& held);
  // Sends and counts down. Returns whether it was sent; where not it is due again.
  bool SendOne(MonotonicTime now, const std::string& state, int fd, size_t* budget);
  void RaiseBarrier(MonotonicTime now);

  StoreRecord record_;
  const Send send_;
  // Who has a place, in the manager's hands or on the way there.
  std::set<custody::Key> own_;
  std::set<uint64_t> lifelines_;
  std::map<uint64_t, std::set<custody::Key>> processes_;
  // Who has none.
  std::set<uint64_t> lifelines_left_out_;
  std::map<uint64_t, std::set<custody::Key>> processes_left_out_;
  // Said of those who have none, until all have.
  bool said_full_ = false;

  std::set<custody::Key> outgoing_;
  std::set<custody::Key> removals_;
  // Removed since the last barrier.
  std::vector<custody::Key> removed_;
  std::optional<Barrier> barrier_;
  // When there is something to send.
  MonotonicTime due_ = MonotonicTime::max();
  bool said_unsent_ = false;
};

}  // namespace berth

#endif  // DAEMON_VAULT_FD_STORE_H_
