// BudgetResource limits the outstanding bytes of the resource inside.

#ifndef DAEMON_DEVICE_MEMORY_BUDGET_RESOURCE_H_
#define DAEMON_DEVICE_MEMORY_BUDGET_RESOURCE_H_

#include <memory>
#include <utility>

#include "daemon/device/memory/memory_decorator.h"

namespace berth {

// Has no counter of its own: the charge is outstanding() of the resource inside. No rollback is therefore needed, and
// bytes are free exactly when they have been given back.
class BudgetResource : public MemoryDecorator {
 public:
  BudgetResource(std::unique_ptr<MemoryResource> inner, Bytes limit)
      : MemoryDecorator(std::move(inner)), limit_(limit) {}

  Bytes limit() const { return limit_; }

  // Grants a request that fits exactly. Rejects a request above the limit at once. Rejects a request that does not fit
  // beside the outstanding bytes only after one Reap().
  // Errors: OVER_BUDGET.
  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override;

 private:
  Bytes Remaining() const { return SaturatingSub(limit_, outstanding()); }

  const Bytes limit_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_BUDGET_RESOURCE_H_
