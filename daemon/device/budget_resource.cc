#include "daemon/device/budget_resource.h"

#include "common/error.h"

namespace berth {

absl::StatusOr<MemoryBlock> BudgetResource::Allocate(Bytes bytes, absl::string_view tag) {
  // What cannot be reaped stays charged, and is seen in the refusal.
  if (bytes <= limit_ && bytes > Remaining()) inner().Reap().IgnoreError();
  if (bytes <= Remaining()) return inner().Allocate(bytes, tag);
  return Refuse(
      Reason::kOverBudget,
      "{layer} budget on device {device}: requested {requested} bytes, current {current}, remaining "
      "{remaining}, limit {limit}",
      {{"layer", "device_runtime"},
       {"device", device()},
       {"requested", bytes.count()},
       {"current", outstanding().count()},
       {"remaining", Remaining().count()},
       {"limit", limit_.count()}});
}

}  // namespace berth
