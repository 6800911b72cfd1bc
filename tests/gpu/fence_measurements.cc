#include "tests/gpu/fence_measurements.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <berth/block.h>
#include <berth/block_handle.h>
#include <berth/launch_recorder.h>
#include <berth/session.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/driver.h"
#include "common/os/memfd.h"
#include "common/status_macros.h"
#include "tests/bench/echo_client.h"
#include "tests/bench/statistics.h"
#include "tests/bench/stopwatch.h"
#include "tests/gpu/fenced_stream.h"
#include "tests/support/actor/actor_handle.h"

namespace berth::gpu {
namespace {

using bench::Measurement;
using bench::MonotonicNanoseconds;

constexpr Bytes kBlock = MiB(2);
constexpr Bytes kPage = Bytes(4096);
constexpr int kWarmUp = 50;
constexpr int kSamples = 1000;
// Uses of a sample: fewer than make the driver wait for its queue.
constexpr int kUses = 64;
// Round trips of a sample between processes.
constexpr int kTurns = 16;
constexpr int kChainSamples = 200;

using Step = absl::FunctionRef<absl::Status(int)>;
// Two streams of one process, for alternate uses.
using FencedStreams = std::array<std::unique_ptr<FencedStream>, 2>;

// Returns the nanoseconds to queue one of kUses steps, on streams that are blocked meanwhile.
absl::StatusOr<double> TimeQueueing(const FencedStreams& fenced_streams, Step step) {
  for (const auto& fenced : fenced_streams) BERTH_RETURN_IF_ERROR(fenced->QueueGate());
  const int64_t start = MonotonicNanoseconds();
  for (int i = 0; i < kUses; ++i) BERTH_RETURN_IF_ERROR(step(i));
  const int64_t end = MonotonicNanoseconds();
  for (const auto& fenced : fenced_streams) fenced->OpenGate();
  for (const auto& fenced : fenced_streams) BERTH_RETURN_IF_ERROR(fenced->tracked()->Synchronize());
  return static_cast<double>(end - start) / kUses;
}

// Measures the excess of `ours` over each of `others`: series taken alternately, in rotating order.
absl::StatusOr<std::vector<Measurement>> Above(const FencedStreams& fenced_streams, const std::string& name, Step ours,
                                               const std::vector<std::pair<std::string, Step>>& others,
                                               std::optional<double> bound_of_first) {
  std::vector<std::vector<double>> above(others.size()), theirs(others.size());
  for (int i = -kWarmUp; i < kSamples; ++i) {
    double our_time = 0;
    if (i % 2 == 0) {
      BERTH_ASSIGN_OR_RETURN(our_time, TimeQueueing(fenced_streams, ours));
    }
    std::vector<double> times;
    for (const auto& [what, step] : others) {
      BERTH_ASSIGN_OR_RETURN(times.emplace_back(), TimeQueueing(fenced_streams, step));
    }
    if (i % 2 != 0) {
      BERTH_ASSIGN_OR_RETURN(our_time, TimeQueueing(fenced_streams, ours));
    }
    for (size_t other = 0; i >= 0 && other < others.size(); ++other) {
      above[other].push_back(our_time - times[other]);
      theirs[other].push_back(times[other]);
    }
  }
  std::vector<Measurement> measurements;
  for (size_t other = 0; other < others.size(); ++other) {
    const double median = bench::Median(theirs[other]).value;
    measurements.push_back({.name = absl::StrCat(name, ", above the other"),
                            .value = bench::Median(above[other]),
                            .unit = "ns",
                            .against = absl::StrCat(others[other].first, " (", static_cast<int>(median), " ns)"),
                            .bound = other == 0 ? bound_of_first : std::nullopt});
  }
  return measurements;
}

absl::Status Use(FencedStream& fenced, const Mapping& mapping) {
  LaunchRecorder launch(*fenced.tracked());
  launch.ReadWrite(mapping);
  BERTH_RETURN_IF_ERROR(launch.Preflight());
  return launch.Commit();
}

// A page of values that streams wait for and write, in a memfd.
struct ValuePage {
  static absl::StatusOr<ValuePage> Make(cuda::Driver& driver) {
    ValuePage page;
    BERTH_ASSIGN_OR_RETURN(page.fd, CreateMemfd("words", kPage.count()));
    page.at = ::mmap(nullptr, kPage.count(), PROT_READ | PROT_WRITE, MAP_SHARED, page.fd.get(), 0);
    if (page.at == MAP_FAILED) return absl::ResourceExhaustedError("mmap");
    BERTH_ASSIGN_OR_RETURN(page.device, driver.RegisterHostMemory(page.at, kPage, /*read_only=*/false));
    return page;
  }
  void Drop(cuda::Driver& driver) {
    driver.UnregisterHostMemory(at).IgnoreError();
    ::munmap(at, kPage.count());
  }
  // Each value has a separate cache line.
  cuda::DevicePointer value_at(int index) const { return device + index * 64; }

