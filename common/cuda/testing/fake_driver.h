// FakeDriver: a driver without a GPU, for tests of code on the Driver interface. It records its calls and the resources
// that they leave behind, and fails a selected call.

#ifndef COMMON_CUDA_TESTING_FAKE_DRIVER_H_
#define COMMON_CUDA_TESTING_FAKE_DRIVER_H_

#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/cuda/driver.h"
#include "common/cuda/testing/fake_memory.h"
#include "common/os/memfd.h"
#include "common/status_macros.h"

namespace berth::cuda {

// FakeDriver is one device of 1 GiB. An exported fd is a memfd.
class FakeDriver : public Driver {
 public:
  // The method that fails, with CUDA's code and name.
  std::string failing;
  int failing_code = 1;
  std::string failing_name = "CUDA_ERROR_INVALID_VALUE";

  // Names of the called methods, in order.
  std::vector<std::string> calls;
  // Resources that are not released yet.
  std::set<Allocation> allocations;
  std::set<DevicePointer> reserved;
  std::set<DevicePointer> mapped;
  std::set<void*> registered;
  // Memory of Allocate(). Other device pointers have no memory: operations on them are only recorded.
  FakeMemory memory;
  // Open count of each handle.
  std::map<DevicePointer, int> opened;
  // Next result of Allocate(), for tests of a misbehaving driver; 0 returns real memory.
  DevicePointer next_pointer = 0;
  std::set<uint64_t> events;
  std::set<uint64_t> streams;
  // Retain count of the primary context, and the current context of all threads.
  int contexts = 0;
  Context current = nullptr;
  const Context kPrimary = reinterpret_cast<Context>(1);
  // Capture mode of all threads.
  CaptureMode capture_mode = CaptureMode::kGlobal;
  // Capture mode and current context at the last call of each method.
  std::map<std::string, CaptureMode> capture_mode_of;
  std::map<std::string, Context> context_of;
  // Answer of QueryEvent() for every event.
  bool reached = true;
  // Streams and the events that they wait for, in order.
  std::vector<std::pair<Stream, Event>> awaited;
  // Words and the awaited values, in order.
  std::vector<std::pair<DevicePointer, uint64_t>> waited_for;
  bool nothing_left() const {
    return allocations.empty() && reserved.empty() && mapped.empty() && registered.empty() &&
           memory.empty() && opened.empty() && events.empty() && streams.empty();
  }
  // Access of the last SetAccess().
  Access access = Access::kReadWrite;

  absl::StatusOr<int> DeviceCount() override { return Answer("DeviceCount", 1); }
  absl::StatusOr<std::string> DeviceUuid(int) override {
    return Answer("DeviceUuid", std::string("GPU-fake"));
  }
  absl::StatusOr<std::string> DeviceName(int) override { return Answer("DeviceName", std::string("fake")); }
  absl::StatusOr<Bytes> DeviceTotalMemory(int) override { return Answer("DeviceTotalMemory", GiB(1)); }
  absl::StatusOr<int> Attribute(int, DeviceAttribute) override { return Answer("Attribute", 1); }
  absl::StatusOr<bool> CanAccessPeer(int, int) override { return Answer("CanAccessPeer", true); }

  absl::StatusOr<Bytes> AllocationGranularity(int) override {
    return Answer("AllocationGranularity", MiB(2));
  }
  absl::StatusOr<Allocation> CreateMemory(int, Bytes) override { return NewAllocation("CreateMemory"); }
  absl::StatusOr<UniqueFd> ExportFd(Allocation) override {
    BERTH_RETURN_IF_ERROR(Call("ExportFd"));
    return CreateMemfd("fake", 0);
  }
  absl::StatusOr<Allocation> ImportFd(int) override { return NewAllocation("ImportFd"); }
  absl::Status ReleaseMemory(Allocation allocation) override {
    allocations.erase(allocation);
    return Call("ReleaseMemory");
  }

