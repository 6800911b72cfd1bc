#include "tests/gpu/memory_measurements.h"

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include <berth/block.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "client/sdk/admin/inspector.h"
#include "common/cuda/device_mapping.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"
#include "tests/bench/quiet.h"
#include "tests/bench/stopwatch.h"

namespace berth::gpu {
namespace {

using bench::AwaitQuiet;
using bench::Measurement;
using bench::Microseconds;
using bench::Pairs;
using bench::Programs;

// Dropped from each series.
constexpr int kWarmUp = 10;

// A daemon of one kind, and the blocks of the measured size that it holds ready.
struct Lessor {
  std::unique_ptr<bench::Server> daemon;
  std::shared_ptr<Session> session;
  Bytes warm;
};

// Starts a daemon that holds one block of up to 1 GiB ready, or none.
absl::StatusOr<Lessor> StartLessor(const Programs& programs, Bytes bytes, bool warm) {
  BERTH_ASSIGN_OR_RETURN(bench::TemporaryFolder folder, bench::TemporaryFolder::Make());
  const std::string config = folder.path() + "/berth.toml";
  std::ofstream(config) << "[memory]\nwarm_limit = \"4GiB\"\nwarm_blocks = " << (warm ? 1 : 0) << "\n";
  Lessor lessor;
  BERTH_ASSIGN_OR_RETURN(lessor.daemon,
                         bench::StartDaemon(programs, {"--config=" + config, "--device-budget=8GiB"}));
  BERTH_ASSIGN_OR_RETURN(lessor.session,
                         Session::Open({.folder = lessor.daemon->folder(), .label = "bench"}));
  if (warm) lessor.warm = bytes;
  return lessor;
}

absl::Status LeaseOnce(const Lessor& lessor, Bytes bytes) {
  BERTH_ASSIGN_OR_RETURN(Block block, Block::Allocate(lessor.session, {.bytes = bytes, .label = "bench"}));
  BERTH_RETURN_IF_ERROR(block.Map().status());
  return block.Free();
}

absl::Status AllocateOnce(cuda::Driver& driver, Bytes bytes) {
  BERTH_ASSIGN_OR_RETURN(const cuda::DevicePointer pointer, driver.Allocate(bytes));
  return driver.Free(pointer);
}

// Runs an allocation that can be shared without Berth: create, export, import and map, then undo everything.
absl::Status RawOnce(cuda::Driver& driver, int ordinal, Bytes bytes) {
  BERTH_ASSIGN_OR_RETURN(const cuda::Allocation allocation, driver.CreateMemory(ordinal, bytes));
  absl::StatusOr<UniqueFd> fd = driver.ExportFd(allocation);
  BERTH_RETURN_IF_ERROR(driver.ReleaseMemory(allocation));
  BERTH_RETURN_IF_ERROR(fd.status());
  BERTH_ASSIGN_OR_RETURN(cuda::DeviceMapping mapping,
                         cuda::DeviceMapping::Map(driver, fd->get(), bytes, ordinal, /*read_only=*/false));
  return mapping.Unmap();
}

// Four series; a round adds one sample to each, or none.
struct Series {
  std::vector<double> allocate;
  std::vector<double> raw;
  std::vector<double> cold;
  std::vector<double> warm;
};

absl::Status TakeRound(cuda::Driver& driver, int ordinal, Bytes bytes, const Lessor& cold, const Lessor& warm,
                       Series* series) {
  BERTH_ASSIGN_OR_RETURN(const double allocate, Microseconds([&] { return AllocateOnce(driver, bytes); }));
  BERTH_ASSIGN_OR_RETURN(const double raw, Microseconds([&] { return RawOnce(driver, ordinal, bytes); }));
  BERTH_ASSIGN_OR_RETURN(const double from_cold, Microseconds([&] { return LeaseOnce(cold, bytes); }));
  BERTH_RETURN_IF_ERROR(AwaitQuiet(Inspector(cold.session), cold.warm));
  BERTH_ASSIGN_OR_RETURN(const double from_warm, Microseconds([&] { return LeaseOnce(warm, bytes); }));
  BERTH_RETURN_IF_ERROR(AwaitQuiet(Inspector(warm.session), warm.warm));
  series->allocate.push_back(allocate);
  series->raw.push_back(raw);
  series->cold.push_back(from_cold);
  series->warm.push_back(from_warm);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Measurement>> MeasurementsOf(const Programs& programs, cuda::Driver& driver, int ordinal,
                                                        Bytes bytes, int rounds) {
  BERTH_ASSIGN_OR_RETURN(const Lessor cold, StartLessor(programs, bytes, /*warm=*/false));
  BERTH_ASSIGN_OR_RETURN(const Lessor warm, StartLessor(programs, bytes, /*warm=*/true));
  Series series;
  for (int i = 0; i < kWarmUp; ++i) {
    Series dropped;
    BERTH_RETURN_IF_ERROR(TakeRound(driver, ordinal, bytes, cold, warm, &dropped));
  }
  for (int i = 0; i < rounds; ++i) {
    BERTH_RETURN_IF_ERROR(TakeRound(driver, ordinal, bytes, cold, warm, &series));
  }
  const std::string size = FormatBytes(bytes);
  std::vector<Measurement> measurements;
  for (const auto& [name, ours] : {std::pair("cold", &series.cold), std::pair("warm", &series.warm)}) {
    const std::string what = absl::StrCat(size, " ", name, " block: allocate+map+unmap+free");
    measurements.push_back(
        bench::ComparePairs(what, {*ours, series.raw}, "us", "raw driver sequence", std::nullopt));
    measurements.push_back(
        bench::ComparePairs(what, {*ours, series.allocate}, "us", "cuMemAlloc+cuMemFree", std::nullopt));
  }
  return measurements;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> MemoryMeasurements(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  constexpr int kOrdinal = 0;
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver->RetainPrimaryContext(kOrdinal));
  BERTH_RETURN_IF_ERROR(driver->SetCurrentContext(context));
  std::vector<Measurement> measurements;
  for (const auto& [bytes, rounds] :
       {std::pair(MiB(2), 300), std::pair(MiB(64), 150), std::pair(GiB(1), 80)}) {
    BERTH_ASSIGN_OR_RETURN(std::vector<Measurement> some, MeasurementsOf(programs, *driver, kOrdinal, bytes, rounds));
    measurements.insert(measurements.end(), some.begin(), some.end());
  }
  BERTH_RETURN_IF_ERROR(driver->ReleasePrimaryContext(kOrdinal));
  return measurements;
}

}  // namespace berth::gpu
