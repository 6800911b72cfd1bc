// What every MemoryResource has to do, as tests. A resource's test program instantiates them:
//
//   INSTANTIATE_TEST_SUITE_P(Host, MemoryResourceConformance, testing::Values(&harness));
//   int main(int argc, char** argv) { return RunConformance(argc, argv, harness); }

#ifndef DAEMON_DEVICE_MEMORY_RESOURCE_CONFORMANCE_H_
#define DAEMON_DEVICE_MEMORY_RESOURCE_CONFORMANCE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "daemon/device/memory_resource.h"

namespace berth {

// How the tests reach a resource and what it made.
class ResourceHarness {
 public:
  virtual ~ResourceHarness() = default;

  // Errors: UNSUPPORTED where this machine has no such device: the tests are skipped then, or fail if
  // BERTH_REQUIRE_CUDA=1.
  virtual absl::StatusOr<std::unique_ptr<MemoryResource>> Open() = 0;
  // `size` bytes of a block from `offset` on. One of another process is no more than its bytes and its fd or handle.
  virtual absl::StatusOr<std::string> Read(const MemoryBlock& block, uint64_t offset, size_t size) = 0;
  virtual absl::Status Write(const MemoryBlock& block, uint64_t offset, absl::string_view text) = 0;
  // Whether another process can reach what this one makes: not with a fake device.
  virtual bool SpansProcesses() const { return true; }
};

class MemoryResourceConformance : public ::testing::TestWithParam<ResourceHarness*> {
 protected:
  void SetUp() override;
  ResourceHarness& harness() { return *GetParam(); }

  MemoryBlock Allocate(uint64_t granules = 1);
  std::string Read(const MemoryBlock& block, uint64_t offset, size_t size);
  // Whether the first and the last bytes of the block are `value`.
  bool IsFull(const MemoryBlock& block, char value);

  std::unique_ptr<MemoryResource> resource_;
};

// Runs the program's tests. Also serves as the process that one of them kills.
int RunConformance(int argc, char** argv, ResourceHarness& harness);

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_RESOURCE_CONFORMANCE_H_
