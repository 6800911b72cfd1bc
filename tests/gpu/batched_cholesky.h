// BatchedCholesky: a real batch to split: many small matrices, each factorised independently, on GPUs or by loops on
// the host. A unit is a matrix; its result does not depend on the others.

#ifndef TESTS_GPU_BATCHED_CHOLESKY_H_
#define TESTS_GPU_BATCHED_CHOLESKY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <berth/block.h>
#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/cuda/driver.h"

namespace berth::gpu {

// Thread-safe after construction.
class BatchedCholesky {
 public:
  static constexpr uint32_t kOrder = 32;
  // Size of one matrix: kOrder × kOrder doubles.
  static constexpr Bytes kUnitBytes = KiB(8);

  // Compiles the kernels and loads them on each device, whose contexts it holds. No devices: loops on the host.
  static absl::StatusOr<std::unique_ptr<BatchedCholesky>> For(const std::vector<std::string>& uuids);
  BatchedCholesky(const BatchedCholesky&) = delete;
  BatchedCholesky& operator=(const BatchedCholesky&) = delete;
  ~BatchedCholesky();

  // Makes matrices `first`, `first` + 1, … in `memory`, which must be large enough, factorises them `passes` times
  // anew, and stores the logarithm of each determinant. On a GPU: in the current context, which belongs to `ordinal`.
  absl::Status Run(int ordinal, const Mapping& memory, uint64_t first, int passes,
                   absl::Span<double> log_determinants) const;

  // As above, for one matrix on the host.
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
