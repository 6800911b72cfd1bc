#include "tests/gpu/lease_measurements.h"

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <berth/block.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "client/sdk/admin/inspector.h"
#include "common/cuda/device_mapping.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"
#include "tests/bench/echo_client.h"
#include "tests/bench/quiet.h"
#include "tests/bench/stopwatch.h"

namespace berth::gpu {
namespace {

using bench::AwaitQuiet;
using bench::Measurement;
using bench::Microseconds;
using bench::Pairs;

constexpr Bytes kBlock = MiB(64);
constexpr int kOrdinal = 0;
// The number of blocks that a warm daemon holds, and so the length of a burst.
constexpr int kDepth = 8;
constexpr int kBursts = 40;
constexpr int kColdTurns = 150;
constexpr int kSustainedTurns = 300;
// Dropped from each series.
constexpr int kWarmUp = 16;

// A daemon with `warm` blocks ready, a session with it, and the reference's client.
struct Lessor {
  std::unique_ptr<bench::Server> daemon;
  std::unique_ptr<bench::Server> echo_server;
  std::unique_ptr<bench::EchoClient> echo;
  std::shared_ptr<Session> session;
  Bytes warm;

  absl::Status AwaitRest() const { return AwaitQuiet(Inspector(session), warm); }
};

absl::StatusOr<Lessor> StartLessor(const bench::Programs& programs, int warm) {
  BERTH_ASSIGN_OR_RETURN(bench::TemporaryFolder folder, bench::TemporaryFolder::Make());
  const std::string config = folder.path() + "/berth.toml";
  std::ofstream(config) << "[memory]\nwarm_limit = \"4GiB\"\nwarm_blocks = " << warm << "\n";
  Lessor lessor{.warm = Bytes(kBlock.count() * warm)};
  BERTH_ASSIGN_OR_RETURN(lessor.daemon,
                         bench::StartDaemon(programs, {"--config=" + config, "--device-budget=8GiB"}));
  BERTH_ASSIGN_OR_RETURN(lessor.echo_server, bench::StartEcho(programs));
  lessor.echo = std::make_unique<bench::EchoClient>(bench::EchoSocket(lessor.echo_server->folder()));
  BERTH_ASSIGN_OR_RETURN(lessor.session,
                         Session::Open({.folder = lessor.daemon->folder(), .label = "bench"}));
  // A first request makes this size a warm size.
  BERTH_ASSIGN_OR_RETURN(Block block, Block::Allocate(lessor.session, {.bytes = kBlock, .label = "bench"}));
  BERTH_RETURN_IF_ERROR(block.Free());
  BERTH_RETURN_IF_ERROR(lessor.AwaitRest());
  return lessor;
}

// The duration of one turn, and of its calls.
struct Turn {
  double whole = 0;
  double allocate = 0;
  double map = 0;
  double free = 0;
};

absl::StatusOr<Turn> TakeTurn(const Lessor& lessor) {
  Turn turn;
  std::optional<Block> block;
  BERTH_ASSIGN_OR_RETURN(turn.allocate, Microseconds([&]() -> absl::Status {
                           BERTH_ASSIGN_OR_RETURN(block, Block::Allocate(lessor.session, {.bytes = kBlock}));
                           return absl::OkStatus();
                         }));
  BERTH_ASSIGN_OR_RETURN(turn.map, Microseconds([&] { return block->Map().status(); }));
  BERTH_ASSIGN_OR_RETURN(turn.free, Microseconds([&] { return block->Free(); }));
  turn.whole = turn.allocate + turn.map + turn.free;
  return turn;
}

// The reference steps run in a turn's order, with an echo for each call: a call that directly follows another one finds
// its server awake.

// Runs the driver's part of a warm turn: `fd` imported, mapped and unmapped.
absl::Status MapOnce(cuda::Driver& driver, int fd) {
  BERTH_ASSIGN_OR_RETURN(cuda::DeviceMapping mapping,
                         cuda::DeviceMapping::Map(driver, fd, kBlock, kOrdinal, /*read_only=*/false));
  return mapping.Unmap();
}

// Creates memory and exports it as an fd.
absl::StatusOr<UniqueFd> MakeMemory(cuda::Driver& driver) {
  BERTH_ASSIGN_OR_RETURN(const cuda::Allocation allocation, driver.CreateMemory(kOrdinal, kBlock));
  absl::StatusOr<UniqueFd> fd = driver.ExportFd(allocation);
  BERTH_RETURN_IF_ERROR(driver.ReleaseMemory(allocation));
  return fd;
}

class Series {
 public:
  void Add(const Turn& turn, double theirs) {
    if (dropped_++ < kWarmUp) return;
    whole_.ours.push_back(turn.whole);
    whole_.theirs.push_back(theirs);
    allocate_.push_back(turn.allocate);
    map_.push_back(turn.map);
    free_.push_back(turn.free);
  }

