#include "daemon/core/virtual_clock.h"

#include <algorithm>

namespace berth::core {

double VirtualClock::Enter(const Tenant& tenant) {
  const auto found = ahead_.find(tenant);
  if (found == ahead_.end()) return now_;
  const double own = found->second;
  in_order_.erase({own, tenant});
  ahead_.erase(found);
  return own;
}

void VirtualClock::Leave(const Tenant& tenant, double own) {
  if (own <= now_) return;
  ahead_.emplace(tenant, own);
  in_order_.emplace(own, tenant);
}

void VirtualClock::Advance(double start) {
  now_ = std::max(now_, start);
  while (!in_order_.empty() && in_order_.begin()->first <= now_) {
    ahead_.erase(in_order_.begin()->second);
    in_order_.erase(in_order_.begin());
  }
}

}  // namespace berth::core
