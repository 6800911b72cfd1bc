#include "daemon/core/virtual_clock.h"

#include <algorithm>
#include <utility>

namespace berth::core {

double VirtualClock::Enter(const Tenant& tenant) {
  const auto found = ahead_.find(tenant);
  if (found == ahead_.end()) return now_;
  const double own = found->second;
  in_order_.erase({own, tenant});
  ahead_.erase(found);
  return own;
}

bool VirtualClock::Leave(const Tenant& tenant, double own) {
  if (own <= now_) return false;
  ahead_.emplace(tenant, own);
  in_order_.emplace(own, tenant);
  return true;
}

std::vector<Tenant> VirtualClock::Advance(double start) {
  now_ = std::max(now_, start);
  std::vector<Tenant> caught_up;
  while (!in_order_.empty() && in_order_.begin()->first <= now_) {
    Tenant tenant = std::move(in_order_.extract(in_order_.begin()).value().second);
    ahead_.erase(tenant);
    caught_up.push_back(std::move(tenant));
  }
  return caught_up;
}

}  // namespace berth::core
