#include "tests/bench/arena_loops.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

constexpr int kPairs = 64;
constexpr int kSamples = 2000;
constexpr int kWarmUp = 200;
// Bounds in nanoseconds, on one thread and on several.
constexpr double kAloneBound = 100;
constexpr double kThreadsBound = 300;

// Runs `sample(thread)` on `threads` threads at once. Returns all samples except the first of each.
using Sample = absl::FunctionRef<absl::StatusOr<double>(int thread)>;
absl::StatusOr<std::vector<double>> OnThreads(const ArenaStreams& setup, int threads, Sample sample) {
  std::vector<absl::StatusOr<std::vector<double>>> results(threads, std::vector<double>());
  std::atomic<int> missing = threads;
  const auto run = [&](int thread) -> absl::StatusOr<std::vector<double>> {
    const absl::Status entered = setup.enter();
    missing.fetch_sub(1);
    BERTH_RETURN_IF_ERROR(entered);
    while (missing.load() > 0) std::this_thread::yield();
    std::vector<double> samples;
    for (int i = -kWarmUp; i < kSamples; ++i) {
      BERTH_ASSIGN_OR_RETURN(const double nanoseconds, sample(thread));
      if (i >= 0) samples.push_back(nanoseconds);
    }
    return samples;
  };
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] { results[thread] = run(thread); });
  }
  for (std::thread& thread : running) thread.join();
  std::vector<double> all;
  for (const auto& result : results) {
    BERTH_RETURN_IF_ERROR(result.status());
    all.insert(all.end(), result->begin(), result->end());
  }
  return all;
}

// A thread's live allocations, which it replaces one at a time.
struct Mix {
  std::mt19937_64 random;
  std::array<void*, 64> live = {};

  absl::Status Replace(Arena& arena, ArenaStream stream) {
    void*& slot = live[random() % live.size()];
    if (slot != nullptr) BERTH_RETURN_IF_ERROR(arena.Free(slot, stream));
    // Sizes of every order of magnitude are equally likely.
    const uint64_t bytes = KiB(4).count() << random() % 8;
    BERTH_ASSIGN_OR_RETURN(slot, arena.Allocate(Bytes(bytes + random() % bytes), stream));
    return absl::OkStatus();
  }
  absl::Status FreeAll(Arena& arena, ArenaStream stream) {
    for (void* const pointer : live) {
      if (pointer != nullptr) BERTH_RETURN_IF_ERROR(arena.Free(pointer, stream));
    }
    return absl::OkStatus();
  }
};

// Returns the nanoseconds of each replacement of one of 64 live allocations.
absl::StatusOr<std::vector<double>> MixedTimes(Arena& arena, const ArenaStreams& setup, int threads) {
  std::vector<Mix> mixes(threads);
  for (int thread = 0; thread < threads; ++thread) mixes[thread].random.seed(thread);
  absl::StatusOr<std::vector<double>> times = OnThreads(setup, threads, [&](int thread) {
    return TimePairs([&] { return mixes[thread].Replace(arena, setup.streams[thread]); });
  });
  for (int thread = 0; thread < threads; ++thread) {
    BERTH_RETURN_IF_ERROR(mixes[thread].FreeAll(arena, setup.streams[thread]));
  }
  return times;
}

}  // namespace

std::vector<Bytes> ArenaSizes() { return {KiB(4), KiB(64), MiB(1), MiB(16), MiB(64)}; }

absl::StatusOr<double> TimePairs(absl::FunctionRef<absl::Status()> pair) {
  const int64_t start = MonotonicNanoseconds();
  for (int i = 0; i < kPairs; ++i) BERTH_RETURN_IF_ERROR(pair());
  return static_cast<double>(MonotonicNanoseconds() - start) / kPairs;
}

absl::Status AllocateAndFree(Arena& arena, Bytes bytes, ArenaStream stream) {
  BERTH_ASSIGN_OR_RETURN(void* const pointer, arena.Allocate(bytes, stream));
  return arena.Free(pointer, stream);
}

absl::StatusOr<std::vector<Measurement>> ArenaMeasurementsOf(Arena& arena, const ArenaStreams& setup) {
  std::vector<Measurement> measurements;
  const auto add = [&](std::string name, std::vector<double> samples, std::optional<double> bound) {
    measurements.push_back(
        {.name = std::move(name), .value = Median(std::move(samples)), .unit = "ns", .bound = bound});
  };
  for (const int threads : {1, kArenaThreads}) {
    const std::string with = threads == 1 ? "" : absl::StrCat(", ", threads, " threads");
    for (const Bytes bytes : ArenaSizes()) {
      BERTH_ASSIGN_OR_RETURN(
          std::vector<double> times, OnThreads(setup, threads, [&](int thread) {
            return TimePairs([&] { return AllocateAndFree(arena, bytes, setup.streams[thread]); });
          }));
      add(absl::StrCat("arena allocate+free ", FormatBytes(bytes), with), std::move(times),
          threads == 1 ? kAloneBound : kThreadsBound);
    }
    BERTH_ASSIGN_OR_RETURN(std::vector<double> times, MixedTimes(arena, setup, threads));
    add(absl::StrCat("arena free+allocate, 64 live of 4 KiB to 1 MiB", with), std::move(times), std::nullopt);
    BERTH_RETURN_IF_ERROR(arena.Trim().status());
  }
  return measurements;
}

}  // namespace berth::bench
