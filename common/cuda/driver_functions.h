// The functions of libcuda that Berth calls. Only driver.cc includes this header.

#ifndef COMMON_CUDA_DRIVER_FUNCTIONS_H_
#define COMMON_CUDA_DRIVER_FUNCTIONS_H_

#ifdef BERTH_HAVE_CUDA_HEADERS
#include <cuda.h>

namespace berth::cuda {

// Version 1 of these functions is off by default in the kernel module; from CUDA 12 on the plain names mean version 2.
#if CUDA_VERSION < 12000
#define cuStreamWaitValue64 cuStreamWaitValue64_v2
#define cuStreamWriteValue64 cuStreamWriteValue64_v2
inline constexpr CUdevice_attribute kStreamMemoryOps = CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V2;
#else
inline constexpr CUdevice_attribute kStreamMemoryOps = CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
#endif

// Every function of libcuda that Berth calls. cuda.h maps a plain name to the version of its declarations.
#define BERTH_CUDA_FUNCTIONS(X)        \
  X(cuInit)                            \
  X(cuGetErrorName)                    \
  X(cuDeviceGetCount)                  \
  X(cuDeviceGet)                       \
  X(cuDeviceGetName)                   \
  X(cuDeviceTotalMem)                  \
  X(cuDeviceGetAttribute)              \
  X(cuDeviceCanAccessPeer)             \
  X(cuMemGetAllocationGranularity)     \
  X(cuMemCreate)                       \
  X(cuMemExportToShareableHandle)      \
  X(cuMemImportFromShareableHandle)    \
  X(cuMemRelease)                      \
  X(cuMemAddressReserve)               \
  X(cuMemAddressFree)                  \
  X(cuMemMap)                          \
  X(cuMemSetAccess)                    \
  X(cuMemUnmap)                        \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuDevicePrimaryCtxRelease)         \
  X(cuCtxSetCurrent)                   \
  X(cuCtxGetCurrent)                   \
  X(cuCtxGetDevice)                    \
  X(cuCtxSynchronize)                  \
  X(cuMemAlloc)                        \
  X(cuMemFree)                         \
  X(cuIpcGetMemHandle)                 \
  X(cuIpcOpenMemHandle)                \
  X(cuIpcCloseMemHandle)               \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuMemcpyHtoD)                      \
  X(cuMemcpyHtoDAsync)                 \
  X(cuMemcpyDtoH)                      \
  X(cuMemsetD8)                        \
  X(cuMemGetInfo)                      \
  X(cuModuleLoadData)                  \
  X(cuModuleUnload)                    \
  X(cuModuleGetFunction)               \
  X(cuLaunchKernel)                    \
  X(cuStreamCreate)                    \
  X(cuStreamDestroy)                   \
  X(cuStreamQuery)                     \
  X(cuStreamSynchronize)               \
  X(cuStreamWaitEvent)                 \
  X(cuEventCreate)                     \
  X(cuEventDestroy)                    \
  X(cuEventRecord)                     \
  X(cuEventQuery)                      \
  X(cuStreamWaitValue64)               \
  X(cuStreamWriteValue64)              \
  X(cuMemHostRegister)                 \
  X(cuMemHostGetDevicePointer)         \
  X(cuMemHostUnregister)               \
  X(cuMemAllocAsync)                   \
  X(cuMemFreeAsync)                    \
  X(cuMemsetD8Async)

#define BERTH_TEXT(name) BERTH_TEXT_OF_EXPANDED(name)
#define BERTH_TEXT_OF_EXPANDED(name) #name

struct Functions {
#define BERTH_DECLARE(name) decltype(&::name) name##_ = nullptr;
  BERTH_CUDA_FUNCTIONS(BERTH_DECLARE)
#undef BERTH_DECLARE
  // Looked up by name, independent of the headers: the UUID of a MIG instance's parent, and the instance's own (CUDA
  // 11.4).
  using GetUuid = CUresult (*)(CUuuid*, CUdevice);
  GetUuid device_uuid = nullptr, instance_uuid = nullptr;
};

}  // namespace berth::cuda

#endif  // BERTH_HAVE_CUDA_HEADERS

#endif  // COMMON_CUDA_DRIVER_FUNCTIONS_H_
