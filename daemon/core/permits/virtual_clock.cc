#include "daemon/core/permits/virtual_clock.h"

#include <algorithm>
#include <utility>

namespace berth::core {

void OwnClock::Start(double common, uint64_t last_charge) {
  starts_.push_back({common, last_charge});
  Trim();
  // Only a charge that is taken back could show the difference.
  if (starts_.size() > kMostStarts) starts_.erase(starts_.end() - 2);
}

void OwnClock::Add(double cost) {
  for (StartPoint& start : starts_) start.clock += cost;
}

void OwnClock::TakeBack(const ClockCharge& charge) {
  for (StartPoint& start : starts_) {
    if (start.after < charge.number) start.clock -= charge.cost;
  }
  Trim();
}

void OwnClock::Trim() {
  // A charge taken back moves an earlier start at least as far as a later one.
  double latest = starts_.back().clock;
  size_t left = starts_.size() - 1;
  for (size_t i = starts_.size() - 1; i-- > 0;) {
    if (starts_[i].clock <= latest) continue;
    latest = starts_[i].clock;
    starts_[--left] = starts_[i];
  }
  starts_.erase(starts_.begin(), starts_.begin() + left);
}

OwnClock VirtualClock::Enter(const Account& account) {
  const auto found = ahead_.find(account);
  if (found == ahead_.end()) return OwnClock(now_, charges_);
  OwnClock own = std::move(found->second);
  in_order_.erase({own.value(), account});
  ahead_.erase(found);
  own.Start(now_, charges_);
  return own;
}

bool VirtualClock::Leave(const Account& account, OwnClock own) {
  if (own.value() <= now_) return false;
  in_order_.emplace(own.value(), account);
  ahead_.emplace(account, std::move(own));
  return true;
}

std::vector<Account> VirtualClock::Advance(double start) {
  ++charges_;
  now_ = std::max(now_, start);
  std::vector<Account> caught_up;
  while (!in_order_.empty() && in_order_.begin()->first <= now_) {
    Account account = std::move(in_order_.extract(in_order_.begin()).value().second);
    ahead_.erase(account);
    caught_up.push_back(std::move(account));
  }
  return caught_up;
}

std::optional<bool> VirtualClock::TakeBack(const Account& account, const ClockCharge& charge) {
  const auto found = ahead_.find(account);
  if (found == ahead_.end()) return std::nullopt;
  OwnClock own = std::move(found->second);
  in_order_.erase({own.value(), account});
  ahead_.erase(found);
  own.TakeBack(charge);
  return Leave(account, std::move(own));
}

}  // namespace berth::core
