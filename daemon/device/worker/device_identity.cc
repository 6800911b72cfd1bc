#include "daemon/device/worker/device_identity.h"

#include <string>

#include <berth/error.h>

#include "common/status_macros.h"

namespace berth {

absl::Status CheckDevice(cuda::Driver& driver, int ordinal, absl::string_view uuid) {
  BERTH_ASSIGN_OR_RETURN(const std::string found, driver.DeviceUuid(ordinal));
  if (found == uuid) return absl::OkStatus();
  return Refuse(Reason::kNotFound, "no {kind} {id} at CUDA's ordinal {ordinal}, which is {found}",
                {{"kind", "device"}, {"id", uuid}, {"ordinal", ordinal}, {"found", found}});
}

}  // namespace berth
