// WaitQueue: who waits for units of one pool, and in what order they may have them.
//
// First come, first served, and work-conserving: one that fits is taken past those that don't, until the
// first of them has been passed `passes_before_hold` times. Then nobody passes it, and what comes back is
// kept for it. Thread-compatible.

#ifndef DAEMON_CORE_WAIT_QUEUE_H_
#define DAEMON_CORE_WAIT_QUEUE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "daemon/core/request_memory.h"
#include "daemon/core/types.h"

namespace berth::core {

// Who asks for permits.
struct Asker {
  SessionId session;
  Tenant tenant;
  ProcessInfo process;
};

struct Waiter {
  RequestId request;
  Asker asker;
  AcquireRequest what;
  absl::Time since;
  // How often somebody behind it was granted first.
  uint64_t passes = 0;
};

class WaitQueue {
 public:
  using Condition = absl::FunctionRef<bool(const Waiter&)>;

  explicit WaitQueue(uint64_t passes_before_hold) : passes_before_hold_(passes_before_hold) {}

  void Push(Waiter waiter);
  // Returns nothing if the request does not wait here.
  std::optional<Waiter> Remove(const RequestId& request);
  bool Contains(const RequestId& request) const { return tickets_.contains(request); }
  // A retry of the request has another deadline. Requires: it waits here.
  void SetDeadline(const RequestId& request, absl::Time deadline);

  // Whether somebody new may be granted before those that wait.
  bool MayBePassed() const;
  // Somebody new was.
  void CountPass();
  // Takes the next that may be granted, given what fits now, and counts that it passed those before it.
  std::optional<Waiter> TakeNext(Condition fits);
  // Takes all those for which `condition` holds, in order; of one session, or of everybody.
  std::vector<Waiter> TakeOf(SessionId session, Condition condition);
  std::vector<Waiter> TakeIf(Condition condition);

  struct Expired {
    Waiter waiter;
    // Its place in the queue, 1 is next.
    uint64_t position = 0;
  };
  // Takes one whose deadline is not after `now`.
  std::optional<Expired> TakeExpired(absl::Time now);
  // InfiniteFuture for none.
  absl::Time next_deadline() const;

  uint64_t size() const { return waiters_.size(); }
  uint64_t CountOf(SessionId session) const;
  // In order.
  void ForEach(absl::FunctionRef<void(const Waiter&)> visit) const;

 private:
  // Tickets rise with arrival.
  using Ticket = uint64_t;

  Waiter Take(std::map<Ticket, Waiter>::iterator at);

  const uint64_t passes_before_hold_;
  Ticket last_ticket_ = 0;
  std::map<Ticket, Waiter> waiters_;
  absl::flat_hash_map<RequestId, Ticket> tickets_;
  std::set<std::pair<absl::Time, Ticket>> deadlines_;
  std::set<std::pair<SessionId, Ticket>> by_session_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_WAIT_QUEUE_H_