  absl::StatusOr<DevicePointer> ReserveAddress(Bytes) override {
    BERTH_RETURN_IF_ERROR(Call("ReserveAddress"));
    return *reserved.insert(++last_).first;
  }
  absl::Status FreeAddress(DevicePointer address, Bytes) override {
    reserved.erase(address);
    return Call("FreeAddress");
  }
  absl::Status MapMemory(DevicePointer address, Bytes, Allocation) override {
    BERTH_RETURN_IF_ERROR(Call("MapMemory"));
    mapped.insert(address);
    return absl::OkStatus();
  }
  absl::Status SetAccess(DevicePointer, Bytes, int, Access granted) override {
    access = granted;
    return Call("SetAccess");
  }
  absl::Status UnmapMemory(DevicePointer address, Bytes) override {
    mapped.erase(address);
    return Call("UnmapMemory");
  }

  absl::StatusOr<Context> RetainPrimaryContext(int) override {
    BERTH_RETURN_IF_ERROR(Call("RetainPrimaryContext"));
    ++contexts;
    return kPrimary;
  }
  absl::Status ReleasePrimaryContext(int) override {
    --contexts;
    return Call("ReleasePrimaryContext");
  }
  absl::Status SetCurrentContext(Context context) override {
    current = context;
    return Call("SetCurrentContext");
  }
  absl::StatusOr<Context> CurrentContext() override { return current; }

  absl::StatusOr<int> CurrentDevice() override { return Answer("CurrentDevice", 0); }

  absl::StatusOr<DevicePointer> Allocate(Bytes bytes) override {
    BERTH_RETURN_IF_ERROR(Call("Allocate"));
    return next_pointer != 0 ? next_pointer : memory.Allocate(bytes);
  }
  absl::Status Free(DevicePointer pointer) override {
    BERTH_RETURN_IF_ERROR(Call("Free"));
    return memory.Free(pointer) ? absl::OkStatus() : DriverError("Free", 1, "CUDA_ERROR_INVALID_VALUE");
  }
  // The handle is the address, and can be opened in this process.
  absl::StatusOr<IpcHandle> GetIpcHandle(DevicePointer pointer) override {
    IpcHandle handle;
    memcpy(handle.bytes.data(), &pointer, sizeof(pointer));
    return Answer("GetIpcHandle", handle);
  }
  absl::StatusOr<DevicePointer> OpenIpcHandle(const IpcHandle& handle) override {
    BERTH_RETURN_IF_ERROR(Call("OpenIpcHandle"));
    DevicePointer pointer;
    memcpy(&pointer, handle.bytes.data(), sizeof(pointer));
    ++opened[pointer];
    return pointer;
  }
  absl::Status CloseIpcHandle(DevicePointer pointer) override {
    BERTH_RETURN_IF_ERROR(Call("CloseIpcHandle"));
    if (--opened[pointer] == 0) opened.erase(pointer);
    return absl::OkStatus();
  }
  absl::Status CopyToDevice(DevicePointer to, std::span<const std::byte> from) override {
    BERTH_RETURN_IF_ERROR(Call("CopyToDevice"));
    if (void* const at = memory.Find(to, from.size())) memcpy(at, from.data(), from.size());
    return absl::OkStatus();
  }
  // Streams of the fake complete at once.
  absl::Status CopyToDeviceAsync(DevicePointer to, std::span<const std::byte> from, Stream) override {
    BERTH_RETURN_IF_ERROR(Call("CopyToDeviceAsync"));
    if (void* const at = memory.Find(to, from.size())) memcpy(at, from.data(), from.size());
    return absl::OkStatus();
  }
  absl::Status CopyToHost(std::span<std::byte> to, DevicePointer from) override {
    BERTH_RETURN_IF_ERROR(Call("CopyToHost"));
    if (const void* const at = memory.Find(from, to.size())) memcpy(to.data(), at, to.size());
    return absl::OkStatus();
  }
  absl::Status Fill(DevicePointer to, uint8_t value, Bytes bytes) override {
    BERTH_RETURN_IF_ERROR(Call("Fill"));
    void* const at = memory.Find(to, bytes.count());
    // Untouched pages read as zeroes.
    if (at != nullptr && (value != 0 || ::madvise(at, bytes.count(), MADV_DONTNEED) != 0)) {
      memset(at, value, bytes.count());
    }
    return absl::OkStatus();
  }
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override {
    return Answer("GetMemoryInfo", MemoryInfo{.free = GiB(1), .total = GiB(1)});
  }
  absl::StatusOr<Module> LoadModule(const std::string&) override {
    return Answer("LoadModule", Module{nullptr});
  }
  absl::Status UnloadModule(Module) override { return Call("UnloadModule"); }
  absl::StatusOr<Function> GetFunction(Module, const std::string&) override {
    return Answer("GetFunction", Function{nullptr});
  }
  absl::Status Launch(Function, const LaunchShape&, Stream, void**) override { return Call("Launch"); }
  absl::Status SynchronizeStream(Stream) override { return Call("SynchronizeStream"); }
  absl::Status SynchronizeContext() override { return Call("SynchronizeContext"); }

