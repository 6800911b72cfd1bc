// Driver: the part of CUDA's driver API that Berth uses, one method per call, no policy. libcuda is loaded at
// run time, so every program starts without it, and nothing here shows a type of cuda.h, so that no user
// needs a toolkit to compile.
//
//   BERTH_ASSIGN_OR_RETURN(cuda::Driver* driver, cuda::Driver::Get());
//   BERTH_ASSIGN_OR_RETURN(const int count, driver->DeviceCount());
//
// Errors of every method: OUT_OF_MEMORY where the driver said so, DRIVER else; both name the call and carry
// the figures `call` and `driver_code`.

#ifndef COMMON_CUDA_DRIVER_H_
#define COMMON_CUDA_DRIVER_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "common/ipc_handle.h"
#include "common/unique_fd.h"

namespace berth::cuda {

// An address of device memory.
using DevicePointer = uint64_t;
// Physical memory that this process holds a reference of; 0 is none.
using Allocation = uint64_t;
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
// nullptr is the default stream.
using Stream = struct StreamTag*;
using Event = struct EventTag*;

// What Driver::Attribute() asks for.
enum class DeviceAttribute {
  kMultiprocessors,
  kComputeCapabilityMajor,
  kComputeCapabilityMinor,
  // 1 if cuMemCreate and its kin work, and their memory can leave as a file descriptor.
  kMemoryAsFd,
  // 1 if a stream can write and wait for 64-bit words.
  kStreamMemoryOperations,
  // 1 if several processes may have a context on the device at a time.
  kManyContexts,
  kThreadsPerMultiprocessor,
  // Bytes, of a block of threads.
  kSharedMemoryPerBlock,
  // Bytes.
  kL2Cache,
};

enum class Access { kReadOnly, kReadWrite };

// CUDA's modes of stream capture, by its numbers.
enum class CaptureMode {
  // A thread starts with this: a call that is not safe to a capture of anybody's fails, and ends the capture.
  kGlobal,
  kThreadLocal,
  // Calls that have nothing to do with a capture are left alone.
  kRelaxed,
};

// A kernel launch's size.
struct LaunchShape {
  std::array<uint32_t, 3> grid = {1, 1, 1};
  std::array<uint32_t, 3> block = {1, 1, 1};
  uint32_t shared_bytes = 0;
};

// Driver is thread-safe, as the driver is. Contexts are the driver's own: current per thread.
class Driver {
 public:
  // Loads and initialises the driver, once per process: concurrent callers wait for the first; a failure is
  // tried again by the next caller. The object lives as long as the process.
  // Errors: UNSUPPORTED where there is no CUDA to be had (no library, no device, built without CUDA's
  // headers); DRIVER when there is one and it fails.
  static absl::StatusOr<Driver*> Get();

  virtual ~Driver() = default;

  // Devices. None of these needs, or makes, a context.
  virtual absl::StatusOr<int> DeviceCount() = 0;
  // "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"; of a MIG instance its own, "MIG-…".
  virtual absl::StatusOr<std::string> DeviceUuid(int ordinal) = 0;
  virtual absl::StatusOr<std::string> DeviceName(int ordinal) = 0;
  virtual absl::StatusOr<Bytes> DeviceTotalMemory(int ordinal) = 0;
  virtual absl::StatusOr<int> Attribute(int ordinal, DeviceAttribute attribute) = 0;
  // Whether device `ordinal` can reach memory of device `peer`.
  virtual absl::StatusOr<bool> CanAccessPeer(int ordinal, int peer) = 0;

  // Physical memory of a device that can be exported as an fd. None of these needs, or makes, a context.
  virtual absl::StatusOr<Bytes> AllocationGranularity(int ordinal) = 0;
  // Requires: `bytes` is a multiple of the granularity.
  virtual absl::StatusOr<Allocation> CreateMemory(int ordinal, Bytes bytes) = 0;
  // The fd keeps the memory as the allocation does.
  virtual absl::StatusOr<UniqueFd> ExportFd(Allocation allocation) = 0;
  // `fd` stays the caller's. An imported allocation cannot be exported again.
  virtual absl::StatusOr<Allocation> ImportFd(int fd) = 0;
  virtual absl::Status ReleaseMemory(Allocation allocation) = 0;

  // Virtual addresses.
  virtual absl::StatusOr<DevicePointer> ReserveAddress(Bytes bytes) = 0;
  virtual absl::Status FreeAddress(DevicePointer address, Bytes bytes) = 0;
  virtual absl::Status MapMemory(DevicePointer address, Bytes bytes, Allocation allocation) = 0;
  virtual absl::Status SetAccess(DevicePointer address, Bytes bytes, int ordinal, Access access) = 0;
  virtual absl::Status UnmapMemory(DevicePointer address, Bytes bytes) = 0;

  // The device's primary context: counted, so each retain wants its release. Costs about 0.5 GiB of device
  // memory.
  virtual absl::StatusOr<Context> RetainPrimaryContext(int ordinal) = 0;
  virtual absl::Status ReleasePrimaryContext(int ordinal) = 0;
  virtual absl::Status SetCurrentContext(Context context) = 0;
  // The calling thread's; nullptr for none.
  virtual absl::StatusOr<Context> CurrentContext() = 0;

