// The driver error codes that Berth distinguishes, by the numbers of cuda.h, for code that evaluates a refusal's
// `driver_code` named value without the header. driver.cc checks them against the header if it is available.

#ifndef COMMON_CUDA_DRIVER_CODE_H_
#define COMMON_CUDA_DRIVER_CODE_H_

namespace berth::cuda {

// Named value `why` of Driver::Get()'s UNSUPPORTED if a driver is installed but has no device.
inline constexpr char kNoDeviceAtAll[] = "no device";

enum class DriverCode : int {
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kDeviceUnavailable = 46,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kEccUncorrectable = 214,
  kNvlinkUncorrectable = 220,
  kOperatingSystem = 304,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kContextIsDestroyed = 709,
  kAssert = 710,
  kHardwareStackError = 714,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kInvalidAddressSpace = 717,
  kInvalidPc = 718,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kSystemNotReady = 802,
  kSystemDriverMismatch = 803,
  kUnknown = 999,
};

}  // namespace berth::cuda

#endif  // COMMON_CUDA_DRIVER_CODE_H_
