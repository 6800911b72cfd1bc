// Held waiters of a queue: those that no other waiter may pass.

#include <algorithm>

#include "daemon/core/permits/wait_queue.h"

namespace berth::core {

void WaitQueue::Hold(uint64_t number) {
  if (!held_.contains(number)) EnterHeld(number, {});
  Mark(number);
  // Reservations for other waiters no longer apply to this one.
  Entry& entry = entries_.at(number);
  Reopen(entry.tenant->second, entry.line->second);
}

bool WaitQueue::ReservedFrom(uint64_t number, Judge judge) const {
  for (const auto& [ticket, stalls] : held_) {
    if (ticket == number) return false;
    if (judge(At(ticket)) != Verdict::kSkipped) return true;
  }
  return false;
}

bool WaitQueue::ReservedFrom(uint64_t number, Judge judge, Arbiter& arbiter) const {
  if (held_.empty()) return false;
  RefreshHeld(arbiter);
  const bool is_held = IsHeld(number);
  for (Ticket ticket = NextHeld(0); ticket != 0 && (!is_held || ticket < number); ticket = NextHeld(ticket)) {
    if (judge(At(ticket)) != Verdict::kSkipped) return true;
  }
  return false;
}

void WaitQueue::EnterHeld(Ticket ticket, const Stalls& stalls) {
  Stalls& entered = held_[ticket];
  // Whether a pool is held depends on this board.
  const bool by_hold = std::any_of(stalls.begin(), stalls.end(),
                                   [](const Stall& stall) { return stall.gauge.kind == Gauge::Kind::kHeld; });
  if (!by_hold) entered = stalls;
  held_board_.Enter(HeldClassOf(ticket), ticket, entered);
}

void WaitQueue::LeaveHeld(Ticket ticket) {
  const auto at = held_.find(ticket);
  held_board_.Leave(HeldClassOf(ticket), ticket, at->second);
  held_.erase(at);
}

void WaitQueue::ReopenHeld(Ticket ticket) {
  Stalls& stalls = held_.at(ticket);
  held_board_.Leave(HeldClassOf(ticket), ticket, stalls);
  stalls.clear();
  held_board_.Enter(HeldClassOf(ticket), ticket, stalls);
}

WaitQueue::Ticket WaitQueue::NextHeld(Ticket after) const {
  Ticket next = 0;
  for (const Class& of : held_board_.Live()) {
    const Ticket first = held_board_.First(of, after);
    if (first != 0 && (next == 0 || first < next)) next = first;
  }
  return next;
}

void WaitQueue::RefreshHeld(Arbiter& arbiter) const {
  held_board_.Refresh([&](uint64_t tenant, const Gauge& gauge) { return Read(arbiter, tenant, gauge); },
                      [&](Gauge::Kind kind) { return arbiter.VersionOf(kind); });
}

}  // namespace berth::core
