// libcuda.so.1 with scripted replies (scripted_driver.h). Devices have memfds as memory, so that a worker can make
// blocks and a self-test can check them; nothing computes. It exports CUDA's own names and numbers, each plain name and
// its second version: a program calls either, depending on the headers that it was built with.

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/driver/scripted_driver.h"

namespace {

using berth::testing::HangIfScripted;
using berth::testing::ScriptedDriver;

constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100;
constexpr int kInvalidDevice = 101, kNotSupported = 801;
constexpr size_t kGranularity = size_t{2} << 20;

// Devices of this process by ordinal, as they were when the driver was initialised.
std::vector<int>* g_devices = nullptr;
thread_local uintptr_t g_context = 0;

struct Allocation {
  int fd;
  size_t bytes;
};
struct Properties {
  int type, handle_types, location_type, location_id;
};

int NumberOf(int ordinal) { return (*g_devices)[static_cast<size_t>(ordinal)]; }

int Check(int ordinal, const char* call) {
  if (g_devices == nullptr) return kNotInitialized;
  if (ordinal < 0 || ordinal >= static_cast<int>(g_devices->size())) return kInvalidDevice;
  HangIfScripted(NumberOf(ordinal), call);
  return ScriptedDriver::ErrorIn(ScriptedDriver::Now()->Get(NumberOf(ordinal), call));
}

// Returns the devices in the order that CUDA_DEVICE_ORDER selects.
std::vector<int> OrderedDevices(const ScriptedDriver& script) {
  std::vector<int> devices;
  std::istringstream fastest_first(script.Get("cuda"));
  for (int device; fastest_first >> device;) devices.push_back(device);
  for (int device = 0; script.Get("cuda").empty() && device < script.devices(); ++device) devices.push_back(device);
  std::erase_if(devices, [&](int device) { return !script.IsThere(device); });
  const char* const order = ::getenv("CUDA_DEVICE_ORDER");
  if (order == nullptr || std::string(order) != "PCI_BUS_ID") return devices;
  std::vector<int> sorted = script.InPciOrder();
  std::erase_if(sorted, [&](int device) { return std::ranges::find(devices, device) == devices.end(); });
  return sorted;
}

// Returns the device of an entry of CUDA_VISIBLE_DEVICES: an ordinal, or the start of a UUID; -1 for none.
int DeviceOfEntry(const ScriptedDriver& script, const std::vector<int>& devices, const std::string& entry) {
  if (!entry.empty() && entry.find_first_not_of("0123456789") == std::string::npos) {
    const size_t ordinal = std::stoul(entry);
    return ordinal < devices.size() ? devices[ordinal] : -1;
  }
  if (!entry.starts_with("GPU-") && !entry.starts_with("MIG-")) return -1;
  for (const int device : devices) {
    if (script.Get(device, "uuid").starts_with(entry)) return device;
  }
  return -1;
}

// Returns the devices of this process by ordinal: those before the first invalid entry of CUDA_VISIBLE_DEVICES.
std::vector<int> VisibleDevices(const ScriptedDriver& script) {
  const std::vector<int> devices = OrderedDevices(script);
  const char* const visible = ::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return devices;
  std::vector<int> named;
  std::istringstream entries(visible);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const int device = DeviceOfEntry(script, devices, entry);
    if (device < 0) break;
    named.push_back(device);
  }
  return named;
}

// Parses the 16 bytes of "GPU-xxxxxxxx-xxxx-…".
void ParseUuid(const std::string& text, unsigned char* out) {
  std::string digits;
  for (size_t i = text.find('-'); i < text.size(); ++i) {
    if (text[i] != '-') digits += text[i];
  }
  for (size_t i = 0; i < 16; ++i) {
    out[i] = static_cast<unsigned char>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
  }
}

int Export(int fd, size_t bytes, uint64_t* out) {
  if (fd < 0) return kOutOfMemory;
  *out = reinterpret_cast<uint64_t>(new Allocation{fd, bytes});
  return kSuccess;
}

