#include "daemon/core/permits/virtual_clock.h"

#include <algorithm>
#include <utility>

namespace berth::core {

double VirtualClock::Enter(const Account& account) {
  const auto found = ahead_.find(account);
  if (found == ahead_.end()) return now_;
  const double own = found->second;
  in_order_.erase({own, account});
  ahead_.erase(found);
  return own;
}

bool VirtualClock::Leave(const Account& account, double own) {
  if (own <= now_) return false;
  ahead_.emplace(account, own);
  in_order_.emplace(own, account);
  return true;
}

std::vector<Account> VirtualClock::Advance(double start) {
  now_ = std::max(now_, start);
  std::vector<Account> caught_up;
  while (!in_order_.empty() && in_order_.begin()->first <= now_) {
    Account account = std::move(in_order_.extract(in_order_.begin()).value().second);
    ahead_.erase(account);
    caught_up.push_back(std::move(account));
  }
  return caught_up;
}

}  // namespace berth::core
