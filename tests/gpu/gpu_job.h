// GpuJob: a test fixture with a daemon on the GPU's memory and client processes that compute on its blocks.
// $BERTH_GPU_TEST_BACKEND=host runs the same on host memory.

#ifndef TESTS_GPU_GPU_JOB_H_
#define TESTS_GPU_GPU_JOB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <berth/bytes.h>
#include <berth/session.h>

#include "absl/status/statusor.h"
#include "common/cuda/nvml.h"
#include "gtest/gtest.h"
#include "tests/bench/servers.h"
#include "tests/support/subprocess.h"

namespace berth::gpu {

// 256 MiB; 32 MiB on host memory in the gate.
extern const Bytes kBlock;
inline constexpr uint32_t kSeed = 7;
// Device memory that the daemon's driver may use in addition to the blocks.
inline constexpr Bytes kOverhead = MiB(8);

double InMiB(Bytes bytes);

// A client process (gpu_actor.cc).
class Actor {
 public:
  // `environment` is added to its environment.
  explicit Actor(const std::string& folder, const std::vector<std::string>& environment = {});

  absl::StatusOr<std::string> Ask(const std::string& command);
  // The two halves of Ask(): commands are answered in order.
  void SendLine(const std::string& command);
  absl::StatusOr<std::string> Answer();
  // As Ask(), fatal on an error.
  std::string Do(const std::string& command);
  void Kill();
  void Quit();

 private:
  testing::Subprocess process_;
};

class GpuJob : public ::testing::Test {
 protected:
  // Skips the test where there are fewer GPUs; fails it where they were promised.
  explicit GpuJob(size_t devices = 1) : devices_(devices) {}
  void SetUp() override;

  bool cuda() const { return backend_ == "cuda"; }
  const std::string& folder() const { return daemon_->folder(); }

  // Bytes of the device in use by any process; 0 without a device.
  Bytes DeviceUsed() const;
  size_t DeviceProcesses() const;
  bool DeviceComesBackTo(Bytes used) const;

  // Returns the value that `berth bytes` prints for device 0.
  uint64_t BytesSaid(const std::string& state) const;
  bool BytesBecome(const std::string& state, Bytes bytes) const;

  // Kills the daemon's processes whose names begin with `prefix`. Returns their number.
  int KillDaemons(const std::string& prefix) const;

  // Makes `owner` lease a block of `kind` ("fd", "ipc"), fill it and share it with `importer`, under the name "block"
  // in both.
  static void Share(Actor* owner, Actor* importer, const std::string& how, const std::string& kind = "fd");
  static std::string ExpectedSum();

  std::string backend_ = "cuda";
  cuda::Nvml* nvml_ = nullptr;
  // By NVML's ordinal; the first is the measured device.
  std::vector<std::string> uuids_;
  // Use of the device before the daemon started.
  Bytes before_;
  size_t processes_before_ = 0;
  std::unique_ptr<bench::Server> daemon_;
  std::shared_ptr<Session> session_;

 private:
  void RequireCuda();

  const size_t devices_;
};

}  // namespace berth::gpu

#endif  // TESTS_GPU_GPU_JOB_H_