void* Memory(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

extern "C" {

int cuInit(unsigned int) {
  const auto script = ScriptedDriver::Now();
  ++ScriptedDriver::Counts().cuda_inits;
  if (script->Get("cuInit") == "abort") ::abort();
  if (script->Get("cuInit") == "exit") ::exit(0);
  if (const int error = ScriptedDriver::ErrorIn(script->Get("cuInit")); error != 0) return error;
  ::poll(nullptr, 0, static_cast<int>(script->Number("init_ms")));
  g_devices = new std::vector<int>(VisibleDevices(*script));
  return g_devices->empty() ? kNoDevice : kSuccess;
}

int cuGetErrorName(int code, const char** name) {
  *name = code == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == 214        ? "CUDA_ERROR_ECC_UNCORRECTABLE"
          : code == 999        ? "CUDA_ERROR_UNKNOWN"
                               : "CUDA_ERROR";
  return kSuccess;
}

// ---- Devices ------------------------------------------------------------------------------------------------

int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(g_devices->size());
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return Check(ordinal, "cuDeviceGet");
}

int cuDeviceGetUuid(unsigned char* uuid, int ordinal) {
  if (const int error = Check(ordinal, "cuDeviceGetUuid"); error != 0) return error;
  const auto script = ScriptedDriver::Now();
  const std::string& parent = script->Get(NumberOf(ordinal), "parent");
  ParseUuid(parent.empty() ? script->Get(NumberOf(ordinal), "uuid") : parent, uuid);
  return kSuccess;
}

int cuDeviceGetUuid_v2(unsigned char* uuid, int ordinal) {
  if (const int error = Check(ordinal, "cuDeviceGetUuid"); error != 0) return error;
  ParseUuid(ScriptedDriver::Now()->Get(NumberOf(ordinal), "uuid"), uuid);
  return kSuccess;
}

int cuDeviceGetName(char* name, int size, int ordinal) {
  if (const int error = Check(ordinal, "cuDeviceGetName"); error != 0) return error;
  strncpy(name, ScriptedDriver::Now()->Get(NumberOf(ordinal), "name").c_str(), static_cast<size_t>(size));
  return kSuccess;
}

int cuDeviceTotalMem_v2(size_t* bytes, int ordinal) {
  if (const int error = Check(ordinal, "cuDeviceTotalMem"); error != 0) return error;
  *bytes = ScriptedDriver::Now()->Number(NumberOf(ordinal), "total");
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int ordinal) {
  if (const int error = Check(ordinal, "cuDeviceGetAttribute"); error != 0) return error;
  const auto script = ScriptedDriver::Now();
  const auto number = [&](const char* key, uint64_t otherwise) {
    return static_cast<int>(script->Number(NumberOf(ordinal), key, otherwise));
  };
  switch (attribute) {
    case 16:
      *value = number("multiprocessors", 0);
      break;
    case 75:
      *value = number("capability", 0) / 10;
      break;
    case 76:
      *value = number("capability", 0) % 10;
      break;
    case 102:
    case 103:
      *value = number("memory_as_fd", 1);
      break;
    default:
      *value = 0;
  }
  return kSuccess;
}

int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return kSuccess;
}

// ---- Memory -------------------------------------------------------------------------------------------------

int cuMemGetAllocationGranularity(size_t* bytes, const Properties* properties, int) {
  *bytes = kGranularity;
  return Check(properties->location_id, "cuMemGetAllocationGranularity");
}

int cuMemCreate(uint64_t* handle, size_t bytes, const Properties* properties, unsigned long long) {
  if (const int error = Check(properties->location_id, "cuMemCreate"); error != 0) return error;
  const int fd = ::memfd_create("scripted-cuda", MFD_CLOEXEC);
  if (fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) < 0) return kOutOfMemory;
  return Export(fd, bytes, handle);
}

int cuMemExportToShareableHandle(int* fd, uint64_t handle, int, unsigned long long) {
  *fd = ::dup(reinterpret_cast<Allocation*>(handle)->fd);
  return *fd < 0 ? kOutOfMemory : kSuccess;
}

int cuMemImportFromShareableHandle(uint64_t* handle, void* os_handle, int) {
  const int fd = ::dup(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)));
  struct stat info = {};
  if (::fstat(fd, &info) < 0) return kInvalidValue;
  return Export(fd, static_cast<size_t>(info.st_size), handle);
}

int cuMemRelease(uint64_t handle) {
  auto* const allocation = reinterpret_cast<Allocation*>(handle);
  ::close(allocation->fd);
  delete allocation;
  return kSuccess;
}

int cuMemAddressReserve(uint64_t* address, size_t bytes, size_t, uint64_t, unsigned long long) {
  void* const memory = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *address = reinterpret_cast<uint64_t>(memory);
  return memory == MAP_FAILED ? kOutOfMemory : kSuccess;
}

int cuMemAddressFree(uint64_t address, size_t bytes) {
  return ::munmap(Memory(address), bytes) < 0 ? kInvalidValue : kSuccess;
}

