// Driver: the part of CUDA's driver API that Berth uses, one method per call, no policy. libcuda is loaded at run time,
// so every program starts without it. This header exposes no type of cuda.h, so users compile without a toolkit.
//
//   BERTH_ASSIGN_OR_RETURN(cuda::Driver* driver, cuda::Driver::Get());
//   BERTH_ASSIGN_OR_RETURN(const int count, driver->DeviceCount());
//
// Errors of every method: OUT_OF_MEMORY if the driver reports that, DRIVER else; both name the call and carry the
// named values `call` and `driver_code`.

#ifndef COMMON_CUDA_DRIVER_H_
#define COMMON_CUDA_DRIVER_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"
#include "common/wire/ipc_handle.h"

namespace berth::cuda {

// An address of device memory.
using DevicePointer = uint64_t;
// Physical memory to which this process holds a reference; 0 is none.
using Allocation = uint64_t;
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
// nullptr is the default stream.
using Stream = struct StreamTag*;
using Event = struct EventTag*;

// Attributes for Driver::Attribute().
enum class DeviceAttribute {
  kMultiprocessors,
  kComputeCapabilityMajor,
  kComputeCapabilityMinor,
  // 1 if cuMemCreate and related calls work, and their memory can be exported as a file descriptor.
  kMemoryAsFd,
  // 1 if a stream can write and wait for 64-bit words.
  kStreamMemoryOperations,
  // 1 if several processes may have a context on the device at a time.
  kManyContexts,
  kThreadsPerMultiprocessor,
  // Bytes per block of threads.
  kSharedMemoryPerBlock,
  // Bytes.
  kL2Cache,
};

enum class Access { kReadOnly, kReadWrite };

// CUDA's modes of stream capture, by its numbers.
enum class CaptureMode {
  // Default of a thread: a call that is unsafe during any thread's capture fails, and ends the capture.
  kGlobal,
  kThreadLocal,
  // Calls unrelated to a capture do not affect it.
  kRelaxed,
};

// Grid and block size and dynamic shared memory (bytes) of a kernel launch.
struct LaunchShape {
  std::array<uint32_t, 3> grid = {1, 1, 1};
  std::array<uint32_t, 3> block = {1, 1, 1};
  uint32_t shared_bytes = 0;
};

// Driver is thread-safe, as CUDA's driver is. Contexts are the driver's own: current per thread.
class Driver {
 public:
  // Loads and initialises the driver, once per process: concurrent callers wait for the first. After a failure the next
  // caller retries. The object lives as long as the process.
  // Errors: UNSUPPORTED if CUDA is not available (no library, no device, built without CUDA's headers); DRIVER if it is
  // available and fails.
  static absl::StatusOr<Driver*> Get();

  virtual ~Driver() = default;

  // Devices. These methods neither need nor create a context.
  virtual absl::StatusOr<int> DeviceCount() = 0;
  // Returns "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"; for a MIG instance the instance's own UUID, "MIG-…".
  virtual absl::StatusOr<std::string> DeviceUuid(int ordinal) = 0;
  virtual absl::StatusOr<std::string> DeviceName(int ordinal) = 0;
  virtual absl::StatusOr<Bytes> DeviceTotalMemory(int ordinal) = 0;
  virtual absl::StatusOr<int> Attribute(int ordinal, DeviceAttribute attribute) = 0;
  // Returns whether device `ordinal` can reach memory of device `peer`.
  virtual absl::StatusOr<bool> CanAccessPeer(int ordinal, int peer) = 0;

  // Physical memory of a device, exportable as an fd. These methods neither need nor create a context.
  virtual absl::StatusOr<Bytes> AllocationGranularity(int ordinal) = 0;
  // Requires: `bytes` is a multiple of the granularity.
  virtual absl::StatusOr<Allocation> CreateMemory(int ordinal, Bytes bytes) = 0;
  // Returns an fd that holds a reference to the memory, as the allocation does.
  virtual absl::StatusOr<UniqueFd> ExportFd(Allocation allocation) = 0;
  // Imports `fd`, which the caller still owns. An imported allocation cannot be exported again.
  virtual absl::StatusOr<Allocation> ImportFd(int fd) = 0;
  virtual absl::Status ReleaseMemory(Allocation allocation) = 0;

  // Virtual addresses.
  virtual absl::StatusOr<DevicePointer> ReserveAddress(Bytes bytes) = 0;
  virtual absl::Status FreeAddress(DevicePointer address, Bytes bytes) = 0;
  virtual absl::Status MapMemory(DevicePointer address, Bytes bytes, Allocation allocation) = 0;
  virtual absl::Status SetAccess(DevicePointer address, Bytes bytes, int ordinal, Access access) = 0;
  virtual absl::Status UnmapMemory(DevicePointer address, Bytes bytes) = 0;