  UniqueFd fd;
  void* at = nullptr;
  cuda::DevicePointer device = 0;
};

absl::StatusOr<std::vector<Measurement>> OneProcess(const std::shared_ptr<Session>& session,
                                                    const Mapping& mapping) {
  FencedStreams fenced_streams;
  for (auto& fenced : fenced_streams) {
    BERTH_ASSIGN_OR_RETURN(fenced, FencedStream::Open(session));
  }
  cuda::Driver& driver = fenced_streams[0]->driver();
  BERTH_ASSIGN_OR_RETURN(ValuePage values, ValuePage::Make(driver));
  std::array<cuda::Event, 2> events;
  for (cuda::Event& event : events) {
    BERTH_ASSIGN_OR_RETURN(event, driver.CreateEvent());
  }
  uint64_t value = 0;
  const auto use = [&](int i) { return Use(*fenced_streams[i % 2], mapping); };
  const auto with_events = [&](int i) -> absl::Status {
    const cuda::Stream stream = fenced_streams[i % 2]->stream();
    BERTH_RETURN_IF_ERROR(driver.WaitEvent(stream, events[(i + 1) % 2]));
    return driver.RecordEvent(events[i % 2], stream);
  };
  const auto with_words = [&](int i) -> absl::Status {
    const cuda::Stream stream = fenced_streams[i % 2]->stream();
    BERTH_RETURN_IF_ERROR(driver.WaitValue64(stream, values.value_at((i + 1) % 2), value));
    return driver.WriteValue64(stream, values.value_at(i % 2), ++value);
  };
  BERTH_ASSIGN_OR_RETURN(std::vector<Measurement> measurements,
                         Above(fenced_streams, "prepare+finish on two streams in turn", use,
                               {{"cuStreamWaitEvent+cuEventRecord", with_events},
                                {"cuStreamWaitValue64+cuStreamWriteValue64", with_words}},
                               50));
  const auto use_alone = [&](int) { return Use(*fenced_streams[0], mapping); };
  const auto event_alone = [&](int) { return driver.RecordEvent(events[0], fenced_streams[0]->stream()); };
  const auto word_alone = [&](int) {
    return driver.WriteValue64(fenced_streams[0]->stream(), values.value_at(0), ++value);
  };
  BERTH_ASSIGN_OR_RETURN(const std::vector<Measurement> more,
                         Above(fenced_streams, "prepare+finish on one stream", use_alone,
                               {{"cuEventRecord", event_alone}, {"cuStreamWriteValue64", word_alone}}, 50));
  measurements.insert(measurements.end(), more.begin(), more.end());
  for (const cuda::Event event : events) BERTH_RETURN_IF_ERROR(driver.DestroyEvent(event));
  values.Drop(driver);
  return measurements;
}

// Returns the microseconds from the gate's opening to the end of all work queued behind it, per hand-over (2 * kTurns).
absl::StatusOr<double> TimeChain(FencedStream& fenced) {
  const int64_t start = MonotonicNanoseconds();
  fenced.OpenGate();
  BERTH_RETURN_IF_ERROR(fenced.tracked()->Synchronize());
  return (MonotonicNanoseconds() - start) * 1e-3 / (2 * kTurns);
}

absl::StatusOr<std::vector<Measurement>> TwoProcesses(const bench::Programs& programs, const std::string& folder,
                                                      const std::shared_ptr<Session>& session, const Block& block,
                                                      const Mapping& mapping) {
  BERTH_ASSIGN_OR_RETURN(const auto fenced, FencedStream::Open(session));
  cuda::Driver& driver = fenced->driver();
  BERTH_ASSIGN_OR_RETURN(ValuePage values, ValuePage::Make(driver));
  BERTH_ASSIGN_OR_RETURN(const auto echo_server, bench::StartEcho(programs));
  bench::EchoClient echo(bench::EchoSocket(echo_server->folder()));
  testing::Actor other(folder, {.open = false, .program = "tests/gpu/fence_actor"});
  BERTH_RETURN_IF_ERROR(other.Ask("stream s").status());
  BERTH_RETURN_IF_ERROR(block.GrantToSession(other.session()));
  BERTH_RETURN_IF_ERROR(other.Ask(absl::StrCat("import b ", FormatHandle(block.handle()))).status());
  BERTH_RETURN_IF_ERROR(other.Ask(absl::StrCat("words /proc/", ::getpid(), "/fd/", values.fd.get())).status());

  bench::Pairs chains, calls;
  uint64_t value = 0;
  for (int i = -kWarmUp; i < kChainSamples; ++i) {
    BERTH_RETURN_IF_ERROR(fenced->QueueGate());
    for (int turn = 0; turn < kTurns; ++turn) {
      BERTH_ASSIGN_OR_RETURN(const double ours, bench::Microseconds([&] { return Use(*fenced, mapping); }));
      BERTH_ASSIGN_OR_RETURN(const double theirs, bench::Microseconds([&]() -> absl::Status {
                               BERTH_RETURN_IF_ERROR(echo.Call());
                               return echo.Call();
                             }));
      BERTH_RETURN_IF_ERROR(other.Ask("pass s b").status());
      if (i < 0) continue;
      calls.ours.push_back(ours);
      calls.theirs.push_back(theirs);
    }
    BERTH_RETURN_IF_ERROR(Use(*fenced, mapping));
    BERTH_ASSIGN_OR_RETURN(const double ours, TimeChain(*fenced));

    BERTH_RETURN_IF_ERROR(fenced->QueueGate());
    BERTH_RETURN_IF_ERROR(other.Ask(absl::StrCat("answer s ", kTurns, " ", value)).status());
    for (int turn = 0; turn < kTurns; ++turn) {
      BERTH_RETURN_IF_ERROR(driver.WriteValue64(fenced->stream(), values.value_at(0), ++value));
      BERTH_RETURN_IF_ERROR(driver.WaitValue64(fenced->stream(), values.value_at(1), value));
    }
    BERTH_ASSIGN_OR_RETURN(const double theirs, TimeChain(*fenced));
    if (i < 0) continue;
    chains.ours.push_back(ours);
    chains.theirs.push_back(theirs);
  }
  other.Quit();
  values.Drop(driver);
  return std::vector<Measurement>{
      bench::ComparePairs("a use handed to another process's stream", chains, "us",
                          "cuStreamWriteValue64+cuStreamWaitValue64 between two processes", 1.5),
      bench::ComparePairs("prepare+finish on a shared block, the caller's part", calls, "us",
                          "two bare echoes", std::nullopt)};
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> FenceMeasurements(const bench::Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const auto daemon, bench::StartDaemon(programs, {"--device-budget=1GiB"}));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder(), .label = "bench"}));
  BERTH_ASSIGN_OR_RETURN(const Block block, Block::Allocate(session, {.bytes = kBlock, .label = "bench"}));
  BERTH_ASSIGN_OR_RETURN(const Mapping mapping, block.Map());
  BERTH_ASSIGN_OR_RETURN(std::vector<Measurement> measurements, OneProcess(session, mapping));
  BERTH_ASSIGN_OR_RETURN(const std::vector<Measurement> more,
                         TwoProcesses(programs, daemon->folder(), session, block, mapping));
  measurements.insert(measurements.end(), more.begin(), more.end());
  return measurements;
}

}  // namespace berth::gpu
