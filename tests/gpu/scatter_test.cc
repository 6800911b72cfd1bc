// A batch that is split over all available GPUs, checked against the CPU; and a worker that is killed during it.
// $BERTH_GPU_TEST_BACKEND=host runs the same tests on one device of host memory.

#include <berth/scatter.h>

#include <cmath>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include <berth/bandwidth.h>
#include <berth/bytes.h>
#include <berth/error.h>
#include <berth/plan.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/gpu/batched_cholesky.h"
#include "tests/gpu/gpu_job.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using testing::Eventually;
using testing::Must;
using testing::Ok;
using testing::Refused;

// The parameter: the number of devices.
class GpuScatterTest : public GpuJob, public ::testing::WithParamInterface<int> {
 protected:
  GpuScatterTest() : GpuScatterTest(GetParam()) {}
  explicit GpuScatterTest(size_t devices) : GpuJob(devices), count_(devices) {}

  void SetUp() override {
    GpuJob::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!cuda() && count_ > 1) GTEST_SKIP() << "host memory is one device here";
    const v1::ListDevicesResponse devices = Must(Inspector(session_).ListDevices());
    ASSERT_GE(devices.devices_size(), static_cast<int>(count_));
    for (size_t i = 0; i < count_; ++i) used_.push_back(devices.devices(static_cast<int>(i)).uuid());
    batch_ = Must(BatchedCholesky::For(cuda() ? used_ : std::vector<std::string>()));
  }

  // 1 GiB on each device; less on the host, where memory size does not matter for the test.
  uint64_t units() const { return count_ * (cuda() ? 131'072 : 1'024); }

  Plan MakePlan() const {
    return Must(Plan::Make(session_, {.units = units(),
                                      .label = "cholesky",
                                      .devices = used_,
                                      .bytes_per_unit = BatchedCholesky::kUnitBytes,
                                      .reserve = true}),
                "plan");
  }

  // Factorises a tile's matrices in a block drawn from the plan; or the rest of them, after the first `done`.
  absl::Status RunTile(const Plan& plan, const TileRun& run, absl::Span<double> mine, size_t done = 0) const {
    const absl::Span<double> rest = mine.subspan(done);
    const absl::StatusOr<Block> block = plan.Allocate(
        run.tile(), {.bytes = Bytes(rest.size() * BatchedCholesky::kUnitBytes.count()), .label = "tile"});
    if (!block.ok()) return block.status();
    const absl::StatusOr<Mapping> mapping = block->Map();
    if (!mapping.ok()) return mapping.status();
    return batch_->Run(run.ordinal(), *mapping, run.tile().begin + done, /*passes=*/1, rest);
  }

  // Every 61st, so that the CPU takes seconds and every tile is checked.
  static void ExpectAsOnTheCpu(const std::vector<double>& log_determinants) {
    for (size_t unit = 0; unit < log_determinants.size(); unit += 61) {
      const double expected = BatchedCholesky::LogDeterminant(unit);
      ASSERT_NEAR(log_determinants[unit], expected, std::abs(expected) * 1e-10) << "unit " << unit;
    }
  }

  const size_t count_;
  std::vector<std::string> used_;
  std::unique_ptr<BatchedCholesky> batch_;
};
INSTANTIATE_TEST_SUITE_P(Devices, GpuScatterTest, ::testing::Values(1, 2, 4, 8));

TEST_P(GpuScatterTest, BatchMatchesCpuResult) {
  const Plan plan = MakePlan();
  EXPECT_EQ(plan.tiles().size(), count_);
  std::vector<double> log_determinants(units(), 0);
  std::mutex mu;
  std::map<int, int> ordinals;
  const ScatterReport report =
      ScatterBatched(plan, absl::MakeSpan(log_determinants),
                     [&](const TileRun& run, absl::Span<double> mine) -> absl::Status {
                       {
                         std::lock_guard<std::mutex> lock(mu);
                         ++ordinals[run.ordinal()];
                       }
                       return RunTile(plan, run, mine);
                     },
                     {.host_devices = !cuda()});
  ASSERT_TRUE(Ok(report.status));
  EXPECT_EQ(ordinals.size(), count_) << "each tile has a device of its own";
  ExpectAsOnTheCpu(log_determinants);
}

