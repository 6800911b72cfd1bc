// What every MemoryBackend has to do, as tests. A backend's test program instantiates them:
//
//   INSTANTIATE_TEST_SUITE_P(Host, MemoryBackendConformance, testing::Values(&harness));
//   int main(int argc, char** argv) { return RunConformance(argc, argv, harness); }

#ifndef DAEMON_DEVICE_MEMORY_BACKEND_CONFORMANCE_H_
#define DAEMON_DEVICE_MEMORY_BACKEND_CONFORMANCE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "daemon/device/memory_backend.h"

namespace berth {

// How the tests reach a backend and what it made.
class BackendHarness {
 public:
  virtual ~BackendHarness() = default;

  // Errors: UNSUPPORTED where this machine has no such device: the tests are skipped then, or fail if
  // BERTH_REQUIRE_CUDA=1.
  virtual absl::StatusOr<std::unique_ptr<MemoryBackend>> Open() = 0;
  // `size` bytes of the block behind `fd` from `offset` on.
  virtual absl::StatusOr<std::string> Read(int fd, Bytes bytes, uint64_t offset, size_t size) = 0;
  virtual absl::Status Write(int fd, Bytes bytes, uint64_t offset, absl::string_view text) = 0;
};

class MemoryBackendConformance : public ::testing::TestWithParam<BackendHarness*> {
 protected:
  void SetUp() override;
  BackendHarness& harness() { return *GetParam(); }

  std::unique_ptr<MemoryBackend> backend_;
};

// Runs the program's tests. Also serves as the process that one of them kills.
int RunConformance(int argc, char** argv, BackendHarness& harness);

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_BACKEND_CONFORMANCE_H_
