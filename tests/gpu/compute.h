// Compute: what a test's process does with a mapped block's memory: on a GPU with copies and a kernel
// compiled there and then, on the host with loops, so that the same tests run on both.

#ifndef TESTS_GPU_COMPUTE_H_
#define TESTS_GPU_COMPUTE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/block.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"

namespace berth::gpu {

// Thread-compatible; CUDA work runs on the thread that made it.
class Compute {
 public:
  // For blocks of `block`'s kind that are mapped for the device with that UUID, or for its own; retains a context
  // there. Errors: those of the driver.
  static absl::StatusOr<std::unique_ptr<Compute>> For(const Block& block, const std::string& device = "");
  virtual ~Compute() = default;

  // Copies `words` to the start of the mapping.
  virtual absl::Status Write(const Mapping& mapping, std::span<const uint32_t> words) = 0;
  // Sums the mapping's words where they are.
  virtual absl::StatusOr<uint64_t> Sum(const Mapping& mapping) = 0;
  // The same in two halves: begins to sum, which takes at least `duration`, and awaits the sum.
  virtual absl::Status Launch(const Mapping& mapping, absl::Duration duration) = 0;
  virtual absl::StatusOr<uint64_t> Await() = 0;
  // Sets every byte. Errors: kPermissionDenied, or the driver's, on a read-only mapping.
  virtual absl::Status Fill(const Mapping& mapping, uint8_t value) = 0;
  // Poisons the context, as a kernel that writes where nothing is: nothing of this process works there any more.
  // Errors: what the driver says of that.
  virtual absl::Status Poison() = 0;
};

// Poisons the primary context of a device, as Compute::Poison().
absl::Status Poison(cuda::Driver& driver, int ordinal);

// The words that tests write, and so what their sum must be.
uint32_t PatternWord(uint32_t seed, uint64_t index);
uint64_t PatternSum(uint32_t seed, Bytes bytes);

}  // namespace berth::gpu

#endif  // TESTS_GPU_COMPUTE_H_
