#include "tests/gpu/compute.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/cuda/driver.h"
#include "common/cuda/nvrtc.h"
#include "common/status_macros.h"

namespace berth::gpu {
namespace {

using cuda::DeviceAttribute;
using cuda::DevicePointer;
using cuda::Driver;

// Every thread first sums its own stride, so that few threads contend for the total.
constexpr char kSumSource[] = R"(
extern "C" __global__ void Sum(const unsigned int* words, unsigned long long count, unsigned long long* total,
                               unsigned long long nanoseconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
  unsigned long long sum = 0;
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    sum += words[i];
  }
  atomicAdd(total, sum);
}
)";

constexpr char kPoisonSource[] = R"(
extern "C" __global__ void Poison() { *(volatile unsigned int*)64 = 1; }
)";

// Compiles a source with one function for the device and loads it into the current context.
absl::StatusOr<cuda::Module> Load(Driver& driver, int ordinal, const char* source) {
  BERTH_ASSIGN_OR_RETURN(const int major,
                         driver.Attribute(ordinal, DeviceAttribute::kComputeCapabilityMajor));
  BERTH_ASSIGN_OR_RETURN(const int minor,
                         driver.Attribute(ordinal, DeviceAttribute::kComputeCapabilityMinor));
  BERTH_ASSIGN_OR_RETURN(const std::string image,
                         cuda::Compile(source, absl::StrCat("compute_", major, minor)));
  return driver.LoadModule(image);
}

class HostCompute final : public Compute {
 public:
  absl::Status Write(const Mapping& mapping, std::span<const uint32_t> words) override {
    memcpy(mapping.data(), words.data(), words.size_bytes());
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> Sum(const Mapping& mapping) override {
    const auto* const words = static_cast<const uint32_t*>(mapping.data());
    uint64_t sum = 0;
    for (size_t i = 0; i < mapping.size() / sizeof(uint32_t); ++i) sum += words[i];
    return sum;
  }
  absl::Status Launch(const Mapping& mapping, absl::Duration duration) override {
    launched_.emplace(mapping);
    done_ = absl::Now() + duration;
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> Await() override {
    while (absl::Now() < done_) {
    }
    return Sum(*launched_);
  }
  absl::Status Fill(const Mapping& mapping, uint8_t value) override {
    if (mapping.read_only()) return absl::PermissionDeniedError("a write would fault");
    memset(mapping.data(), value, mapping.size());
    return absl::OkStatus();
  }
  absl::Status Poison() override { return absl::UnimplementedError("there is no context"); }

 private:
  std::optional<Mapping> launched_;
  absl::Time done_;
};

DevicePointer AddressOf(const Mapping& mapping) { return reinterpret_cast<DevicePointer>(mapping.data()); }

class CudaCompute final : public Compute {
 public:
  static absl::StatusOr<std::unique_ptr<Compute>> Make(const std::string& uuid) {
    BERTH_ASSIGN_OR_RETURN(Driver* const driver, Driver::Get());
    BERTH_ASSIGN_OR_RETURN(const int ordinal, cuda::FindDevice(*driver, uuid));
    BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver->RetainPrimaryContext(ordinal));
    std::unique_ptr<CudaCompute> compute(new CudaCompute(*driver, ordinal));
    BERTH_RETURN_IF_ERROR(driver->SetCurrentContext(context));
    BERTH_RETURN_IF_ERROR(compute->LoadKernel());
    return compute;
  }
  ~CudaCompute() override {
    if (module_ != nullptr) driver_.UnloadModule(module_).IgnoreError();
    driver_.ReleasePrimaryContext(ordinal_).IgnoreError();
  }

  absl::Status Write(const Mapping& mapping, std::span<const uint32_t> words) override {
    return driver_.CopyToDevice(AddressOf(mapping), std::as_bytes(words));
  }

  absl::StatusOr<uint64_t> Sum(const Mapping& mapping) override {
    BERTH_RETURN_IF_ERROR(Launch(mapping, absl::ZeroDuration()));
    return Await();
  }

  absl::Status Launch(const Mapping& mapping, absl::Duration duration) override {
    BERTH_ASSIGN_OR_RETURN(total_, driver_.Allocate(Bytes(sizeof(uint64_t))));
    BERTH_RETURN_IF_ERROR(driver_.Fill(total_, 0, Bytes(sizeof(uint64_t))));
    DevicePointer words = AddressOf(mapping);
    uint64_t count = mapping.size() / sizeof(uint32_t);
    auto nanoseconds = static_cast<uint64_t>(absl::ToInt64Nanoseconds(duration));
    void* arguments[] = {&words, &count, &total_, &nanoseconds};
    const cuda::LaunchShape shape = {.grid = {528, 1, 1}, .block = {256, 1, 1}};
    return driver_.Launch(sum_, shape, /*stream=*/nullptr, arguments);
  }

  absl::StatusOr<uint64_t> Await() override {
    uint64_t sum = 0;
    absl::Status read = driver_.SynchronizeContext();
    if (read.ok()) read = driver_.CopyToHost(std::as_writable_bytes(std::span(&sum, 1)), total_);
    const absl::Status freed = driver_.Free(total_);
    BERTH_RETURN_IF_ERROR(read);
    BERTH_RETURN_IF_ERROR(freed);
    return sum;
  }

  absl::Status Fill(const Mapping& mapping, uint8_t value) override {
    BERTH_RETURN_IF_ERROR(driver_.Fill(AddressOf(mapping), value, Bytes(mapping.size())));
    return driver_.SynchronizeContext();
  }

  absl::Status Poison() override { return gpu::Poison(driver_, ordinal_); }

 private:
  CudaCompute(Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}

  absl::Status LoadKernel() {
    BERTH_ASSIGN_OR_RETURN(module_, Load(driver_, ordinal_, kSumSource));
    BERTH_ASSIGN_OR_RETURN(sum_, driver_.GetFunction(module_, "Sum"));
    return absl::OkStatus();
  }

  Driver& driver_;
  const int ordinal_;
  cuda::Module module_ = nullptr;
  cuda::Function sum_ = nullptr;
  // Device memory for the sum of a launch.
  DevicePointer total_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Compute>> Compute::For(const Block& block, const std::string& device) {
  if (block.kind() == BlockKind::kHost) return std::make_unique<HostCompute>();
  return CudaCompute::Make(device.empty() ? block.handle().device_uuid : device);
}

absl::Status Poison(Driver& driver, int ordinal) {
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver.RetainPrimaryContext(ordinal));
  BERTH_RETURN_IF_ERROR(driver.SetCurrentContext(context));
  BERTH_ASSIGN_OR_RETURN(const cuda::Module module, Load(driver, ordinal, kPoisonSource));
  BERTH_ASSIGN_OR_RETURN(const cuda::Function poison, driver.GetFunction(module, "Poison"));
  BERTH_RETURN_IF_ERROR(driver.Launch(poison, {}, /*stream=*/nullptr, nullptr));
  return driver.SynchronizeContext();
}

uint32_t PatternWord(uint32_t seed, uint64_t index) {
  // Knuth's multiplicative hash: neighbouring words differ in all bytes.
  return (static_cast<uint32_t>(index) + seed) * 2654435761u;
}

uint64_t PatternSum(uint32_t seed, Bytes bytes) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < bytes.count() / sizeof(uint32_t); ++i) sum += PatternWord(seed, i);
  return sum;
}

}  // namespace berth::gpu
