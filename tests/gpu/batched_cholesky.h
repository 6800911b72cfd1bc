// BatchedCholesky: a real batch to split: many small matrices, each factorised by itself, on GPUs or with loops on
// the host. A unit is a matrix; what it comes to is known of each without the others.

#ifndef TESTS_GPU_BATCHED_CHOLESKY_H_
#define TESTS_GPU_BATCHED_CHOLESKY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/block.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"

namespace berth::gpu {

// Thread-safe once made.
class BatchedCholesky {
 public:
  static constexpr uint32_t kOrder = 32;
  // Of one matrix.
  static constexpr Bytes kUnitBytes = KiB(8);

  // Compiles the kernels and loads them on each device, whose contexts it holds. No devices: loops on the host.
  static absl::StatusOr<std::unique_ptr<BatchedCholesky>> For(const std::vector<std::string>& uuids);
  BatchedCholesky(const BatchedCholesky&) = delete;
  BatchedCholesky& operator=(const BatchedCholesky&) = delete;
  ~BatchedCholesky();

  // Makes matrices `first`, `first` + 1, … in `memory`, which has room for them, factorises them `passes` times anew,
  // and tells the logarithm of each determinant. On a GPU: in the current context, which is one of `ordinal`.
  absl::Status Run(int ordinal, const Mapping& memory, uint64_t first, int passes,
                   absl::Span<double> log_determinants) const;

  // The same of one matrix, by the host alone.
  static double LogDeterminant(uint64_t unit);

 private:
  struct Loaded {
    cuda::Module module = nullptr;
    cuda::Function fill = nullptr;
    cuda::Function factorise = nullptr;
  };

  explicit BatchedCholesky(cuda::Driver* driver) : driver_(driver) {}
  absl::Status Load(const std::string& uuid);
  absl::Status RunOnGpu(const Loaded& loaded, const Mapping& memory, uint64_t first, int passes,
                        cuda::DevicePointer out, uint64_t count) const;

  // Null on the host.
  cuda::Driver* const driver_;
  // By ordinal.
  std::map<int, Loaded> loaded_;
};

}  // namespace berth::gpu

#endif  // TESTS_GPU_BATCHED_CHOLESKY_H_
