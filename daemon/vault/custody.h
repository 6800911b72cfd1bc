// Custody: the broker's end of its socket to the vault, which keeps duplicates of every fd that must outlive
// the broker.
//
//   BERTH_ASSIGN_OR_RETURN(Inheritance inherited, Custody::Receive(std::move(socket)));
//   for (HeldFd& held : inherited.held) ...         // what an earlier broker left, and the vault's own
//   BERTH_RETURN_IF_ERROR(inherited.custody->Put(key, fd));      // before anyone else gets the fd
//   BERTH_RETURN_IF_ERROR(inherited.custody->Ready());           // once the broker serves
//   ... poll custody->fd(): call Flush() when it has room, ReadNotice() until IsWouldBlock() when it has something

#ifndef DAEMON_VAULT_CUSTODY_H_
#define DAEMON_VAULT_CUSTODY_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/lane.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "daemon/vault/custody_wire.h"

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

using Notice = std::variant<WorkerUp, MonitorUp, WorkerNews, DroppedFd, StopRequested>;

struct Inheritance;

// Custody is thread-safe; ReadNotice() has one caller at a time.
class Custody {
 public:
  // Takes over `socket` and reads all that the vault gives to a new broker; blocks, at most 10 s.
  // Errors: kDeadlineExceeded; kUnavailable if the vault is gone; kInternal if it breaks the protocol.
  static absl::StatusOr<Inheritance> Receive(UniqueFd socket);

  Custody(const Custody&) = delete;
  Custody& operator=(const Custody&) = delete;

  // Gives the vault a duplicate of `fd`, which stays the caller's. On return it survives the broker's death.
  // Waits up to 1 s for room in the socket.
  // Errors: LIMIT at the vault's fd limit; kAlreadyExists if `key` is held; kUnavailable if the vault is gone
  // or takes nothing; nothing is held after an error.
  absl::Status Put(custody::Key key, int fd) ABSL_LOCKS_EXCLUDED(mu_);

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
  absl::Status Ready();

  // Has the vault begin a new incarnation with the next broker. The caller is to end.
  absl::Status Reset();

  // Readable when ReadNotice() has something; the socket stays this object's.
  int fd() const { return socket_.get(); }

  // Never blocks.
  // Errors: IsWouldBlock() when there is nothing; IsEndOfStream() when the vault is gone; kInternal if it
  // breaks the protocol.
  absl::StatusOr<Notice> ReadNotice() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Custody(UniqueFd socket, uint64_t limit, std::set<custody::Key> held)
      : socket_(std::move(socket)), limit_(limit), held_(std::move(held)) {}
  template <typename T>
  absl::Status Send(const T& message, int fd = -1);
  // Sends behind what waits already.
  template <typename T>
  void Queue(const T& message) ABSL_LOCKS_EXCLUDED(mu_);
  void FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const UniqueFd socket_;
  const uint64_t limit_;

  Mutex mu_;
  std::set<custody::Key> held_ ABSL_GUARDED_BY(mu_);
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
