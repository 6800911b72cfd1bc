// gpu_test SEED BYTES [--permit] [--declare] [--stay]: a typical test that uses a GPU: a process that creates a
// context, allocates memory without Berth, computes, and ends. With --permit it acquires its own permit; without, it
// knows nothing of Berth and runs under `berth run`. With --declare it first declares its bytes, on any device that has
// them. With --stay it holds them until its input is closed. Prints "right" where every checked byte was as written,
// and "wrong: …" otherwise. $BERTH_GPU_TEST_BACKEND=host runs the same on host memory.

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <berth/bytes.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"

namespace berth::gpu {
namespace {

// The size of each checked window: at the start, in the middle and at the end.
constexpr Bytes kWindow = MiB(4);
constexpr int kRounds = 4;

absl::Status Wrong(uint64_t at) { return absl::DataLossError(absl::StrCat("byte ", at, " is another's")); }

// Waits until the starting process closes the input.
void Stay() {
  std::string line;
  while (std::getline(std::cin, line)) {
  }
}

absl::Status ComputeOnHost(uint8_t value, Bytes bytes, bool stay) {
  std::vector<uint8_t> memory(std::min(bytes, kWindow).count());
  for (int round = 0; round < 64 * kRounds; ++round) {
    memset(memory.data(), value + round, memory.size());
    for (size_t i = 0; i < memory.size(); i += 4096) {
      if (memory[i] != static_cast<uint8_t>(value + round)) return Wrong(i);
    }
  }
  if (stay) Stay();
  return absl::OkStatus();
}

absl::Status LookAt(cuda::Driver& driver, cuda::DevicePointer at, uint8_t value, Bytes bytes) {
  const uint64_t window = std::min(bytes, kWindow).count();
  std::vector<uint8_t> seen(window);
  for (const uint64_t offset : {uint64_t{0}, (bytes.count() - window) / 2, bytes.count() - window}) {
    BERTH_RETURN_IF_ERROR(driver.CopyToHost(std::as_writable_bytes(std::span(seen)), at + offset));
    for (size_t i = 0; i < seen.size(); ++i) {
      if (seen[i] != value) return Wrong(offset + i);
    }
  }
  return absl::OkStatus();
}

absl::Status ComputeIn(cuda::Driver& driver, uint8_t value, Bytes bytes, bool stay) {
  BERTH_ASSIGN_OR_RETURN(const cuda::DevicePointer memory, driver.Allocate(bytes));
  absl::Status status;
  for (int round = 0; round < kRounds && status.ok(); ++round) {
    const auto now = static_cast<uint8_t>(value + round);
    status = driver.Fill(memory, now, bytes);
    if (status.ok()) status = driver.SynchronizeContext();
    if (status.ok()) status = LookAt(driver, memory, now, bytes);
  }
  if (stay) Stay();
  status.Update(driver.Free(memory));
  return status;
}

// Leaves no context behind, so that the number of contexts equals the number of permits.
absl::Status ComputeOnGpu(uint8_t value, Bytes bytes, const std::string& uuid, bool stay) {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  int ordinal = 0;
  if (!uuid.empty()) {
    BERTH_ASSIGN_OR_RETURN(ordinal, cuda::FindDevice(*driver, uuid));
  }
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver->RetainPrimaryContext(ordinal));
  absl::Status status = driver->SetCurrentContext(context);
  if (status.ok()) status = ComputeIn(*driver, value, bytes, stay);
  status.Update(driver->SetCurrentContext(nullptr));
  status.Update(driver->ReleasePrimaryContext(ordinal));
  return status;
}

absl::Status Test(uint8_t value, Bytes bytes, bool permit, bool declare, bool stay) {
  std::optional<Permit> held;
  if (permit) {
    BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, Session::Open({.label = "gpu_test"}));
    PermitOptions options;
    if (declare) {
      options.device = "any";
      options.declared = bytes;
    }
    BERTH_ASSIGN_OR_RETURN(held, Permit::Acquire(session, options));
  }
  const char* const backend = getenv("BERTH_GPU_TEST_BACKEND");
  if (backend != nullptr && strcmp(backend, "host") == 0) return ComputeOnHost(value, bytes, stay);
  return ComputeOnGpu(value, bytes, held.has_value() ? held->device_uuid() : "", stay);
}

}  // namespace
}  // namespace berth::gpu

int main(int argc, char** argv) {
  uint32_t seed = 0;
  uint64_t bytes = 0;
  if (argc < 3 || !absl::SimpleAtoi(argv[1], &seed) || !absl::SimpleAtoi(argv[2], &bytes) || bytes == 0) {
    std::cerr << "usage: gpu_test SEED BYTES [--permit] [--declare] [--stay]\n";
    return 2;
  }
  bool permit = false, declare = false, stay = false;
  for (int i = 3; i < argc; ++i) {
    permit = permit || strcmp(argv[i], "--permit") == 0;
    declare = declare || strcmp(argv[i], "--declare") == 0;
    stay = stay || strcmp(argv[i], "--stay") == 0;
  }
  const absl::Status status =
      berth::gpu::Test(static_cast<uint8_t>(seed), berth::Bytes(bytes), permit, declare, stay);
  std::cout << (status.ok() ? "right" : absl::StrCat("wrong: ", status.ToString())) << std::endl;
  return status.ok() ? 0 : 1;
}
