#include "tests/gpu/module_measurements.h"

#include <memory>
#include <string>
#include <utility>

#include <berth/module.h>
#include <berth/probe.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tests/bench/stopwatch.h"

namespace berth::gpu {
namespace {

using bench::Measurement;
using bench::Microseconds;
using bench::Pairs;

constexpr int kWarmUp = 20;
constexpr int kCount = 200;
constexpr int kCompiles = 15;

constexpr char kSource[] = R"(
extern "C" __global__ void Sum(const unsigned int* words, unsigned long long count, unsigned long long* total) {
  unsigned long long sum = 0;
  const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    sum += words[i] + AMOUNT;
  }
  atomicAdd(total, sum);
}
)";

}  // namespace

absl::StatusOr<std::vector<Measurement>> ModuleMeasurements(const bench::Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const auto daemon, bench::StartDaemon(programs));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder(), .label = "bench"}));
  const auto prober = Prober::Create(session, {.policy = DevicePolicy::kRequired});
  BERTH_ASSIGN_OR_RETURN(const OrAbsent<ProbedDevice> probed, prober->Probe("bench"));
  const ProbedDevice& device = probed.value();
  const auto compile = [&](int amount) {
    return CompileModule(session, "bench", device,
                         {.code = kSource, .options = {absl::StrCat("-DAMOUNT=", amount)}});
  };
  // Each source differs, so that it is compiled.
  std::vector<double> compiles;
  for (int i = 0; i < kCompiles; ++i) {
    BERTH_ASSIGN_OR_RETURN(const double time, Microseconds([&] { return compile(i).status(); }));
    compiles.push_back(time / 1000);
  }
  BERTH_ASSIGN_OR_RETURN(const CompiledModule there, compile(0));
  if (there.origin() != CompiledModule::Origin::kNode) return absl::InternalError("the node does not have it");
  const auto given = [&]() -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const CompiledModule module, compile(0));
    return LoadedModule::Load("bench", device, module).status();
  };
  const auto loaded = [&] { return LoadedModule::Load("bench", device, there).status(); };
  Pairs pairs;
  for (int i = -kWarmUp; i < kCount; ++i) {
    double ours = 0, theirs = 0;
    if (i % 2 == 0) {
      BERTH_ASSIGN_OR_RETURN(ours, Microseconds(given));
    }
    BERTH_ASSIGN_OR_RETURN(theirs, Microseconds(loaded));
    if (i % 2 != 0) {
      BERTH_ASSIGN_OR_RETURN(ours, Microseconds(given));
    }
    if (i < 0) continue;
    pairs.ours.push_back(ours);
    pairs.theirs.push_back(theirs);
  }
  return std::vector<Measurement>{
      {.name = "module compiled by NVRTC and stored", .value = bench::Median(std::move(compiles)), .unit = "ms"},
      bench::ComparePairs("module from the node, loaded", pairs, "us", "cuModuleLoadData alone", std::nullopt)};
}

}  // namespace berth::gpu
