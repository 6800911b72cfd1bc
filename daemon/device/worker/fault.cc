#include "daemon/device/worker/fault.h"

#include <optional>

#include <berth/error.h>

#include "absl/strings/numbers.h"
#include "common/cuda/driver_code.h"

namespace berth {

FaultDirective DirectiveOf(int driver_code) {
  using cuda::DriverCode;
  switch (static_cast<DriverCode>(driver_code)) {
    case DriverCode::kInvalidValue:
    case DriverCode::kOutOfMemory:
    // The system refused a resource, such as an fd.
    case DriverCode::kOperatingSystem:
    case DriverCode::kNotReady:
    case DriverCode::kNotPermitted:
    case DriverCode::kNotSupported:
      return FaultDirective::kGoOn;
    case DriverCode::kNotInitialized:
    case DriverCode::kDeinitialized:
    case DriverCode::kIllegalAddress:
    case DriverCode::kLaunchTimeout:
    case DriverCode::kContextIsDestroyed:
    case DriverCode::kAssert:
    case DriverCode::kHardwareStackError:
    case DriverCode::kIllegalInstruction:
    case DriverCode::kMisalignedAddress:
    case DriverCode::kInvalidAddressSpace:
    case DriverCode::kInvalidPc:
    case DriverCode::kLaunchFailed:
    case DriverCode::kUnknown:
      return FaultDirective::kRestartWorker;
    case DriverCode::kSystemNotReady:
    case DriverCode::kSystemDriverMismatch:
      return FaultDirective::kStopDevice;
    case DriverCode::kDeviceUnavailable:
    case DriverCode::kNoDevice:
    case DriverCode::kInvalidDevice:
    case DriverCode::kEccUncorrectable:
    case DriverCode::kNvlinkUncorrectable:
      return FaultDirective::kLoseDevice;
  }
  return FaultDirective::kEscalate;
}

FaultDirective DirectiveOf(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value()) return FaultDirective::kGoOn;
  const auto code = details->metadata.find("driver_code");
  int number = 0;
  // Without a code, or with 0, the error arose before any driver call.
  if (code == details->metadata.end() || !absl::SimpleAtoi(code->second, &number) || number == 0) {
    return FaultDirective::kGoOn;
  }
  return DirectiveOf(number);
}

WorkerExit ExitFor(FaultDirective directive) {
  switch (directive) {
    case FaultDirective::kGoOn:
      break;
    case FaultDirective::kRestartWorker:
      return WorkerExit::kPoisoned;
    case FaultDirective::kStopDevice:
      return WorkerExit::kUnusable;
    case FaultDirective::kLoseDevice:
      return WorkerExit::kDeviceLost;
    case FaultDirective::kEscalate:
      return WorkerExit::kUnjudged;
  }
  return WorkerExit::kFailed;
}

}  // namespace berth
