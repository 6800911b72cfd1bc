#include "daemon/device/memory/budget_resource.h"

#include <berth/error.h>

namespace berth {

absl::StatusOr<MemoryBlock> BudgetResource::Allocate(Bytes bytes, absl::string_view tag) {
  // Bytes that cannot be reaped stay charged, and the error shows them.
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
