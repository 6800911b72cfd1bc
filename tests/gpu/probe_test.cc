// Probing and compiled modules on a GPU: one device for every label, one compile for every process.

#include <stdlib.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <berth/error.h>
#include <berth/module.h>
#include <berth/probe.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/module.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/cuda/driver.h"
#include "gtest/gtest.h"
#include "tests/bench/servers.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::Actor;
using testing::Must;
using testing::Ok;
using testing::ProgramPath;

constexpr const char* kLabels[] = {"bms_flex",   "survival_flex", "cubic_bspline_moments",
                                   "cubic_cell", "pirls_row",     "sphere"};

class GpuProbeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<cuda::Driver*> driver = cuda::Driver::Get();
    if (!driver.ok()) {
      ASSERT_EQ(getenv("BERTH_REQUIRE_CUDA"), nullptr) << driver.status();
      GTEST_SKIP() << driver.status();
    }
    driver_ = *driver;
    daemon_ = Must(bench::StartDaemon({.berthd = ProgramPath("daemon/berthd"), .backend = "cuda"}, {}));
    session_ = Must(Session::Open({.folder = daemon_->folder(), .label = "test"}));
  }
  v1::ModuleUsage Usage() const { return Must(Inspector(session_).ListModules()).usage(); }

  cuda::Driver* driver_ = nullptr;
  std::unique_ptr<bench::Server> daemon_;
  std::shared_ptr<Session> session_;
};

TEST_F(GpuProbeTest, ConcurrentProbesShareDeviceAndContext) {
  const auto prober = Prober::Create(session_, {.policy = DevicePolicy::kRequired});
  std::vector<absl::StatusOr<OrAbsent<ProbedDevice>>> found(6, absl::UnknownError("not probed"));
  std::atomic<int> ready = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < 6) std::this_thread::yield();
      found[i] = prober->Probe(kLabels[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const v1::ListDevicesResponse devices = Must(Inspector(session_).ListDevices());
  for (const auto& probed : found) {
    ASSERT_TRUE(Ok(probed));
    const ProbedDevice& device = probed->value();
    EXPECT_EQ(device.uuid, devices.devices(static_cast<int>(device.device)).uuid());
    EXPECT_EQ(device.uuid, found[0]->value().uuid);
    EXPECT_EQ(device.capability.major,
              Must(driver_->Attribute(device.local_ordinal, cuda::DeviceAttribute::kComputeCapabilityMajor)));
    EXPECT_EQ(device.capability.minor,
              Must(driver_->Attribute(device.local_ordinal, cuda::DeviceAttribute::kComputeCapabilityMinor)));
    EXPECT_GT(device.multiprocessors, 0u);
    EXPECT_GT(device.free, Bytes(0));
    EXPECT_NE(device.stream->cuda_context(), nullptr);
    EXPECT_EQ(device.stream, found[0]->value().stream);
    EXPECT_TRUE(Ok(device.stream->Synchronize()));
  }
  EXPECT_EQ(prober->looks(), 1u);
}

TEST_F(GpuProbeTest, EachDeviceIsFoundByUuid) {
  const auto prober = Prober::Create(session_);
  const v1::ListDevicesResponse devices = Must(Inspector(session_).ListDevices());
  for (const v1::Device& device : devices.devices()) {
    const auto probed = prober->Probe("sphere", {.device_uuid = device.uuid()});
    ASSERT_TRUE(Ok(probed));
    EXPECT_EQ(Must(driver_->DeviceUuid(probed->value().local_ordinal)), device.uuid());
  }
}

TEST_F(GpuProbeTest, InvalidSourceIsRejectedWithCompilerLog) {
  const auto prober = Prober::Create(session_, {.policy = DevicePolicy::kRequired});
  const auto built = ProbeAndBuild(*prober, "sphere", [&](const ProbedDevice& device) {
    return CompileModule(session_, "sphere", device, {.code = "__global__ void Bad() { int x = ; }"});
  });
  EXPECT_TRUE(IsRefusal(built.status(), Reason::kInvalidField)) << built.status();
  EXPECT_EQ(built.status().message().substr(0, 28), "sphere NVRTC compile failed:");
  EXPECT_NE(built.status().message().find("expected an expression"), absl::string_view::npos);
  EXPECT_LT(built.status().message().size(), 2'100u);
}

TEST_F(GpuProbeTest, SixteenProcessesCompileOnceAndAllCompute) {
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 16; ++i) {
    actors.push_back(std::make_unique<Actor>(
        daemon_->folder(), testing::ActorOptions{.open = false, .program = "tests/gpu/probe_actor"}));
  }
  for (uint64_t round = 1; round <= 3; ++round) {
    for (const auto& actor : actors) actor->SendLine(absl::StrCat("add sphere ", 40 + round));
    int compiled = 0;
    for (const auto& actor : actors) {
      const absl::StatusOr<std::string> answer = actor->Answer(absl::Minutes(1));
      ASSERT_TRUE(Ok(answer));
      EXPECT_NE(*answer, "alone");
      compiled += *answer == "compiled" ? 1 : 0;
    }
    EXPECT_EQ(compiled, 1);
    EXPECT_EQ(Usage().misses(), round);
    EXPECT_EQ(Usage().stored(), round);
    EXPECT_EQ(Usage().hits(), 15 * round);
  }
}

}  // namespace
}  // namespace berth::gpu
