#include "tests/gpu/fenced_stream.h"

#include <sys/mman.h>

#include <span>
#include <string>
#include <utility>

#include <berth/bytes.h>

#include "absl/strings/str_cat.h"
#include "common/cuda/nvrtc.h"
#include "common/status_macros.h"

namespace berth::gpu {
namespace {

constexpr int kOrdinal = 0;
constexpr Bytes kPage = Bytes(4096);

constexpr char kKernels[] = R"(
typedef unsigned long long u64;
__device__ unsigned Pattern(u64 index, u64 seed) { return ((unsigned)index + (unsigned)seed) * 2654435761u; }
extern "C" __global__ void Fill(unsigned* words, u64 count, u64 seed) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) words[i] = Pattern(i, seed);
}
extern "C" __global__ void Check(const unsigned* words, u64 count, u64 seed, u64* wrong) {
  u64 mine = 0;
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) mine += words[i] != Pattern(i, seed);
  if (mine != 0) atomicAdd(wrong, mine);
}
extern "C" __global__ void Spin(const volatile u64* word, u64 value) {
  while (*word < value) {}
}
extern "C" __global__ void Fault() { *(volatile unsigned*)0x10 = 1; }
)";

// Returns the kernels for the device, compiled once per process.
absl::StatusOr<std::string> Image(cuda::Driver& driver) {
  static const auto* const kImage =
      new absl::StatusOr<std::string>([&driver]() -> absl::StatusOr<std::string> {
        BERTH_ASSIGN_OR_RETURN(const int major,
                               driver.Attribute(kOrdinal, cuda::DeviceAttribute::kComputeCapabilityMajor));
        BERTH_ASSIGN_OR_RETURN(const int minor,
                               driver.Attribute(kOrdinal, cuda::DeviceAttribute::kComputeCapabilityMinor));
        return cuda::Compile(kKernels, absl::StrCat("sm_", major, minor));
      }());
  return *kImage;
}

cuda::DevicePointer AddressOf(const Mapping& mapping) {
  return reinterpret_cast<cuda::DevicePointer>(mapping.data());
}

}  // namespace

absl::StatusOr<std::unique_ptr<FencedStream>> FencedStream::Open(const std::shared_ptr<Session>& session) {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver->RetainPrimaryContext(kOrdinal));
  std::unique_ptr<FencedStream> fenced(new FencedStream(*driver));
  BERTH_RETURN_IF_ERROR(driver->SetCurrentContext(context));
  BERTH_RETURN_IF_ERROR(fenced->Load());
  BERTH_ASSIGN_OR_RETURN(fenced->tracked_, Stream::AdoptCuda(session, {.cuda_stream = fenced->stream_}));
  return fenced;
}

absl::Status FencedStream::Load() {
  BERTH_ASSIGN_OR_RETURN(const std::string image, Image(driver_));
  BERTH_ASSIGN_OR_RETURN(module_, driver_.LoadModule(image));
  for (const auto& [function, name] :
       {std::pair(&fill_, "Fill"), {&check_, "Check"}, {&spin_, "Spin"}, {&fault_, "Fault"}}) {
    BERTH_ASSIGN_OR_RETURN(*function, driver_.GetFunction(module_, name));
  }
  BERTH_ASSIGN_OR_RETURN(wrong_, driver_.Allocate(Bytes(sizeof(uint64_t))));
  BERTH_RETURN_IF_ERROR(driver_.Fill(wrong_, 0, Bytes(sizeof(uint64_t))));
  void* const page =
      ::mmap(nullptr, kPage.count(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return absl::ResourceExhaustedError("no page for the gate");
  gate_ = static_cast<std::atomic<uint64_t>*>(page);
  BERTH_ASSIGN_OR_RETURN(device_gate_, driver_.RegisterHostMemory(gate_, kPage, /*read_only=*/false));
  BERTH_ASSIGN_OR_RETURN(stream_, driver_.CreateStream());
  return absl::OkStatus();
}

FencedStream::~FencedStream() {
  if (gate_ != nullptr) gate_->store(INT64_MAX);
  tracked_ = nullptr;
  if (stream_ != nullptr) {
    driver_.SynchronizeStream(stream_).IgnoreError();
    driver_.DestroyStream(stream_).IgnoreError();
  }
  if (device_gate_ != 0) driver_.UnregisterHostMemory(gate_).IgnoreError();
  if (gate_ != nullptr) ::munmap(gate_, kPage.count());
  if (wrong_ != 0) driver_.Free(wrong_).IgnoreError();
  if (module_ != nullptr) driver_.UnloadModule(module_).IgnoreError();
  driver_.ReleasePrimaryContext(kOrdinal).IgnoreError();
}

absl::Status FencedStream::QueueGate() { return driver_.WaitValue64(stream_, device_gate_, ++gates_); }

absl::Status FencedStream::QueueSpin() {
  ++gates_;
  void* arguments[] = {&device_gate_, &gates_};
  return Launch(spin_, 1, 1, arguments);
}

absl::Status FencedStream::QueueFill(const Mapping& mapping, uint64_t seed) {
  cuda::DevicePointer words = AddressOf(mapping);
  uint64_t count = mapping.size() / sizeof(uint32_t);
  void* arguments[] = {&words, &count, &seed};
  return Launch(fill_, 264, 256, arguments);
}

absl::Status FencedStream::QueueCheck(const Mapping& mapping, uint64_t seed) {
  cuda::DevicePointer words = AddressOf(mapping);
  uint64_t count = mapping.size() / sizeof(uint32_t);
  void* arguments[] = {&words, &count, &seed, &wrong_};
  return Launch(check_, 264, 256, arguments);
}

absl::Status FencedStream::QueueFault() { return Launch(fault_, 1, 1, nullptr); }

absl::Status FencedStream::Launch(cuda::Function function, uint32_t blocks, uint32_t threads, void** arguments) {
  return driver_.Launch(function, {.grid = {blocks, 1, 1}, .block = {threads, 1, 1}}, stream_, arguments);
}

absl::StatusOr<uint64_t> FencedStream::Sync() {
  BERTH_RETURN_IF_ERROR(tracked_->Synchronize());
  uint64_t wrong = 0;
  BERTH_RETURN_IF_ERROR(driver_.CopyToHost(std::as_writable_bytes(std::span(&wrong, 1)), wrong_));
  return wrong - std::exchange(wrong_seen_, wrong);
}

absl::StatusOr<bool> FencedStream::Queue(Use use, const Mapping& mapping,
                                         absl::FunctionRef<absl::Status()> work) {
  LaunchRecorder launch(*tracked_);
  if (use == Use::kRead) launch.Read(mapping);
  if (use == Use::kWrite) launch.Write(mapping);
  if (use == Use::kReadWrite) launch.ReadWrite(mapping);
  BERTH_RETURN_IF_ERROR(launch.Preflight());
  const bool torn = !launch.torn().empty();
  BERTH_RETURN_IF_ERROR(work());
  BERTH_RETURN_IF_ERROR(launch.Commit());
  return torn;
}

}  // namespace berth::gpu
