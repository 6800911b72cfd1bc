#include "tests/gpu/scatter_measurements.h"

#include <memory>
#include <string>
#include <utility>

#include <berth/plan.h>
#include <berth/scatter.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/status_macros.h"
#include "tests/bench/stopwatch.h"
#include "tests/gpu/batched_cholesky.h"

namespace berth::gpu {
namespace {

using bench::Measurement;
using bench::Pairs;

constexpr uint64_t kUnitsOfADevice = GiB(1).count() / BatchedCholesky::kUnitBytes.count();
// Passes for which a batch takes a tenth of a second or more.
constexpr int kPasses = 20;
constexpr int kRounds = 12;
constexpr int kWarmUp = 2;
// A bound of 0.9 of the ideal.
constexpr double kBound = 1 / 0.9;

// A batch on some devices, with its blocks mapped and ready.
class Batch {
 public:
  static absl::StatusOr<std::unique_ptr<Batch>> Make(const std::shared_ptr<Session>& session,
                                                     const std::vector<std::string>& uuids, uint64_t units) {
    auto batch = std::make_unique<Batch>();
    BERTH_ASSIGN_OR_RETURN(batch->kernels_, BatchedCholesky::For(uuids));
    batch->plan_ = Plan::Make(session, {.units = units,
                                        .devices = uuids,
                                        .weigh_by = PlanWeights::kGiven,
                                        .weights = std::vector<double>(uuids.size(), 1),
                                        .bytes_per_unit = BatchedCholesky::kUnitBytes,
                                        .reserve = true});
    BERTH_RETURN_IF_ERROR(batch->plan_.status());
    for (const PlanTile& tile : batch->plan_->tiles()) {
      BERTH_ASSIGN_OR_RETURN(
          Block block,
          batch->plan_->Allocate(tile, {.bytes = Bytes(tile.units() * BatchedCholesky::kUnitBytes.count())}));
      BERTH_ASSIGN_OR_RETURN(Mapping mapping, block.Map());
      batch->blocks_.push_back(std::move(block));
      batch->mappings_.push_back(std::move(mapping));
    }
    batch->log_determinants_.resize(units);
    return batch;
  }

  absl::Status Run() {
    return ScatterBatched(*plan_, absl::MakeSpan(log_determinants_),
                          [&](const TileRun& run, absl::Span<double> mine) {
                            return kernels_->Run(run.ordinal(), mappings_[run.index()], run.tile().begin,
                                                 kPasses, mine);
                          })
        .status;
  }

 private:
  std::unique_ptr<BatchedCholesky> kernels_;
  absl::StatusOr<Plan> plan_ = absl::UnknownError("not made");
  std::vector<Block> blocks_;
  std::vector<Mapping> mappings_;
  std::vector<double> log_determinants_;
};

absl::StatusOr<Measurement> MeasurementOver(const std::shared_ptr<Session>& session,
                                            const std::vector<std::string>& uuids) {
  const uint64_t units = uuids.size() * kUnitsOfADevice;
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<Batch> all, Batch::Make(session, uuids, units));
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<Batch> one, Batch::Make(session, {uuids[0]}, units));
  Pairs pairs;
  for (int round = -kWarmUp; round < kRounds; ++round) {
    BERTH_ASSIGN_OR_RETURN(const double over_all, bench::Microseconds([&] { return all->Run(); }));
    BERTH_ASSIGN_OR_RETURN(const double over_one, bench::Microseconds([&] { return one->Run(); }));
    if (round < 0) continue;
    pairs.ours.push_back(over_all);
    pairs.theirs.push_back(over_one / static_cast<double>(uuids.size()));
  }
  return bench::ComparePairs(absl::StrCat("scatter over ", uuids.size(), " GPUs, 1 GiB each"), pairs, "us",
                             "one GPU's time divided by their number", kBound);
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> ScatterMeasurements(const bench::Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const auto daemon, bench::StartDaemon(programs, {"--warm-blocks=0"}));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder(), .label = "bench"}));
  BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices, Inspector(session).ListDevices());
  std::vector<Measurement> measurements;
  for (const int count : {2, 4, 8}) {
    if (devices.devices_size() < count) continue;
    std::vector<std::string> uuids;
    for (int i = 0; i < count; ++i) uuids.push_back(devices.devices(i).uuid());
    BERTH_ASSIGN_OR_RETURN(Measurement measurement, MeasurementOver(session, uuids));
    measurements.push_back(std::move(measurement));
  }
  return measurements;
}

}  // namespace berth::gpu
