#include "common/cuda/driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cuda/driver_code.h"
#include "common/cuda/driver_functions.h"
#include "common/cuda/loader_folders.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#ifdef BERTH_HAVE_CUDA_HEADERS
#include <cuda.h>
#endif

namespace berth::cuda {
namespace {

absl::Status Absent(absl::string_view why) {
  return Refuse(Reason::kUnsupported, "no {capability}: {why}", {{"capability", "CUDA"}, {"why", why}});
}

// Named value of the refusal where the node has no libcuda.so.1.
constexpr char kNotInstalled[] = "not_installed";

// Returns a link of the library's name whose target is missing, as during an update of the driver; empty if there is
// none. The loader reports such a link as a library that is not there.
std::string FindBrokenLink() {
  for (const std::string& folder : LoaderFolders()) {
    std::string link = absl::StrCat(folder, "/libcuda.so.1");
    struct stat entry = {};
    if (::lstat(link.c_str(), &entry) == 0 && S_ISLNK(entry.st_mode) && ::stat(link.c_str(), &entry) < 0) return link;
  }
  return "";
}

// The library stays loaded permanently, also after an error: unloading libcuda is not safe.
absl::StatusOr<void*> LoadLibrary() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const std::string why = ::dlerror();
  absl::Status absent = Absent(why);
  // Any other text is of a library that is there and cannot be loaded.
  if (absl::StartsWith(why, "libcuda.so.1: cannot open shared object file: No such file")) {
    const std::string link = FindBrokenLink();
    if (!link.empty()) return Absent(absl::StrCat(link, " is a link to a missing file"));
    AddNamedValue({kNotInstalled, "libcuda.so.1"}, &absent);
  }
  return absent;
}

#ifdef BERTH_HAVE_CUDA_HEADERS

#define BERTH_SAME_CODE(ours, theirs) static_assert(static_cast<int>(DriverCode::ours) == (theirs))
BERTH_SAME_CODE(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
BERTH_SAME_CODE(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
BERTH_SAME_CODE(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
BERTH_SAME_CODE(kDeinitialized, CUDA_ERROR_DEINITIALIZED);
BERTH_SAME_CODE(kDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
BERTH_SAME_CODE(kNoDevice, CUDA_ERROR_NO_DEVICE);
BERTH_SAME_CODE(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
BERTH_SAME_CODE(kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
BERTH_SAME_CODE(kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
BERTH_SAME_CODE(kOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM);
BERTH_SAME_CODE(kNotReady, CUDA_ERROR_NOT_READY);
BERTH_SAME_CODE(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
BERTH_SAME_CODE(kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
BERTH_SAME_CODE(kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
BERTH_SAME_CODE(kAssert, CUDA_ERROR_ASSERT);
BERTH_SAME_CODE(kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
BERTH_SAME_CODE(kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
BERTH_SAME_CODE(kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
BERTH_SAME_CODE(kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
BERTH_SAME_CODE(kInvalidPc, CUDA_ERROR_INVALID_PC);
BERTH_SAME_CODE(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
BERTH_SAME_CODE(kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
BERTH_SAME_CODE(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
BERTH_SAME_CODE(kSystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY);
BERTH_SAME_CODE(kSystemDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
BERTH_SAME_CODE(kUnknown, CUDA_ERROR_UNKNOWN);
#undef BERTH_SAME_CODE

// Returns from the method with the driver's error unless `name` succeeds.
#define BERTH_CALL(name, ...)                                                              \
  do {                                                                                     \
    if (const CUresult result = functions_.name##_(__VA_ARGS__); result != CUDA_SUCCESS) { \
      return Error(#name, result);                                                         \
    }                                                                                      \
  } while (false)

CUmemAllocationProp PropertiesOf(int ordinal) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal;
  return properties;
}

class LoadedDriver : public Driver {
 public:
  static absl::StatusOr<std::unique_ptr<Driver>> Load() {
    BERTH_ASSIGN_OR_RETURN(void* const library, LoadLibrary());
    auto driver = std::unique_ptr<LoadedDriver>(new LoadedDriver);
#define BERTH_LOAD(name)                                                                                \
  driver->functions_.name##_ = reinterpret_cast<decltype(&::name)>(::dlsym(library, BERTH_TEXT(name))); \
  if (driver->functions_.name##_ == nullptr) return Absent("libcuda.so.1 is too old: no " BERTH_TEXT(name));
    BERTH_CUDA_FUNCTIONS(BERTH_LOAD)
#undef BERTH_LOAD
    driver->functions_.device_uuid = reinterpret_cast<Functions::GetUuid>(::dlsym(library, "cuDeviceGetUuid"));
    driver->functions_.instance_uuid = reinterpret_cast<Functions::GetUuid>(::dlsym(library, "cuDeviceGetUuid_v2"));
    if (driver->functions_.device_uuid == nullptr) return Absent("libcuda.so.1 is too old: no cuDeviceGetUuid");
    const CUresult result = driver->functions_.cuInit_(0);
    if (result == CUDA_ERROR_NO_DEVICE) return Absent(kNoDeviceAtAll);
    if (result == CUDA_ERROR_STUB_LIBRARY) return Absent("libcuda.so.1 is the toolkit's stub");
    if (result != CUDA_SUCCESS) return driver->Error("cuInit", result);
    return driver;
  }

  absl::StatusOr<int> DeviceCount() override {
    int count = 0;
    BERTH_CALL(cuDeviceGetCount, &count);
    return count;
  }

  absl::StatusOr<std::string> DeviceUuid(int ordinal) override {
    BERTH_ASSIGN_OR_RETURN(const CUdevice device, Device(ordinal));
    CUuuid uuid = {};
    CUresult result = functions_.device_uuid(&uuid, device);
    if (result != CUDA_SUCCESS) return Error("cuDeviceGetUuid", result);
    CUuuid own = uuid;
    if (functions_.instance_uuid != nullptr) result = functions_.instance_uuid(&own, device);
    if (result != CUDA_SUCCESS) return Error("cuDeviceGetUuid_v2", result);
    std::string text = absl::string_view(own.bytes, 16) == absl::string_view(uuid.bytes, 16) ? "GPU" : "MIG";
    for (int i = 0; i < 16; ++i) {
      if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
      absl::StrAppendFormat(&text, "%02x", static_cast<uint8_t>(own.bytes[i]));
    }
    return text;
  }

  absl::StatusOr<std::string> DeviceName(int ordinal) override {
    BERTH_ASSIGN_OR_RETURN(const CUdevice device, Device(ordinal));
    char name[256] = {};
    BERTH_CALL(cuDeviceGetName, name, sizeof(name) - 1, device);
    return std::string(name);
  }

  absl::StatusOr<Bytes> DeviceTotalMemory(int ordinal) override {
    BERTH_ASSIGN_OR_RETURN(const CUdevice device, Device(ordinal));
    size_t bytes = 0;
    BERTH_CALL(cuDeviceTotalMem, &bytes, device);
    return Bytes(bytes);
  }

  absl::StatusOr<int> Attribute(int ordinal, DeviceAttribute attribute) override {
    switch (attribute) {
      case DeviceAttribute::kMultiprocessors:
        return RawAttribute(ordinal, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
      case DeviceAttribute::kComputeCapabilityMajor:
        return RawAttribute(ordinal, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
      case DeviceAttribute::kComputeCapabilityMinor:
        return RawAttribute(ordinal, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
      case DeviceAttribute::kStreamMemoryOperations:
        return RawAttribute(ordinal, kStreamMemoryOps);
      case DeviceAttribute::kManyContexts: {
        BERTH_ASSIGN_OR_RETURN(const int mode, RawAttribute(ordinal, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE));
        return mode == CU_COMPUTEMODE_DEFAULT ? 1 : 0;
      }
      case DeviceAttribute::kThreadsPerMultiprocessor:
        return RawAttribute(ordinal, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
      case DeviceAttribute::kSharedMemoryPerBlock:
        return RawAttribute(ordinal, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
      case DeviceAttribute::kL2Cache:
        return RawAttribute(ordinal, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
      case DeviceAttribute::kMemoryAsFd:
        break;
    }
    BERTH_ASSIGN_OR_RETURN(const int managed,
                           RawAttribute(ordinal, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
    if (managed == 0) return 0;
    return RawAttribute(ordinal, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  }

  absl::StatusOr<bool> CanAccessPeer(int ordinal, int peer) override {
    CUdevice device, other;
    BERTH_CALL(cuDeviceGet, &device, ordinal);
    BERTH_CALL(cuDeviceGet, &other, peer);
    int can = 0;
    BERTH_CALL(cuDeviceCanAccessPeer, &can, device, other);
    return can != 0;
  }

  absl::StatusOr<Bytes> AllocationGranularity(int ordinal) override {
    const CUmemAllocationProp properties = PropertiesOf(ordinal);
    size_t granularity = 0;
    BERTH_CALL(cuMemGetAllocationGranularity, &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    return Bytes(granularity);
  }

  absl::StatusOr<Allocation> CreateMemory(int ordinal, Bytes bytes) override {
    const CUmemAllocationProp properties = PropertiesOf(ordinal);
    CUmemGenericAllocationHandle handle = 0;
    BERTH_CALL(cuMemCreate, &handle, bytes.count(), &properties, 0);
    return Allocation{handle};
  }

  absl::StatusOr<UniqueFd> ExportFd(Allocation allocation) override {
    int fd = -1;
    BERTH_CALL(cuMemExportToShareableHandle, &fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return UniqueFd(fd);
  }

  absl::StatusOr<Allocation> ImportFd(int fd) override {
    CUmemGenericAllocationHandle handle = 0;
    void* const os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
    BERTH_CALL(cuMemImportFromShareableHandle, &handle, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return Allocation{handle};
  }

  absl::Status ReleaseMemory(Allocation allocation) override {
    BERTH_CALL(cuMemRelease, allocation);
    return absl::OkStatus();
  }

  absl::StatusOr<DevicePointer> ReserveAddress(Bytes bytes) override {
    CUdeviceptr address = 0;
    BERTH_CALL(cuMemAddressReserve, &address, bytes.count(), 0, 0, 0);
    return DevicePointer{address};
  }

  absl::Status FreeAddress(DevicePointer address, Bytes bytes) override {
    BERTH_CALL(cuMemAddressFree, address, bytes.count());
    return absl::OkStatus();
  }

  absl::Status MapMemory(DevicePointer address, Bytes bytes, Allocation allocation) override {
    BERTH_CALL(cuMemMap, address, bytes.count(), 0, allocation, 0);
    return absl::OkStatus();
  }

  absl::Status SetAccess(DevicePointer address, Bytes bytes, int ordinal, Access access) override {
    CUmemAccessDesc description = {};
    description.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    description.location.id = ordinal;
    description.flags =
        access == Access::kReadOnly ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    BERTH_CALL(cuMemSetAccess, address, bytes.count(), &description, 1);
    return absl::OkStatus();
  }

  absl::Status UnmapMemory(DevicePointer address, Bytes bytes) override {
    BERTH_CALL(cuMemUnmap, address, bytes.count());
    return absl::OkStatus();
  }

  absl::StatusOr<Context> RetainPrimaryContext(int ordinal) override {
    BERTH_ASSIGN_OR_RETURN(const CUdevice device, Device(ordinal));
    CUcontext context = nullptr;
    BERTH_CALL(cuDevicePrimaryCtxRetain, &context, device);
    return reinterpret_cast<Context>(context);
  }

  absl::Status ReleasePrimaryContext(int ordinal) override {
    BERTH_ASSIGN_OR_RETURN(const CUdevice device, Device(ordinal));
    BERTH_CALL(cuDevicePrimaryCtxRelease, device);
    return absl::OkStatus();
  }

  absl::Status SetCurrentContext(Context context) override {
    BERTH_CALL(cuCtxSetCurrent, reinterpret_cast<CUcontext>(context));
    return absl::OkStatus();
  }

  absl::StatusOr<Context> CurrentContext() override {
    CUcontext context = nullptr;
    BERTH_CALL(cuCtxGetCurrent, &context);
    return reinterpret_cast<Context>(context);
  }

  absl::StatusOr<int> CurrentDevice() override {
    CUdevice device = 0;
    BERTH_CALL(cuCtxGetDevice, &device);
    // A CUdevice is the ordinal.
    return static_cast<int>(device);
  }

  absl::StatusOr<DevicePointer> Allocate(Bytes bytes) override {
    CUdeviceptr pointer = 0;
    BERTH_CALL(cuMemAlloc, &pointer, bytes.count());
    return DevicePointer{pointer};
  }

  absl::Status Free(DevicePointer pointer) override {
    BERTH_CALL(cuMemFree, pointer);
    return absl::OkStatus();
  }

  absl::StatusOr<IpcHandle> GetIpcHandle(DevicePointer pointer) override {
    CUipcMemHandle raw;
    BERTH_CALL(cuIpcGetMemHandle, &raw, pointer);
    return std::bit_cast<IpcHandle>(raw);
  }

  absl::StatusOr<DevicePointer> OpenIpcHandle(const IpcHandle& handle) override {
    CUdeviceptr pointer = 0;
    BERTH_CALL(cuIpcOpenMemHandle, &pointer, std::bit_cast<CUipcMemHandle>(handle), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    return DevicePointer{pointer};
  }

  absl::Status CloseIpcHandle(DevicePointer pointer) override {
    BERTH_CALL(cuIpcCloseMemHandle, pointer);
    return absl::OkStatus();
  }

  absl::Status CopyToDevice(DevicePointer to, std::span<const std::byte> from) override {
    BERTH_CALL(cuMemcpyHtoD, to, from.data(), from.size());
    return absl::OkStatus();
  }

  absl::Status CopyToDeviceAsync(DevicePointer to, std::span<const std::byte> from, Stream stream) override {
    BERTH_CALL(cuMemcpyHtoDAsync, to, from.data(), from.size(), reinterpret_cast<CUstream>(stream));
    return absl::OkStatus();
  }

  absl::Status CopyToHost(std::span<std::byte> to, DevicePointer from) override {
    BERTH_CALL(cuMemcpyDtoH, to.data(), from, to.size());
    return absl::OkStatus();
  }

  absl::Status Fill(DevicePointer at, uint8_t value, Bytes bytes) override {
    BERTH_CALL(cuMemsetD8, at, value, bytes.count());
    return absl::OkStatus();
  }

  absl::StatusOr<MemoryInfo> GetMemoryInfo() override {
    size_t free = 0;
    size_t total = 0;
    BERTH_CALL(cuMemGetInfo, &free, &total);
    return MemoryInfo{.free = Bytes(free), .total = Bytes(total)};
  }

  absl::StatusOr<Module> LoadModule(const std::string& image) override {
    CUmodule module = nullptr;
    BERTH_CALL(cuModuleLoadData, &module, image.c_str());
    return reinterpret_cast<Module>(module);
  }

  absl::Status UnloadModule(Module module) override {
    BERTH_CALL(cuModuleUnload, reinterpret_cast<CUmodule>(module));
    return absl::OkStatus();
  }

  absl::StatusOr<Function> GetFunction(Module module, const std::string& name) override {
    CUfunction function = nullptr;
    BERTH_CALL(cuModuleGetFunction, &function, reinterpret_cast<CUmodule>(module), name.c_str());
    return reinterpret_cast<Function>(function);
  }

  absl::Status Launch(Function function, const LaunchShape& shape, Stream stream, void** arguments) override {
    BERTH_CALL(cuLaunchKernel, reinterpret_cast<CUfunction>(function), shape.grid[0], shape.grid[1], shape.grid[2],
               shape.block[0], shape.block[1], shape.block[2], shape.shared_bytes, reinterpret_cast<CUstream>(stream),
               arguments, nullptr);
    return absl::OkStatus();
  }

  absl::Status SynchronizeStream(Stream stream) override {
    BERTH_CALL(cuStreamSynchronize, reinterpret_cast<CUstream>(stream));
    return absl::OkStatus();
  }

  absl::Status SynchronizeContext() override {
    BERTH_CALL(cuCtxSynchronize);
    return absl::OkStatus();
  }

  absl::StatusOr<Stream> CreateStream() override {
    CUstream stream = nullptr;
    BERTH_CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    return reinterpret_cast<Stream>(stream);
  }

  absl::Status DestroyStream(Stream stream) override {
    BERTH_CALL(cuStreamDestroy, reinterpret_cast<CUstream>(stream));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> QueryStream(Stream stream) override {
    const CUresult result = functions_.cuStreamQuery_(reinterpret_cast<CUstream>(stream));
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) return result == CUDA_SUCCESS;
    return Error("cuStreamQuery", result);
  }

  absl::StatusOr<Event> CreateEvent() override {
    CUevent event = nullptr;
    BERTH_CALL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    return reinterpret_cast<Event>(event);
  }

  absl::Status DestroyEvent(Event event) override {
    BERTH_CALL(cuEventDestroy, reinterpret_cast<CUevent>(event));
    return absl::OkStatus();
  }

  absl::Status RecordEvent(Event event, Stream stream) override {
    BERTH_CALL(cuEventRecord, reinterpret_cast<CUevent>(event), reinterpret_cast<CUstream>(stream));
    return absl::OkStatus();
  }

  absl::Status WaitEvent(Stream stream, Event event) override {
    BERTH_CALL(cuStreamWaitEvent, reinterpret_cast<CUstream>(stream), reinterpret_cast<CUevent>(event),
               CU_EVENT_WAIT_DEFAULT);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> QueryEvent(Event event) override {
    const CUresult result = functions_.cuEventQuery_(reinterpret_cast<CUevent>(event));
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) return result == CUDA_SUCCESS;
    return Error("cuEventQuery", result);
  }

  absl::StatusOr<CaptureMode> ExchangeCaptureMode(CaptureMode mode) override {
    static_assert(static_cast<int>(CaptureMode::kGlobal) == CU_STREAM_CAPTURE_MODE_GLOBAL);
    static_assert(static_cast<int>(CaptureMode::kThreadLocal) == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    static_assert(static_cast<int>(CaptureMode::kRelaxed) == CU_STREAM_CAPTURE_MODE_RELAXED);
    auto exchanged = static_cast<CUstreamCaptureMode>(mode);
    BERTH_CALL(cuThreadExchangeStreamCaptureMode, &exchanged);
    return static_cast<CaptureMode>(exchanged);
  }

  absl::StatusOr<DevicePointer> RegisterHostMemory(void* address, Bytes bytes, bool read_only) override {
    const unsigned flags =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | (read_only ? CU_MEMHOSTREGISTER_READ_ONLY : 0);
    BERTH_CALL(cuMemHostRegister, address, bytes.count(), flags);
    CUdeviceptr pointer = 0;
    const CUresult result = functions_.cuMemHostGetDevicePointer_(&pointer, address, 0);
    if (result == CUDA_SUCCESS) return DevicePointer{pointer};
    functions_.cuMemHostUnregister_(address);
    return Error("cuMemHostGetDevicePointer", result);
  }

  absl::Status UnregisterHostMemory(void* address) override {
    BERTH_CALL(cuMemHostUnregister, address);
    return absl::OkStatus();
  }

  absl::Status WriteValue64(Stream stream, DevicePointer at, uint64_t value) override {
    // With the default flags, the word's write follows all earlier work of the stream.
    BERTH_CALL(cuStreamWriteValue64, reinterpret_cast<CUstream>(stream), at, value, CU_STREAM_WRITE_VALUE_DEFAULT);
    return absl::OkStatus();
  }

  absl::Status WaitValue64(Stream stream, DevicePointer at, uint64_t value) override {
    BERTH_CALL(cuStreamWaitValue64, reinterpret_cast<CUstream>(stream), at, value, CU_STREAM_WAIT_VALUE_GEQ);
    return absl::OkStatus();
  }

  absl::StatusOr<DevicePointer> AllocateAsync(Bytes bytes, Stream stream) override {
    CUdeviceptr pointer = 0;
    BERTH_CALL(cuMemAllocAsync, &pointer, bytes.count(), reinterpret_cast<CUstream>(stream));
    return DevicePointer{pointer};
  }

  absl::Status FreeAsync(DevicePointer pointer, Stream stream) override {
    BERTH_CALL(cuMemFreeAsync, pointer, reinterpret_cast<CUstream>(stream));
    return absl::OkStatus();
  }

  absl::Status FillAsync(DevicePointer at, uint8_t value, Bytes bytes, Stream stream) override {
    BERTH_CALL(cuMemsetD8Async, at, value, bytes.count(), reinterpret_cast<CUstream>(stream));
    return absl::OkStatus();
  }

 private:
  absl::Status Error(absl::string_view call, CUresult result) const {
    const char* name = nullptr;
    if (functions_.cuGetErrorName_(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
    return DriverError(call, static_cast<int>(result), name);
  }

  absl::StatusOr<CUdevice> Device(int ordinal) const {
    CUdevice device = 0;
    BERTH_CALL(cuDeviceGet, &device, ordinal);
    return device;
  }

  absl::StatusOr<int> RawAttribute(int ordinal, CUdevice_attribute attribute) const {
    BERTH_ASSIGN_OR_RETURN(const CUdevice device, Device(ordinal));
    int value = 0;
    BERTH_CALL(cuDeviceGetAttribute, &value, attribute, device);
    return value;
  }

  Functions functions_;
};

absl::StatusOr<std::unique_ptr<Driver>> LoadDriver() { return LoadedDriver::Load(); }

#else
absl::StatusOr<std::unique_ptr<Driver>> LoadDriver() {
  BERTH_RETURN_IF_ERROR(LoadLibrary().status());
  return Absent("built without CUDA's headers");
}

#endif  // BERTH_HAVE_CUDA_HEADERS

}  // namespace

absl::StatusOr<Driver*> Driver::Get() {
  static Mutex mu(absl::kConstInit);
  static Driver* loaded ABSL_GUARDED_BY(mu) = nullptr;
  MutexLock lock(&mu);
  if (loaded == nullptr) {
    BERTH_ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver, LoadDriver());
    loaded = driver.release();
  }
  return loaded;
}

bool IsNotInstalled(const absl::Status& status) { return NamedValueOf(status, kNotInstalled).has_value(); }

absl::StatusOr<int> FindDevice(Driver& driver, absl::string_view uuid) {
  BERTH_ASSIGN_OR_RETURN(const int count, driver.DeviceCount());
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    // Skips a device that does not answer: it must not hide the others.
    const absl::StatusOr<std::string> found = driver.DeviceUuid(ordinal);
    if (found.ok() && *found == uuid) return ordinal;
  }
  return Refuse(Reason::kNotFound, "no {kind} {id} is visible to CUDA here", {{"kind", "device"}, {"id", uuid}});
}

absl::Status DriverError(absl::string_view call, int code, absl::string_view name) {
  return Refuse(code == static_cast<int>(DriverCode::kOutOfMemory) ? Reason::kOutOfMemory : Reason::kDriver,
                "{call}: {name} ({driver_code})", {{"call", call}, {"name", name}, {"driver_code", code}});
}

std::string BuiltWith() {
#ifdef BERTH_HAVE_CUDA_HEADERS
  return absl::StrCat("CUDA ", CUDA_VERSION / 1000, ".", CUDA_VERSION % 1000 / 10, " headers");
#else
  return "no CUDA headers";
#endif
}

}  // namespace berth::cuda