int cuMemMap(uint64_t address, size_t bytes, size_t, uint64_t handle, unsigned long long) {
  const int fd = reinterpret_cast<Allocation*>(handle)->fd;
  void* const memory =
      ::mmap(Memory(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  return memory == MAP_FAILED ? kInvalidValue : kSuccess;
}

int cuMemSetAccess(uint64_t, size_t, const void*, size_t) { return kSuccess; }

int cuMemUnmap(uint64_t address, size_t bytes) {
  void* const memory =
      ::mmap(Memory(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  return memory == MAP_FAILED ? kInvalidValue : kSuccess;
}

int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
  memset(Memory(at), value, bytes);
  return kSuccess;
}

int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  memcpy(to, Memory(from), bytes);
  return kSuccess;
}

int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  memcpy(Memory(to), from, bytes);
  return kSuccess;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
  return cuMemcpyHtoD_v2(to, from, bytes);
}

int cuMemHostRegister_v2(void*, size_t, unsigned) { return kSuccess; }

int cuMemHostGetDevicePointer_v2(uint64_t* pointer, void* address, unsigned) {
  *pointer = reinterpret_cast<uint64_t>(address);
  return kSuccess;
}

int cuMemHostUnregister(void*) { return kSuccess; }

int cuMemGetInfo_v2(size_t* free, size_t* total) {
  const int device = NumberOf(static_cast<int>(g_context) - 1);
  *free = ScriptedDriver::Now()->Number(device, "free");
  *total = ScriptedDriver::Now()->Number(device, "total");
  return kSuccess;
}

// ---- Contexts and streams -----------------------------------------------------------------------------------

int cuDevicePrimaryCtxRetain(uintptr_t* context, int ordinal) {
  if (const int error = Check(ordinal, "cuDevicePrimaryCtxRetain"); error != 0) return error;
  *context = static_cast<uintptr_t>(ordinal) + 1;
  ++ScriptedDriver::Counts().contexts;
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }

int cuCtxSetCurrent(uintptr_t context) {
  g_context = context;
  return kSuccess;
}

int cuCtxGetCurrent(uintptr_t* context) {
  *context = g_context;
  return kSuccess;
}

int cuCtxGetDevice(int* device) {
  *device = static_cast<int>(g_context) - 1;
  return kSuccess;
}

int cuCtxSynchronize() { return Check(static_cast<int>(g_context) - 1, "cuCtxSynchronize"); }

// Nothing is captured in this library.
int cuThreadExchangeStreamCaptureMode(int*) { return kSuccess; }

int cuStreamCreate(void** stream, unsigned int) {
  *stream = new char;
  return kSuccess;
}

int cuStreamDestroy_v2(void* stream) {
  delete static_cast<char*>(stream);
  return kSuccess;
}

int cuStreamQuery(void*) { return kSuccess; }
int cuStreamSynchronize(void*) { return kSuccess; }

// ---- Calls that are not supported, and aliases of supported calls ---------------------------------------------

#define BERTH_NOT_SUPPORTED(name) \
  int name() { return kNotSupported; }
#define BERTH_SAME(name, is) decltype(is) name __attribute__((alias(#is)));

BERTH_NOT_SUPPORTED(cuMemAlloc)
BERTH_NOT_SUPPORTED(cuMemAlloc_v2)
BERTH_NOT_SUPPORTED(cuMemFree)
BERTH_NOT_SUPPORTED(cuMemFree_v2)
BERTH_NOT_SUPPORTED(cuIpcGetMemHandle)
BERTH_NOT_SUPPORTED(cuIpcOpenMemHandle)
BERTH_NOT_SUPPORTED(cuIpcOpenMemHandle_v2)
BERTH_NOT_SUPPORTED(cuIpcCloseMemHandle)
BERTH_NOT_SUPPORTED(cuModuleLoadData)
BERTH_NOT_SUPPORTED(cuModuleUnload)
BERTH_NOT_SUPPORTED(cuModuleGetFunction)
BERTH_NOT_SUPPORTED(cuLaunchKernel)
BERTH_NOT_SUPPORTED(cuStreamWaitEvent)
BERTH_NOT_SUPPORTED(cuEventCreate)
BERTH_NOT_SUPPORTED(cuEventDestroy)
BERTH_NOT_SUPPORTED(cuEventDestroy_v2)
BERTH_NOT_SUPPORTED(cuEventRecord)
BERTH_NOT_SUPPORTED(cuEventQuery)
BERTH_NOT_SUPPORTED(cuStreamWaitValue64)
BERTH_NOT_SUPPORTED(cuStreamWaitValue64_v2)
BERTH_NOT_SUPPORTED(cuStreamWriteValue64)
BERTH_NOT_SUPPORTED(cuStreamWriteValue64_v2)
BERTH_NOT_SUPPORTED(cuMemAllocAsync)
BERTH_NOT_SUPPORTED(cuMemFreeAsync)
BERTH_NOT_SUPPORTED(cuMemsetD8Async)
BERTH_SAME(cuCtxGetDevice_v2, cuCtxGetDevice)
BERTH_SAME(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)
BERTH_SAME(cuDeviceTotalMem, cuDeviceTotalMem_v2)
BERTH_SAME(cuMemGetInfo, cuMemGetInfo_v2)
BERTH_SAME(cuMemcpyDtoH, cuMemcpyDtoH_v2)
BERTH_SAME(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2)
BERTH_SAME(cuMemHostRegister, cuMemHostRegister_v2)
BERTH_SAME(cuMemcpyHtoD, cuMemcpyHtoD_v2)
BERTH_SAME(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)
BERTH_SAME(cuMemsetD8, cuMemsetD8_v2)
BERTH_SAME(cuStreamDestroy, cuStreamDestroy_v2)

}  // extern "C"
