#include "tests/gpu/fence_figures.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "client/block.h"
#include "client/launch_recorder.h"
#include "client/session.h"
#include "common/block_handle.h"
#include "common/cuda/driver.h"
#include "common/memfd.h"
#include "common/status_macros.h"
#include "tests/bench/echo_client.h"
#include "tests/bench/statistics.h"
#include "tests/bench/stopwatch.h"
#include "tests/gpu/fence_lane.h"
#include "tests/support/actor_handle.h"

namespace berth::gpu {
namespace {

using bench::Figure;
using bench::MonotonicNanoseconds;

constexpr Bytes kBlock = MiB(2);
constexpr Bytes kPage = Bytes(4096);
constexpr int kWarmUp = 50;
constexpr int kSamples = 1000;
// Uses of a sample: short of what makes the driver wait for its queue.
constexpr int kUses = 64;
// There and back again, of a sample between processes.
constexpr int kTurns = 16;
constexpr int kChainSamples = 200;

using Step = absl::FunctionRef<absl::Status(int)>;
// Two of one process, for uses in turn.
using Lanes = std::array<std::unique_ptr<FenceLane>, 2>;

// Nanoseconds that queueing one of kUses steps takes, on streams that are held up meanwhile.
absl::StatusOr<double> TimeQueueing(const Lanes& lanes, Step step) {
  for (const auto& lane : lanes) BERTH_RETURN_IF_ERROR(lane->QueueGate());
  const int64_t start = MonotonicNanoseconds();
  for (int i = 0; i < kUses; ++i) BERTH_RETURN_IF_ERROR(step(i));
  const int64_t end = MonotonicNanoseconds();
  for (const auto& lane : lanes) lane->OpenGate();
  for (const auto& lane : lanes) BERTH_RETURN_IF_ERROR(lane->tracked()->Synchronize());
  return static_cast<double>(end - start) / kUses;
}

// What `ours` takes longer than each of `others`: three series in turn, whose order turns too.
absl::StatusOr<std::vector<Figure>> Above(const Lanes& lanes, const std::string& name, Step ours,
                                          const std::vector<std::pair<std::string, Step>>& others,
                                          std::optional<double> bound_of_first) {
  std::vector<std::vector<double>> above(others.size()), theirs(others.size());
  for (int i = -kWarmUp; i < kSamples; ++i) {
    double our_time = 0;
    if (i % 2 == 0) {
      BERTH_ASSIGN_OR_RETURN(our_time, TimeQueueing(lanes, ours));
    }
    std::vector<double> times;
    for (const auto& [what, step] : others) {
      BERTH_ASSIGN_OR_RETURN(times.emplace_back(), TimeQueueing(lanes, step));
    }
    if (i % 2 != 0) {
      BERTH_ASSIGN_OR_RETURN(our_time, TimeQueueing(lanes, ours));
    }
    for (size_t other = 0; i >= 0 && other < others.size(); ++other) {
      above[other].push_back(our_time - times[other]);
      theirs[other].push_back(times[other]);
    }
  }
  std::vector<Figure> figures;
  for (size_t other = 0; other < others.size(); ++other) {
    const double median = bench::Median(theirs[other]).value;
    figures.push_back({.name = absl::StrCat(name, ", above the other"),
                       .value = bench::Median(above[other]),
                       .unit = "ns",
                       .against = absl::StrCat(others[other].first, " (", static_cast<int>(median), " ns)"),
                       .bound = other == 0 ? bound_of_first : std::nullopt});
  }
  return figures;
}

absl::Status Use(FenceLane& lane, const Mapping& mapping) {
  LaunchRecorder launch(*lane.tracked());
  launch.ReadWrite(mapping);
  BERTH_RETURN_IF_ERROR(launch.Preflight());
  return launch.Commit();
}

// A page of words that streams wait for and write, in a memfd.
struct WordPage {
  static absl::StatusOr<WordPage> Make(cuda::Driver& driver) {
    WordPage page;
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
  // Each on a cache line of its own.
  cuda::DevicePointer word(int index) const { return device + index * 64; }

  UniqueFd fd;
  void* at = nullptr;
  cuda::DevicePointer device = 0;
};

absl::StatusOr<std::vector<Figure>> OneProcess(const std::shared_ptr<Session>& session,
                                               const Mapping& mapping) {
  Lanes lanes;
  for (auto& lane : lanes) {
    BERTH_ASSIGN_OR_RETURN(lane, FenceLane::Open(session));
  }
  cuda::Driver& driver = lanes[0]->driver();
  BERTH_ASSIGN_OR_RETURN(WordPage words, WordPage::Make(driver));
  std::array<cuda::Event, 2> events;
  for (cuda::Event& event : events) {
    BERTH_ASSIGN_OR_RETURN(event, driver.CreateEvent());
  }
  uint64_t value = 0;
  const auto use = [&](int i) { return Use(*lanes[i % 2], mapping); };
  const auto with_events = [&](int i) -> absl::Status {
    const cuda::Stream stream = lanes[i % 2]->stream();
    BERTH_RETURN_IF_ERROR(driver.WaitEvent(stream, events[(i + 1) % 2]));
    return driver.RecordEvent(events[i % 2], stream);
  };
  const auto with_words = [&](int i) -> absl::Status {
    const cuda::Stream stream = lanes[i % 2]->stream();
    BERTH_RETURN_IF_ERROR(driver.WaitValue64(stream, words.word((i + 1) % 2), value));
    return driver.WriteValue64(stream, words.word(i % 2), ++value);
  };
  BERTH_ASSIGN_OR_RETURN(std::vector<Figure> figures,
                         Above(lanes, "prepare+finish on two streams in turn", use,
                               {{"cuStreamWaitEvent+cuEventRecord", with_events},
                                {"cuStreamWaitValue64+cuStreamWriteValue64", with_words}},
                               50));
  const auto use_alone = [&](int) { return Use(*lanes[0], mapping); };
  const auto event_alone = [&](int) { return driver.RecordEvent(events[0], lanes[0]->stream()); };
  const auto word_alone = [&](int) {
    return driver.WriteValue64(lanes[0]->stream(), words.word(0), ++value);
  };
  BERTH_ASSIGN_OR_RETURN(const std::vector<Figure> more,
                         Above(lanes, "prepare+finish on one stream", use_alone,
                               {{"cuEventRecord", event_alone}, {"cuStreamWriteValue64", word_alone}}, 50));
  figures.insert(figures.end(), more.begin(), more.end());
  for (const cuda::Event event : events) BERTH_RETURN_IF_ERROR(driver.DestroyEvent(event));
  words.Drop(driver);
  return figures;
}

// Microseconds from the gate's opening to the end of all that is queued behind it, for each of 2 * kTurns hand-overs.
absl::StatusOr<double> TimeChain(FenceLane& lane) {
  const int64_t start = MonotonicNanoseconds();
  lane.OpenGate();
  BERTH_RETURN_IF_ERROR(lane.tracked()->Synchronize());
  return (MonotonicNanoseconds() - start) * 1e-3 / (2 * kTurns);
}

absl::StatusOr<std::vector<Figure>> TwoProcesses(const bench::Programs& programs, const std::string& folder,
                                                 const std::shared_ptr<Session>& session, const Block& block,
                                                 const Mapping& mapping) {
  BERTH_ASSIGN_OR_RETURN(const auto lane, FenceLane::Open(session));
  cuda::Driver& driver = lane->driver();
  BERTH_ASSIGN_OR_RETURN(WordPage words, WordPage::Make(driver));
  BERTH_ASSIGN_OR_RETURN(const auto echo_server, bench::StartEcho(programs));
  bench::EchoClient echo(bench::EchoSocket(echo_server->folder()));
  testing::Actor other(folder, {.open = false, .program = "tests/gpu/fence_actor"});
  other.Do("stream s");
  BERTH_RETURN_IF_ERROR(block.GrantToSession(other.session()));
  other.Do(absl::StrCat("import b ", FormatHandle(block.handle())));
  other.Do(absl::StrCat("words /proc/", ::getpid(), "/fd/", words.fd.get()));

  bench::Pairs chains, calls;
  uint64_t value = 0;
  for (int i = -kWarmUp; i < kChainSamples; ++i) {
    BERTH_RETURN_IF_ERROR(lane->QueueGate());
    for (int turn = 0; turn < kTurns; ++turn) {
      BERTH_ASSIGN_OR_RETURN(const double ours, bench::Microseconds([&] { return Use(*lane, mapping); }));
      BERTH_ASSIGN_OR_RETURN(const double theirs, bench::Microseconds([&]() -> absl::Status {
                               BERTH_RETURN_IF_ERROR(echo.Call());
                               return echo.Call();
                             }));
      BERTH_RETURN_IF_ERROR(other.Ask("pass s b").status());
      if (i < 0) continue;
      calls.ours.push_back(ours);
      calls.theirs.push_back(theirs);
    }
    BERTH_RETURN_IF_ERROR(Use(*lane, mapping));
    BERTH_ASSIGN_OR_RETURN(const double ours, TimeChain(*lane));

    BERTH_RETURN_IF_ERROR(lane->QueueGate());
    BERTH_RETURN_IF_ERROR(other.Ask(absl::StrCat("answer s ", kTurns, " ", value)).status());
    for (int turn = 0; turn < kTurns; ++turn) {
      BERTH_RETURN_IF_ERROR(driver.WriteValue64(lane->stream(), words.word(0), ++value));
      BERTH_RETURN_IF_ERROR(driver.WaitValue64(lane->stream(), words.word(1), value));
    }
    BERTH_ASSIGN_OR_RETURN(const double theirs, TimeChain(*lane));
    if (i < 0) continue;
    chains.ours.push_back(ours);
    chains.theirs.push_back(theirs);
  }
  other.Quit();
  words.Drop(driver);
  return std::vector<Figure>{
      bench::ComparePairs("a use handed to another process's stream", chains, "us",
                          "cuStreamWriteValue64+cuStreamWaitValue64 between two processes", 1.5),
      bench::ComparePairs("prepare+finish on a shared block, the caller's part", calls, "us",
                          "two bare echoes", std::nullopt)};
}

}  // namespace

absl::StatusOr<std::vector<Figure>> FenceFigures(const bench::Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const auto daemon, bench::StartDaemon(programs, {"--device-budget=1GiB"}));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder(), .label = "bench"}));
  BERTH_ASSIGN_OR_RETURN(const Block block, Block::Allocate(session, {.bytes = kBlock, .label = "bench"}));
  BERTH_ASSIGN_OR_RETURN(const Mapping mapping, block.Map());
  BERTH_ASSIGN_OR_RETURN(std::vector<Figure> figures, OneProcess(session, mapping));
  BERTH_ASSIGN_OR_RETURN(const std::vector<Figure> more,
                         TwoProcesses(programs, daemon->folder(), session, block, mapping));
  figures.insert(figures.end(), more.begin(), more.end());
  return figures;
}

}  // namespace berth::gpu
