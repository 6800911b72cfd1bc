#include "tests/gpu/batched_cholesky.h"

#include <array>
#include <cmath>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/cuda/current_context.h"
#include "common/cuda/nvrtc.h"
#include "common/status_macros.h"

namespace berth::gpu {
namespace {

using cuda::CurrentContext;
using cuda::DeviceAttribute;
using cuda::DevicePointer;
using cuda::Driver;

constexpr uint32_t kOrder = BatchedCholesky::kOrder;

// Off-diagonal entries are less than 1, and the diagonal exceeds the sum of a row: positive definite.
constexpr char kSource[] = R"(
__device__ double Entry(unsigned long long unit, unsigned int row, unsigned int column) {
  const unsigned int low = row < column ? row : column, high = row < column ? column : row;
  unsigned long long x = unit * 1024 + low * 32 + high;
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  const double drawn = (double)((x ^ (x >> 31)) >> 11) * (1.0 / 9007199254740992.0);
  return row == column ? 32.0 + drawn : drawn;
}

extern "C" __global__ void Fill(double* matrices, unsigned long long first, unsigned long long count) {
  for (unsigned long long unit = blockIdx.x; unit < count; unit += gridDim.x) {
    double* const matrix = matrices + unit * 1024;
    for (unsigned int column = 0; column < 32; ++column) {
      matrix[column * 32 + threadIdx.x] = Entry(first + unit, threadIdx.x, column);
    }
  }
}

// A warp factorises a matrix, a row each thread.
extern "C" __global__ void Factorise(double* matrices, unsigned long long count, double* log_determinants) {
  __shared__ double a[32][33];
  const unsigned int row = threadIdx.x;
  for (unsigned long long unit = blockIdx.x; unit < count; unit += gridDim.x) {
    double* const matrix = matrices + unit * 1024;
    for (unsigned int column = 0; column < 32; ++column) a[row][column] = matrix[column * 32 + row];
    __syncwarp();
    double sum = 0;
    for (unsigned int k = 0; k < 32; ++k) {
      const double pivot = sqrt(a[k][k]);
      __syncwarp();
      if (row == k) a[k][k] = pivot;
      if (row > k) a[row][k] /= pivot;
      __syncwarp();
      if (row > k) {
        for (unsigned int column = k + 1; column <= row; ++column) a[row][column] -= a[row][k] * a[column][k];
      }
      __syncwarp();
      sum += log(pivot);
    }
    for (unsigned int column = 0; column < 32; ++column) matrix[column * 32 + row] = a[row][column];
    if (row == 0) log_determinants[unit] = 2 * sum;
    __syncwarp();
  }
}
)";

double Entry(uint64_t unit, uint32_t row, uint32_t column) {
  uint64_t x = unit * 1024 + std::min(row, column) * 32 + std::max(row, column);
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  const double drawn = static_cast<double>((x ^ (x >> 31)) >> 11) * (1.0 / 9007199254740992.0);
  return row == column ? 32.0 + drawn : drawn;
}

void Fill(uint64_t unit, double* matrix) {
  for (uint32_t column = 0; column < kOrder; ++column) {
    for (uint32_t row = 0; row < kOrder; ++row) matrix[column * kOrder + row] = Entry(unit, row, column);
  }
}

double Factorise(double* matrix) {
  const auto at = [&](uint32_t row, uint32_t column) -> double& { return matrix[column * kOrder + row]; };
  double sum = 0;
  for (uint32_t k = 0; k < kOrder; ++k) {
    const double pivot = std::sqrt(at(k, k));
    at(k, k) = pivot;
    for (uint32_t row = k + 1; row < kOrder; ++row) at(row, k) /= pivot;
    for (uint32_t row = k + 1; row < kOrder; ++row) {
      for (uint32_t column = k + 1; column <= row; ++column) at(row, column) -= at(row, k) * at(column, k);
    }
    sum += std::log(pivot);
  }
  return 2 * sum;
}

}  // namespace

double BatchedCholesky::LogDeterminant(uint64_t unit) {
  std::array<double, kOrder * kOrder> matrix;
  Fill(unit, matrix.data());
  return Factorise(matrix.data());
}