  // Returns the measurement of the whole turn, and those of its parts.
  std::vector<Measurement> Measurements(const std::string& name, absl::string_view against,
                                        std::optional<double> bound) const {
    std::vector<Measurement> measurements = {bench::ComparePairs(name, whole_, "us", against, bound)};
    for (const auto& [part, times] :
         {std::pair("allocate", &allocate_), std::pair("map", &map_), std::pair("unmap+free", &free_)}) {
      measurements.push_back(
          {.name = absl::StrCat(name, ", of it ", part), .value = bench::Median(*times), .unit = "us"});
    }
    return measurements;
  }

 private:
  int dropped_ = 0;
  Pairs whole_;
  std::vector<double> allocate_;
  std::vector<double> map_;
  std::vector<double> free_;
};

// Takes bursts of at most the warm block cache's depth, each begun at rest; where `sustained`, without a pause.
absl::Status TakeWarm(const Lessor& lessor, cuda::Driver& driver, bool sustained, Series* series) {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, MakeMemory(driver));
  const int turns = sustained ? kSustainedTurns : kBursts * kDepth;
  for (int i = 0; i < turns; ++i) {
    if (!sustained && i % kDepth == 0) BERTH_RETURN_IF_ERROR(lessor.AwaitRest());
    BERTH_ASSIGN_OR_RETURN(const Turn turn, TakeTurn(lessor));
    BERTH_ASSIGN_OR_RETURN(const double theirs, Microseconds([&]() -> absl::Status {
                             BERTH_RETURN_IF_ERROR(lessor.echo->Call());
                             BERTH_RETURN_IF_ERROR(MapOnce(driver, fd.get()));
                             return lessor.echo->Call();
                           }));
    series->Add(turn, theirs);
  }
  return absl::OkStatus();
}

absl::Status TakeCold(const Lessor& lessor, cuda::Driver& driver, Series* series) {
  for (int i = 0; i < kColdTurns; ++i) {
    BERTH_RETURN_IF_ERROR(lessor.AwaitRest());
    BERTH_ASSIGN_OR_RETURN(const Turn turn, TakeTurn(lessor));
    BERTH_RETURN_IF_ERROR(lessor.AwaitRest());
    BERTH_ASSIGN_OR_RETURN(const double theirs, Microseconds([&]() -> absl::Status {
                             BERTH_RETURN_IF_ERROR(lessor.echo->Call());
                             BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, MakeMemory(driver));
                             BERTH_RETURN_IF_ERROR(MapOnce(driver, fd.get()));
                             return lessor.echo->Call();
                           }));
    series->Add(turn, theirs);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> LeaseMeasurements(const bench::Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver->RetainPrimaryContext(kOrdinal));
  BERTH_RETURN_IF_ERROR(driver->SetCurrentContext(context));
  Series burst, sustained, cold;
  {
    BERTH_ASSIGN_OR_RETURN(const Lessor lessor, StartLessor(programs, kDepth));
    BERTH_RETURN_IF_ERROR(TakeWarm(lessor, *driver, /*sustained=*/false, &burst));
    BERTH_RETURN_IF_ERROR(TakeWarm(lessor, *driver, /*sustained=*/true, &sustained));
  }
  {
    BERTH_ASSIGN_OR_RETURN(const Lessor lessor, StartLessor(programs, 0));
    BERTH_RETURN_IF_ERROR(TakeCold(lessor, *driver, &cold));
  }
  BERTH_RETURN_IF_ERROR(driver->ReleasePrimaryContext(kOrdinal));

  std::vector<Measurement> measurements;
  const auto add = [&](std::vector<Measurement> more) {
    measurements.insert(measurements.end(), more.begin(), more.end());
  };
  add(burst.Measurements("64 MiB warm lease, within the cache", "two bare echoes and import+map+unmap", 1.2));
  add(sustained.Measurements("64 MiB warm lease, sustained", "two bare echoes and import+map+unmap",
                             std::nullopt));
  add(cold.Measurements("64 MiB cold lease", "two bare echoes and create+export+import+map+unmap", 1.2));
  return measurements;
}

}  // namespace berth::gpu
