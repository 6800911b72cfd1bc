#include "tests/gpu/arena_measurements.h"

#include <cstdint>
#include <memory>
#include <optional>

#include <berth/arena.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"
#include "tests/bench/arena_loops.h"

namespace berth::gpu {
namespace {

using bench::Measurement;
using bench::Pairs;
using bench::TimePairs;

constexpr int kOrdinal = 0;
constexpr int kWarmUp = 100;
constexpr int kSamples = 1000;

absl::Status AllocateAndFreeAsync(cuda::Driver& driver, Bytes bytes, cuda::Stream stream) {
  BERTH_ASSIGN_OR_RETURN(const cuda::DevicePointer pointer, driver.AllocateAsync(bytes, stream));
  return driver.FreeAsync(pointer, stream);
}

// Takes samples of both alternately, every second pair in reverse order.
absl::StatusOr<Measurement> BesideTheDriver(cuda::Driver& driver, Arena& arena, Bytes bytes, cuda::Stream stream) {
  const auto arena_stream = static_cast<ArenaStream>(reinterpret_cast<uintptr_t>(stream));
  const auto ours = [&] {
    return TimePairs([&] { return bench::AllocateAndFree(arena, bytes, arena_stream); });
  };
  const auto theirs = [&] { return TimePairs([&] { return AllocateAndFreeAsync(driver, bytes, stream); }); };
  Pairs pairs;
  for (int i = -kWarmUp; i < kSamples; ++i) {
    double our_time = 0;
    if (i % 2 == 0) {
      BERTH_ASSIGN_OR_RETURN(our_time, ours());
    }
    BERTH_ASSIGN_OR_RETURN(const double their_time, theirs());
    if (i % 2 != 0) {
      BERTH_ASSIGN_OR_RETURN(our_time, ours());
    }
    // Synchronizes, so that the stream's queue does not grow until the driver waits.
    BERTH_RETURN_IF_ERROR(driver.SynchronizeStream(stream));
    if (i < 0) continue;
    pairs.ours.push_back(our_time);
    pairs.theirs.push_back(their_time);
  }
  return bench::ComparePairs(absl::StrCat("arena allocate+free ", FormatBytes(bytes)), pairs, "ns",
                             "cuMemAllocAsync+cuMemFreeAsync", std::nullopt);
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> ArenaMeasurements(const bench::Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver->RetainPrimaryContext(kOrdinal));
  BERTH_RETURN_IF_ERROR(driver->SetCurrentContext(context));
  BERTH_ASSIGN_OR_RETURN(const auto daemon, bench::StartDaemon(programs, {"--device-budget=8GiB"}));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder(), .label = "bench"}));
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Arena> arena, Arena::Create(session, {.label = "bench"}));
  bench::ArenaStreams setup = {.enter = [&] { return driver->SetCurrentContext(context); }};
  std::vector<cuda::Stream> streams;
  for (int i = 0; i < bench::kArenaThreads; ++i) {
    BERTH_ASSIGN_OR_RETURN(streams.emplace_back(), driver->CreateStream());
    setup.streams.push_back(static_cast<ArenaStream>(reinterpret_cast<uintptr_t>(streams.back())));
  }
  BERTH_ASSIGN_OR_RETURN(std::vector<Measurement> measurements, bench::ArenaMeasurementsOf(*arena, setup));
  for (const Bytes bytes : bench::ArenaSizes()) {
    BERTH_ASSIGN_OR_RETURN(measurements.emplace_back(), BesideTheDriver(*driver, *arena, bytes, streams[0]));
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    BERTH_RETURN_IF_ERROR(driver->SynchronizeStream(streams[i]));
    arena->ForgetStream(setup.streams[i]);
    BERTH_RETURN_IF_ERROR(driver->DestroyStream(streams[i]));
  }
  return measurements;
}

}  // namespace berth::gpu