absl::StatusOr<std::unique_ptr<BatchedCholesky>> BatchedCholesky::For(const std::vector<std::string>& uuids) {
  Driver* driver = nullptr;
  if (!uuids.empty()) {
    BERTH_ASSIGN_OR_RETURN(driver, Driver::Get());
  }
  std::unique_ptr<BatchedCholesky> batch(new BatchedCholesky(driver));
  for (const std::string& uuid : uuids) BERTH_RETURN_IF_ERROR(batch->Load(uuid));
  return batch;
}

absl::Status BatchedCholesky::Load(const std::string& uuid) {
  BERTH_ASSIGN_OR_RETURN(const int ordinal, cuda::FindDevice(*driver_, uuid));
  BERTH_ASSIGN_OR_RETURN(const int major,
                         driver_->Attribute(ordinal, DeviceAttribute::kComputeCapabilityMajor));
  BERTH_ASSIGN_OR_RETURN(const int minor,
                         driver_->Attribute(ordinal, DeviceAttribute::kComputeCapabilityMinor));
  BERTH_ASSIGN_OR_RETURN(const std::string image,
                         cuda::Compile(kSource, absl::StrCat("compute_", major, minor)));
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver_->RetainPrimaryContext(ordinal));
  Loaded& loaded = loaded_[ordinal];
  BERTH_ASSIGN_OR_RETURN(const CurrentContext current, CurrentContext::Enter(*driver_, context));
  BERTH_ASSIGN_OR_RETURN(loaded.module, driver_->LoadModule(image));
  BERTH_ASSIGN_OR_RETURN(loaded.fill, driver_->GetFunction(loaded.module, "Fill"));
  BERTH_ASSIGN_OR_RETURN(loaded.factorise, driver_->GetFunction(loaded.module, "Factorise"));
  return absl::OkStatus();
}

BatchedCholesky::~BatchedCholesky() {
  for (const auto& [ordinal, loaded] : loaded_) {
    // The module ends with its context.
    driver_->ReleasePrimaryContext(ordinal).IgnoreError();
  }
}

absl::Status BatchedCholesky::Run(int ordinal, const Mapping& memory, uint64_t first, int passes,
                                  absl::Span<double> log_determinants) const {
  const uint64_t count = log_determinants.size();
  if (driver_ == nullptr) {
    auto* const matrices = static_cast<double*>(memory.data());
    for (uint64_t i = 0; i < count; ++i) {
      Fill(first + i, matrices + i * kOrder * kOrder);
      log_determinants[i] = Factorise(matrices + i * kOrder * kOrder);
    }
    return absl::OkStatus();
  }
  BERTH_ASSIGN_OR_RETURN(const DevicePointer out, driver_->Allocate(Bytes(count * sizeof(double))));
  absl::Status status = RunOnGpu(loaded_.at(ordinal), memory, first, passes, out, count);
  if (status.ok()) {
    status = driver_->CopyToHost(std::as_writable_bytes(std::span(log_determinants.data(), count)), out);
  }
  status.Update(driver_->Free(out));
  return status;
}

absl::Status BatchedCholesky::RunOnGpu(const Loaded& loaded, const Mapping& memory, uint64_t first,
                                       int passes, DevicePointer out, uint64_t count) const {
  DevicePointer matrices = reinterpret_cast<DevicePointer>(memory.data());
  const cuda::LaunchShape shape = {.grid = {132 * 32, 1, 1}, .block = {kOrder, 1, 1}};
  for (int pass = 0; pass < passes; ++pass) {
    void* fill[] = {&matrices, &first, &count};
    BERTH_RETURN_IF_ERROR(driver_->Launch(loaded.fill, shape, /*stream=*/nullptr, fill));
    void* factorise[] = {&matrices, &count, &out};
    BERTH_RETURN_IF_ERROR(driver_->Launch(loaded.factorise, shape, /*stream=*/nullptr, factorise));
  }
  return driver_->SynchronizeContext();
}

}  // namespace berth::gpu
