#include "client/sdk/devices/driver_absence.h"

#include <string>

#include <berth/error.h>

#include "common/cuda/driver_code.h"

namespace berth::internal {

std::optional<Absence> AbsenceOfDriver(const absl::Status& driver) {
  if (!IsRefusal(driver, Reason::kUnsupported)) return std::nullopt;
  const bool no_device = NamedValueOf(driver, "why") == cuda::kNoDeviceAtAll;
  return Absence{.kind = no_device ? Absence::Kind::kNoDevice : Absence::Kind::kNoDriver,
                 .why = std::string(driver.message())};
}

Absence AbsenceOnHostMemory(const absl::Status& driver) {
  return AbsenceOfDriver(driver).value_or(
      Absence{.kind = Absence::Kind::kNoDevice, .why = "the node's devices are host memory"});
}

}  // namespace berth::internal