TEST_P(GpuScatterTest, MeasuredBandwidthWeighsDevices) {
  const std::vector<double> measured = Must(MeasureBandwidth(session_, used_), "bandwidth");
  ASSERT_EQ(measured.size(), count_);
  for (size_t i = 0; i < count_; ++i) {
    // Host memory has no rate of its own: it has that of the machine's other load.
    EXPECT_GT(measured[i], cuda() ? 1e11 : 0) << used_[i];
    std::cout << "memory of device " << i << ", filled | " << measured[i] / 1e9 << " | GB/s" << std::endl;
  }
  EXPECT_TRUE(BytesBecome("live", Bytes())) << "what was filled is back";
  constexpr uint64_t kUnits = 1'000'000;
  const Plan plan = Must(Plan::Make(session_, {.units = kUnits,
                                               .devices = used_,
                                               .weigh_by = PlanWeights::kBandwidth,
                                               .weights = measured}));
  ASSERT_EQ(plan.tiles().size(), count_);
  const double sum = std::accumulate(measured.begin(), measured.end(), 0.0);
  for (size_t i = 0; i < count_; ++i) {
    EXPECT_NEAR(static_cast<double>(plan.tiles()[i].units()), kUnits * measured[i] / sum, 1);
  }
}

class GpuScatterFaultTest : public GpuScatterTest {
 protected:
  GpuScatterFaultTest() : GpuScatterTest(size_t{2}) {}
};
INSTANTIATE_TEST_SUITE_P(Devices, GpuScatterFaultTest, ::testing::Values(2));

TEST_P(GpuScatterFaultTest, KilledWorkerIsNamedAndReplanContinues) {
  Plan plan = MakePlan();
  std::vector<double> log_determinants(units(), 0);
  const auto stopped = [&] {
    KillDaemons("berth-worker1");
    const v1::ListDevicesResponse devices = Must(Inspector(session_).ListDevices());
    return devices.devices(1).state() == v1::Device::STOPPED;
  };
  ScatterReport report = ScatterBatched(plan, absl::MakeSpan(log_determinants),
                                        [&](const TileRun& run, absl::Span<double> mine) -> absl::Status {
                                          absl::Status status = RunTile(plan, run, mine);
                                          if (run.tile().device_uuid != used_[1]) return status;
                                          // Waits until no worker follows: the device is out of service, though its
                                          // work has completed.
                                          if (!Eventually(stopped))
                                            return absl::DeadlineExceededError("the device goes on");
                                          return Eventually([&] { return run.cancelled(); })
                                                     ? status
                                                     : absl::DeadlineExceededError("it was not told");
                                        });
  EXPECT_TRUE(Refused(report.status, Reason::kStale, {{"tile", "1"}, {"tile_device", used_[1]}}));
  EXPECT_TRUE(report.may_be_partly_changed);
  const std::vector<PlanMove> moves = Must(plan.Replan(), "replan");
  uint64_t moved = 0;
  for (const PlanMove& move : moves) {
    EXPECT_EQ(move.from_uuid, used_[1]);
    EXPECT_EQ(move.to_uuid, used_[0]);
    moved += move.units();
  }
  EXPECT_EQ(moved, report.tiles.size() == 2 ? units() / 2 : 0);
  // Completed work is not repeated: only the undrawn part of a reservation is left.
  report = ScatterBatched(plan, absl::MakeSpan(log_determinants),
                          [&](const TileRun& run, absl::Span<double> mine) {
                            return RunTile(plan, run, mine, moved == 0 ? 0 : mine.size() - moved);
                          });
  ASSERT_TRUE(Ok(report.status));
  ExpectAsOnTheCpu(log_determinants);
}

}  // namespace
}  // namespace berth::gpu
