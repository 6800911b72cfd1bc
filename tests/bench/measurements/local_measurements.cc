#include <functional>
#include <memory>
#include <utility>

#include <berth/block.h>
#include <berth/gpu_ref.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "common/status_macros.h"
#include "daemon/core/core.h"
#include "tests/bench/measurements/measurements.h"

namespace berth::bench {
namespace {

constexpr int kRepetitions = 25;

// Collects each repetition's nanoseconds per iteration, in processor time: nothing waits here, and the time of other
// processes must not count.
class Collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      if (run.error_occurred) error_ = run.error_message;
      samples_.push_back(run.cpu_accumulated_time / run.iterations * 1e9);
    }
  }

  absl::StatusOr<Measurement> MakeMeasurement(std::string name, double bound) const {
    if (!error_.empty()) return absl::InternalError(error_);
    if (samples_.empty()) return absl::InternalError("no repetition was run");
    return Measurement{.name = std::move(name), .value = Median(samples_), .unit = "ns", .bound = bound};
  }

 private:
  std::vector<double> samples_;
  std::string error_;
};

// Runs `loop` under google-benchmark and makes a measurement of it.
absl::StatusOr<std::vector<Measurement>> Measure(const std::string& name, double bound,
                                                 const std::function<void(benchmark::State&)>& loop) {
  benchmark::ClearRegisteredBenchmarks();
  benchmark::RegisterBenchmark(name.c_str(), loop)->Repetitions(kRepetitions)->MinTime(0.05);
  Collector collector;
  benchmark::RunSpecifiedBenchmarks(&collector, "all");
  BERTH_ASSIGN_OR_RETURN(Measurement measurement, collector.MakeMeasurement(name, bound));
  return std::vector<Measurement>{std::move(measurement)};
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> NestedPermitMeasurements(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  BERTH_ASSIGN_OR_RETURN(const Permit outer, Permit::Acquire(session));
  return Measure("nested acquire+release", 20, [&](benchmark::State& state) {
    for (auto _ : state) {
      absl::StatusOr<Permit> nested = Permit::Acquire(session);
      if (!nested.ok()) state.SkipWithError("a nested acquire failed");
      benchmark::DoNotOptimize(nested);
    }
  });
}

absl::StatusOr<std::vector<Measurement>> CachedPermitMeasurements(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs));
  BERTH_ASSIGN_OR_RETURN(const auto session,
                         Session::Open({.folder = daemon->folder(), .cache_permits = true}));
  return Measure("acquire+release of a cached permit", 200, [&](benchmark::State& state) {
    for (auto _ : state) {
      absl::StatusOr<Permit> permit = Permit::Acquire(session);
      if (!permit.ok()) state.SkipWithError("an acquire failed");
      benchmark::DoNotOptimize(permit);
    }
  });
}

absl::StatusOr<std::vector<Measurement>> AccessMeasurements(const Programs& programs) {
  // Uses host memory on any machine: the accesses are the same, and no driver maps anything.
  Programs host = programs;
  host.backend = "host";
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(host));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  BERTH_ASSIGN_OR_RETURN(const Block block, Block::Allocate(session, {.bytes = MiB(2), .label = "bench"}));
  BERTH_ASSIGN_OR_RETURN(const Mapping mapping, block.Map());
  BERTH_ASSIGN_OR_RETURN(GpuRef<float> reference, GpuRef<float>::Of(mapping));
  return Measure("Access()", 5, [&](benchmark::State& state) {
    for (auto _ : state) {
      // Tells the compiler that the reference may have changed between two accesses.
      benchmark::DoNotOptimize(reference);
      const AccessResult<float> access = reference.Access();
      if (!access) state.SkipWithError("the reference went stale");
      benchmark::DoNotOptimize(access.data());
    }
  });
}

absl::StatusOr<std::vector<Measurement>> PlanCoreMeasurements(const Programs&) {
  constexpr int kDevices = 16;
  // Grants made in a row, before their untimed releases.
  constexpr int kBatch = 128;
  core::Config config{.node = 1, .incarnation = 1};
  for (uint32_t i = 0; i < kDevices; ++i) {
    config.devices.push_back({.ordinal = i,
                              .uuid = absl::StrCat("GPU-01234567-89ab-cdef-0123-", absl::Dec(i, absl::kZeroPad12)),
                              .kind = core::MemoryKind::kCudaVmm,
                              .total = GiB(141),
                              .budget = GiB(70),
                              .others = MiB(100 * i),
                              .facts = {.sm_count = 132, .cc_major = 9}});
  }
  uint64_t last_id = 0;
  core::Core core(config, [&] { return ++last_id; }, nullptr);
  const absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  core::Effects effects;
  for (uint32_t i = 0; i < kDevices; ++i) core.WorkerUp(now, i, WorkerKind::kMain, &effects);
  core::Caller caller;
  caller.tenant.uid = 1000;
  BERTH_ASSIGN_OR_RETURN(caller.credentials.session,
                         core.OpenSession(now, caller.credentials.secret, caller.tenant, "bench", {.pid = 1}));
  BERTH_ASSIGN_OR_RETURN(caller.credentials.channel,
                         core.JoinSession(now, caller.credentials.session, caller.credentials.secret, caller.tenant,
                                          {.pid = 2}));
  uint64_t sequence = 0;
  uint64_t call = 0;
  const auto tag = [&] {
    ++sequence;
    return core::RequestTag{.sequence = sequence, .answered_below = sequence};
  };
  const core::PlanRequest request{.units = 1'000'003, .label = "bench"};
  std::vector<PlanId> plans;
  return Measure("plan for 16 devices in the core", 2'000, [&](benchmark::State& state) {
    for (auto _ : state) {
      effects.clear();
      core.MakePlan(now, CallId(++call), caller, tag(), request, &effects);
      // The history's record follows it.
      const auto* const reply = std::get_if<core::Reply>(&effects.front().what);
      if (reply == nullptr || !reply->response.ok()) {
        state.SkipWithError("a plan was refused");
        break;
      }
      plans.push_back(std::get<core::PlanResult>(*reply->response).layout->id);
      if (plans.size() < kBatch) continue;
      state.PauseTiming();
      for (const PlanId plan : plans) core.ReleasePlan(now, CallId(++call), caller, tag(), plan, &effects);
      plans.clear();
      // Takes the changes as the daemon does.
      RecordBatch changes;
      core.TakeChanges(&changes);
      state.ResumeTiming();
    }
  });
}

}  // namespace berth::bench
