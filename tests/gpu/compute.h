// Compute: a test process's work on a mapped block, so that the same tests run on both backends. On a GPU it uses
// copies and a kernel compiled at run time, on the host loops.

#ifndef TESTS_GPU_COMPUTE_H_
#define TESTS_GPU_COMPUTE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <berth/block.h>
#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cuda/driver.h"

namespace berth::gpu {

// Thread-compatible; CUDA work runs on the creating thread.
class Compute {
 public:
  // Creates one for blocks of `block`'s kind, mapped for the device with that UUID, or for the block's own; retains a
  // context there. Errors: those of the driver.
  static absl::StatusOr<std::unique_ptr<Compute>> For(const Block& block, const std::string& device = "");
  virtual ~Compute() = default;

  // Copies `words` to the start of the mapping.
  virtual absl::Status Write(const Mapping& mapping, std::span<const uint32_t> words) = 0;
  // Sums the mapping's words in place.
  virtual absl::StatusOr<uint64_t> Sum(const Mapping& mapping) = 0;
  // Sum() in two halves: begins to sum, for at least `duration`; waits for the sum.
  virtual absl::Status Launch(const Mapping& mapping, absl::Duration duration) = 0;
  virtual absl::StatusOr<uint64_t> Await() = 0;
  // Sets every byte. Errors: kPermissionDenied, or the driver's, on a read-only mapping.
  virtual absl::Status Fill(const Mapping& mapping, uint8_t value) = 0;
  // Poisons the context with a kernel that writes to unmapped memory: no work of this process succeeds there any more.
  // Errors: the driver's for that fault.
  virtual absl::Status Poison() = 0;
};

// Poisons the primary context of a device, as Compute::Poison().
absl::Status Poison(cuda::Driver& driver, int ordinal);

// The words that tests write, and their sum.
uint32_t PatternWord(uint32_t seed, uint64_t index);
uint64_t PatternSum(uint32_t seed, Bytes bytes);

}  // namespace berth::gpu

#endif  // TESTS_GPU_COMPUTE_H_
