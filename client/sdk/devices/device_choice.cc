#include "client/sdk/devices/device_choice.h"

#include <berth/error.h>

#include "common/status_macros.h"

namespace berth::internal {

absl::StatusOr<int> ChooseDevice(cuda::Driver& driver, absl::string_view own, absl::string_view wanted) {
  const absl::StatusOr<int> home = cuda::FindDevice(driver, own);
  if (wanted.empty() || wanted == own) return home;
  BERTH_ASSIGN_OR_RETURN(const int ordinal, cuda::FindDevice(driver, wanted));
  if (!home.ok()) return ordinal;
  BERTH_ASSIGN_OR_RETURN(const bool reaches, driver.CanAccessPeer(ordinal, *home));
  if (reaches) return ordinal;
  return Refuse(Reason::kUnsupported, "device {device} cannot map memory of device {of}: no {capability}",
                {{"device", wanted}, {"of", own}, {"capability", "peer access"}});
}

}  // namespace berth::internal
