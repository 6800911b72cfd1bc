#include "daemon/device/worker/device_identity.h"

#include <string>

#include <berth/error.h>

#include "common/status_macros.h"

namespace berth {

absl::StatusOr<int> FindCudaOrdinal(cuda::Driver& driver, uint32_t likely, absl::string_view uuid) {
  BERTH_ASSIGN_OR_RETURN(const int count, driver.DeviceCount());
  absl::Status silent;
  const auto is_at = [&](int ordinal) {
    const absl::StatusOr<std::string> found = driver.DeviceUuid(ordinal);
    silent.Update(found.status());
    return found.ok() && *found == uuid;
  };
  const int first = static_cast<int>(likely);
  if (first < count && is_at(first)) return first;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    if (ordinal != first && is_at(ordinal)) return ordinal;
  }
  // The device may be the silent one.
  BERTH_RETURN_IF_ERROR(silent);
  return Refuse(Reason::kNotFound, "no {kind} {id} among the devices that CUDA lists: {count}",
                {{"kind", "device"}, {"id", uuid}, {"count", count}});
}

}  // namespace berth
