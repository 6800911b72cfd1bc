// BudgetResource bounds the bytes that are outstanding inside.

#ifndef DAEMON_DEVICE_BUDGET_RESOURCE_H_
#define DAEMON_DEVICE_BUDGET_RESOURCE_H_

#include <memory>
#include <utility>

#include "daemon/device/memory_decorator.h"

namespace berth {

// It keeps no count of its own: what is charged is what the resource inside says is outstanding, so nothing needs to be
// rolled back, and bytes are free when they are back and not before.
class BudgetResource : public MemoryDecorator {
 public:
  BudgetResource(std::unique_ptr<MemoryResource> inner, Bytes limit)
      : MemoryDecorator(std::move(inner)), limit_(limit) {}

  Bytes limit() const { return limit_; }

  // What fits exactly is granted. What passes the limit alone is refused at once; what does not fit beside the others,
  // after one Reap().
  // Errors: OVER_BUDGET.
  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override;

 private:
  Bytes Remaining() const { return SaturatingSub(limit_, outstanding()); }

  const Bytes limit_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_BUDGET_RESOURCE_H_
