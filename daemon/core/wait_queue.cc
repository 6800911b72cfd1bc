#include "daemon/core/wait_queue.h"

#include <iterator>

#include "daemon/core/invariant.h"

namespace berth::core {

void WaitQueue::Push(Waiter waiter) {
  const Ticket ticket = ++last_ticket_;
  const bool fresh = tickets_.emplace(waiter.request, ticket).second;
  BERTH_INVARIANT(fresh);
  deadlines_.emplace(waiter.what.deadline, ticket);
  by_session_.emplace(waiter.asker.session, ticket);
  waiters_.emplace(ticket, std::move(waiter));
}

Waiter WaitQueue::Take(std::map<Ticket, Waiter>::iterator at) {
  const Ticket ticket = at->first;
  Waiter waiter = std::move(at->second);
  waiters_.erase(at);
  tickets_.erase(waiter.request);
  deadlines_.erase({waiter.what.deadline, ticket});
  by_session_.erase({waiter.asker.session, ticket});
  return waiter;
}

std::optional<Waiter> WaitQueue::Remove(const RequestId& request) {
  const auto ticket = tickets_.find(request);
  if (ticket == tickets_.end()) return std::nullopt;
  return Take(waiters_.find(ticket->second));
}

void WaitQueue::SetDeadline(const RequestId& request, absl::Time deadline) {
  const auto ticket = tickets_.find(request);
  BERTH_INVARIANT(ticket != tickets_.end());
  Waiter& waiter = waiters_.at(ticket->second);
  deadlines_.erase({waiter.what.deadline, ticket->second});
  waiter.what.deadline = deadline;
  deadlines_.emplace(deadline, ticket->second);
}

bool WaitQueue::MayBePassed() const {
  // Whoever passes another passes all before that one too, so none has been passed more often than the first.
  return waiters_.empty() || waiters_.begin()->second.passes < passes_before_hold_;
}

void WaitQueue::CountPass() {
  for (auto& [ticket, waiter] : waiters_) ++waiter.passes;
}

std::optional<Waiter> WaitQueue::TakeNext(Condition fits) {
  for (auto it = waiters_.begin(); it != waiters_.end(); ++it) {
    if (fits(it->second)) {
      for (auto passed = waiters_.begin(); passed != it; ++passed) ++passed->second.passes;
      return Take(it);
    }
    if (!MayBePassed()) return std::nullopt;
  }
  return std::nullopt;
}

std::vector<Waiter> WaitQueue::TakeOf(SessionId session, Condition condition) {
  std::vector<Waiter> taken;
  for (auto it = by_session_.lower_bound({session, 0}); it != by_session_.end() && it->first == session;) {
    const auto at = waiters_.find(it->second);
    ++it;
    if (condition(at->second)) taken.push_back(Take(at));
  }
  return taken;
}

std::vector<Waiter> WaitQueue::TakeIf(Condition condition) {
  std::vector<Waiter> taken;
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    const auto at = it++;
    if (condition(at->second)) taken.push_back(Take(at));
  }
  return taken;
}

std::optional<WaitQueue::Expired> WaitQueue::TakeExpired(absl::Time now) {
  if (deadlines_.empty() || next_deadline() > now) return std::nullopt;
  const auto at = waiters_.find(deadlines_.begin()->second);
  const uint64_t position = std::distance(waiters_.begin(), at) + 1;
  return Expired{Take(at), position};
}

absl::Time WaitQueue::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

uint64_t WaitQueue::CountOf(SessionId session) const {
  return std::distance(by_session_.lower_bound({session, 0}), by_session_.upper_bound({session, UINT64_MAX}));
}

void WaitQueue::ForEach(absl::FunctionRef<void(const Waiter&)> visit) const {
  for (const auto& [ticket, waiter] : waiters_) visit(waiter);
}

}  // namespace berth::core