  // What follows works in the calling thread's current context.
  // The ordinal of its device.
  virtual absl::StatusOr<int> CurrentDevice() = 0;
  virtual absl::StatusOr<DevicePointer> Allocate(Bytes bytes) = 0;
  virtual absl::Status Free(DevicePointer pointer) = 0;
  // For what Allocate() returned: any process of the node can open it, whoever its user is. It cannot be taken back.
  virtual absl::StatusOr<IpcHandle> GetIpcHandle(DevicePointer pointer) = 0;
  // Memory of another process, at an address here; a handle that is open already gives the same one, counted. The
  // memory's own process cannot open it.
  virtual absl::StatusOr<DevicePointer> OpenIpcHandle(const IpcHandle& handle) = 0;
  virtual absl::Status CloseIpcHandle(DevicePointer pointer) = 0;
  virtual absl::Status CopyToDevice(DevicePointer to, std::span<const std::byte> from) = 0;
  virtual absl::Status CopyToHost(std::span<std::byte> to, DevicePointer from) = 0;
  virtual absl::Status Fill(DevicePointer at, uint8_t value, Bytes bytes) = 0;
  struct MemoryInfo {
    Bytes free;
    Bytes total;
  };
  virtual absl::StatusOr<MemoryInfo> GetMemoryInfo() = 0;

  // `image` is PTX or a cubin (common/cuda/nvrtc.h).
  virtual absl::StatusOr<Module> LoadModule(const std::string& image) = 0;
  virtual absl::Status UnloadModule(Module module) = 0;
  virtual absl::StatusOr<Function> GetFunction(Module module, const std::string& name) = 0;
  // `arguments` points to one pointer to each argument.
  virtual absl::Status Launch(Function function, const LaunchShape& shape, Stream stream,
                              void** arguments) = 0;
  virtual absl::Status SynchronizeStream(Stream stream) = 0;
  virtual absl::Status SynchronizeContext() = 0;

  // A stream that does not wait for the default stream, nor it for this one.
  virtual absl::StatusOr<Stream> CreateStream() = 0;
  // What is queued on it still runs.
  virtual absl::Status DestroyStream(Stream stream) = 0;
  // Whether all that was queued on it has ended.
  virtual absl::StatusOr<bool> QueryStream(Stream stream) = 0;

  // An event of this process's, without a time.
  virtual absl::StatusOr<Event> CreateEvent() = 0;
  virtual absl::Status DestroyEvent(Event event) = 0;
  virtual absl::Status RecordEvent(Event event, Stream stream) = 0;
  // Has the stream wait until what was queued before the last record of `event` has ended.
  virtual absl::Status WaitEvent(Stream stream, Event event) = 0;
  // Whether that has ended.
  virtual absl::StatusOr<bool> QueryEvent(Event event) = 0;

  // What the calling thread may do while some stream of the process is being captured into a graph. Returns what
  // it was before.
  virtual absl::StatusOr<CaptureMode> ExchangeCaptureMode(CaptureMode mode) = 0;

  // Host memory that streams of every context can reach, at the returned address. `address` and `bytes` are whole
  // pages, which stay where they are until unregistered. Read-only memory must be registered as such.
  virtual absl::StatusOr<DevicePointer> RegisterHostMemory(void* address, Bytes bytes, bool read_only) = 0;
  virtual absl::Status UnregisterHostMemory(void* address) = 0;
  // Queues a write of the 64-bit word at `at`, behind and after all that is queued on the stream.
  virtual absl::Status WriteValue64(Stream stream, DevicePointer at, uint64_t value) = 0;
  // Has the stream wait until the word at `at` is `value` or more, by their difference as a signed number.
  virtual absl::Status WaitValue64(Stream stream, DevicePointer at, uint64_t value) = 0;

  // In the stream's order, from the device's own pool.
  virtual absl::StatusOr<DevicePointer> AllocateAsync(Bytes bytes, Stream stream) = 0;
  virtual absl::Status FreeAsync(DevicePointer pointer, Stream stream) = 0;
  virtual absl::Status FillAsync(DevicePointer at, uint8_t value, Bytes bytes, Stream stream) = 0;
};

// Finds the ordinal of the device with `uuid`: ordinals differ between processes, UUIDs do not.
// Errors: NOT_FOUND with the figures `kind` and `id`.
absl::StatusOr<int> FindDevice(Driver& driver, absl::string_view uuid);

// The refusal of a driver call that answered `code`, named `name` (e.g. "CUDA_ERROR_OUT_OF_MEMORY").
absl::Status DriverError(absl::string_view call, int code, absl::string_view name);

// For `berthd --version`: "CUDA 13.0 headers" or "no CUDA headers".
std::string BuiltWith();

}  // namespace berth::cuda

#endif  // COMMON_CUDA_DRIVER_H_