  // The device's primary context. Reference-counted: every retain needs a release. Costs about 0.5 GiB of device
  // memory.
  virtual absl::StatusOr<Context> RetainPrimaryContext(int ordinal) = 0;
  virtual absl::Status ReleasePrimaryContext(int ordinal) = 0;
  virtual absl::Status SetCurrentContext(Context context) = 0;
  // Returns the calling thread's context; nullptr for none.
  virtual absl::StatusOr<Context> CurrentContext() = 0;

  // The methods below use the calling thread's current context.
  // Returns the ordinal of the context's device.
  virtual absl::StatusOr<int> CurrentDevice() = 0;
  virtual absl::StatusOr<DevicePointer> Allocate(Bytes bytes) = 0;
  virtual absl::Status Free(DevicePointer pointer) = 0;
  // Exports memory of Allocate(): any process of the node can open the handle, whatever its user. It cannot be revoked.
  virtual absl::StatusOr<IpcHandle> GetIpcHandle(DevicePointer pointer) = 0;
  // Maps memory of another process. Opening an open handle again returns the same address and raises its count. The
  // exporting process cannot open its own handle.
  virtual absl::StatusOr<DevicePointer> OpenIpcHandle(const IpcHandle& handle) = 0;
  virtual absl::Status CloseIpcHandle(DevicePointer pointer) = 0;
  virtual absl::Status CopyToDevice(DevicePointer to, std::span<const std::byte> from) = 0;
  // Queues the copy on the stream. `from` must stay unchanged until the copy has run. The call returns before that only
  // for registered memory.
  virtual absl::Status CopyToDeviceAsync(DevicePointer to, std::span<const std::byte> from, Stream stream) = 0;
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

  // Creates a stream without implicit synchronisation with the default stream.
  virtual absl::StatusOr<Stream> CreateStream() = 0;
  // Destroys the stream; work queued on it still runs.
  virtual absl::Status DestroyStream(Stream stream) = 0;
  // Returns whether all work queued on the stream has ended.
  virtual absl::StatusOr<bool> QueryStream(Stream stream) = 0;

  // Creates an event of this process, without timing.
  virtual absl::StatusOr<Event> CreateEvent() = 0;
  virtual absl::Status DestroyEvent(Event event) = 0;
  virtual absl::Status RecordEvent(Event event, Stream stream) = 0;
  // Makes the stream wait until the work before the last record of `event` has ended.
  virtual absl::Status WaitEvent(Stream stream, Event event) = 0;
  // Returns whether the work before the last record of `event` has ended.
  virtual absl::StatusOr<bool> QueryEvent(Event event) = 0;

  // Sets what the calling thread may do while a stream of the process is captured into a graph. Returns the previous
  // mode.
  virtual absl::StatusOr<CaptureMode> ExchangeCaptureMode(CaptureMode mode) = 0;

  // Registers host memory so that streams of every context can reach it, at the returned address. `address` and `bytes`
  // are whole pages, which must stay mapped until unregistered. Read-only memory must be registered as read-only.
  virtual absl::StatusOr<DevicePointer> RegisterHostMemory(void* address, Bytes bytes, bool read_only) = 0;
  virtual absl::Status UnregisterHostMemory(void* address) = 0;
  // Queues a write of the 64-bit word at `at`, ordered after all work queued on the stream.
  virtual absl::Status WriteValue64(Stream stream, DevicePointer at, uint64_t value) = 0;
  // Makes the stream wait until the word at `at` is `value` or more, by their difference as a signed number.
  virtual absl::Status WaitValue64(Stream stream, DevicePointer at, uint64_t value) = 0;

  // Stream-ordered, from the device's default pool.
  virtual absl::StatusOr<DevicePointer> AllocateAsync(Bytes bytes, Stream stream) = 0;
  virtual absl::Status FreeAsync(DevicePointer pointer, Stream stream) = 0;
  virtual absl::Status FillAsync(DevicePointer at, uint8_t value, Bytes bytes, Stream stream) = 0;
};

// Whether an error of Driver::Get() means that no libcuda.so.1 is installed. False where the library is there and fails
// or finds no device: such a driver may come up later.
bool IsNotInstalled(const absl::Status& status);

// Finds the ordinal of the device with `uuid`: ordinals differ between processes, UUIDs do not.
// Errors: NOT_FOUND with the named values `kind` and `id`.
absl::StatusOr<int> FindDevice(Driver& driver, absl::string_view uuid);

// Makes the refusal for a driver call that returned `code`, named `name` (e.g. "CUDA_ERROR_OUT_OF_MEMORY").
absl::Status DriverError(absl::string_view call, int code, absl::string_view name);

// Returns "CUDA 13.0 headers" or "no CUDA headers", for `berthd --version`.
std::string BuiltWith();

}  // namespace berth::cuda

#endif  // COMMON_CUDA_DRIVER_H_