  absl::StatusOr<Stream> CreateStream() override {
    BERTH_RETURN_IF_ERROR(Call("CreateStream"));
    return reinterpret_cast<Stream>(*streams.insert(++last_).first);
  }
  absl::Status DestroyStream(Stream stream) override {
    streams.erase(reinterpret_cast<uint64_t>(stream));
    return Call("DestroyStream");
  }
  absl::StatusOr<bool> QueryStream(Stream) override { return Answer("QueryStream", true); }
  absl::StatusOr<Event> CreateEvent() override {
    BERTH_RETURN_IF_ERROR(Call("CreateEvent"));
    return reinterpret_cast<Event>(*events.insert(++last_).first);
  }
  absl::Status DestroyEvent(Event event) override {
    events.erase(reinterpret_cast<uint64_t>(event));
    return Call("DestroyEvent");
  }
  absl::Status RecordEvent(Event, Stream) override { return Call("RecordEvent"); }
  absl::Status WaitEvent(Stream stream, Event event) override {
    awaited.push_back({stream, event});
    return Call("WaitEvent");
  }
  absl::StatusOr<bool> QueryEvent(Event) override { return Answer("QueryEvent", reached); }
  absl::StatusOr<CaptureMode> ExchangeCaptureMode(CaptureMode mode) override {
    return Answer("ExchangeCaptureMode", std::exchange(capture_mode, mode));
  }
  absl::StatusOr<DevicePointer> RegisterHostMemory(void* address, Bytes, bool) override {
    BERTH_RETURN_IF_ERROR(Call("RegisterHostMemory"));
    registered.insert(address);
    return reinterpret_cast<DevicePointer>(address);
  }
  absl::Status UnregisterHostMemory(void* address) override {
    registered.erase(address);
    return Call("UnregisterHostMemory");
  }
  // Streams of the fake complete at once: the word is written, and no wait blocks.
  absl::Status WriteValue64(Stream, DevicePointer at, uint64_t value) override {
    BERTH_RETURN_IF_ERROR(Call("WriteValue64"));
    reinterpret_cast<std::atomic<uint64_t>*>(at)->store(value);
    return absl::OkStatus();
  }
  absl::Status WaitValue64(Stream, DevicePointer at, uint64_t value) override {
    waited_for.push_back({at, value});
    return Call("WaitValue64");
  }

  absl::StatusOr<DevicePointer> AllocateAsync(Bytes, Stream) override {
    return Answer("AllocateAsync", ++last_);
  }
  absl::Status FreeAsync(DevicePointer, Stream) override { return Call("FreeAsync"); }
  absl::Status FillAsync(DevicePointer, uint8_t, Bytes, Stream) override { return Call("FillAsync"); }

 private:
  absl::Status Call(const std::string& name) {
    calls.push_back(name);
    capture_mode_of[name] = capture_mode;
    context_of[name] = current;
    return name == failing ? DriverError(name, failing_code, failing_name) : absl::OkStatus();
  }
  template <typename T>
  absl::StatusOr<T> Answer(const std::string& name, T value) {
    BERTH_RETURN_IF_ERROR(Call(name));
    return value;
  }
  absl::StatusOr<Allocation> NewAllocation(const std::string& name) {
    BERTH_RETURN_IF_ERROR(Call(name));
    return *allocations.insert(++last_).first;
  }

  uint64_t last_ = 0;
};

}  // namespace berth::cuda

#endif  // COMMON_CUDA_TESTING_FAKE_DRIVER_H_
