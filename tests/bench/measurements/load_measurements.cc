#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/block.h>
#include <berth/bytes.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/session.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/status_macros.h"
#include "tests/bench/measurements/crowd.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/quiet.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

constexpr Bytes kBlock = Crowd::kBlock;
constexpr size_t kSessions = Crowd::kSessions;
constexpr HoardShare kShare = {.blocks = 10};
constexpr size_t kBlocks = kSessions * kShare.blocks;
constexpr size_t kWarmBlocks = 8;
constexpr Bytes kWarm(kBlock.count() * kWarmBlocks);

// A daemon with a client that allocates and frees a warm block.
class Allocator {
 public:
  static absl::StatusOr<std::unique_ptr<Allocator>> Make(const Programs& programs) {
    std::vector<std::string> flags = {absl::StrCat("--warm-blocks=", kWarmBlocks)};
    for (std::string& flag : Crowd::Flags(programs, kShare)) flags.push_back(std::move(flag));
    BERTH_ASSIGN_OR_RETURN(auto daemon, StartDaemon(programs, std::move(flags)));
    BERTH_ASSIGN_OR_RETURN(auto session, Session::Open({.folder = daemon->folder()}));
    return std::unique_ptr<Allocator>(new Allocator(std::move(daemon), std::move(session)));
  }

  const std::string& folder() const { return daemon_->folder(); }
  // Ends the daemon; at most one call. Returns the duration in milliseconds. Errors: it did not end cleanly.
  absl::StatusOr<double> Stop() {
    const int64_t start = MonotonicNanoseconds();
    const int code = daemon_->Stop();
    if (code != 0) return absl::InternalError(absl::StrCat("the daemon ended with ", code));
    return (MonotonicNanoseconds() - start) * 1e-6;
  }
  absl::Status Allocate() {
    BERTH_ASSIGN_OR_RETURN(block_, Block::Allocate(session_, {.bytes = kBlock, .label = "bench"}));
    return absl::OkStatus();
  }
  absl::Status Free() { return block_->Free(); }
  absl::Status AwaitWarm() const { return AwaitQuiet(Inspector(session_), kWarm); }
  absl::StatusOr<std::pair<size_t, size_t>> SessionsAndBlocks() const {
    const Inspector inspector(session_);
    BERTH_ASSIGN_OR_RETURN(const v1::Usage usage, inspector.GetUsage());
    BERTH_ASSIGN_OR_RETURN(const v1::ListSessionsResponse sessions, inspector.ListSessions());
    return std::make_pair(static_cast<size_t>(sessions.sessions_size()),
                          static_cast<size_t>(usage.devices(0).bytes().live() / kBlock.count()));
  }

 private:
  Allocator(std::unique_ptr<Server> daemon, std::shared_ptr<Session> session)
      : daemon_(std::move(daemon)), session_(std::move(session)) {}

  const std::unique_ptr<Server> daemon_;
  const std::shared_ptr<Session> session_;
  std::optional<Block> block_;
};

struct Round {
  Pairs pairs;
  double stop = 0;
};

absl::StatusOr<Round> LoadedRound(const Programs& programs) {
  constexpr int kCount = 500;
  constexpr int kWarmUp = 100;
  constexpr int kTurns = 6;
  BERTH_ASSIGN_OR_RETURN(const auto full, Allocator::Make(programs));
  BERTH_ASSIGN_OR_RETURN(const auto empty, Allocator::Make(programs));
  BERTH_ASSIGN_OR_RETURN(const Crowd crowd, Crowd::Start(programs, full->folder(), kShare));
  BERTH_ASSIGN_OR_RETURN(const auto held, full->SessionsAndBlocks());
  if (held != std::make_pair(kSessions + 1, kBlocks)) {
    return absl::InternalError(absl::StrCat(held.first, " sessions hold ", held.second, " blocks"));
  }
  Pairs pairs;
  for (int i = -kWarmUp; i < kCount; ++i) {
    if (i % kTurns == 0) {
      for (Allocator* each : {full.get(), empty.get()}) {
        BERTH_RETURN_IF_ERROR(each->Allocate());
        BERTH_RETURN_IF_ERROR(each->Free());
        BERTH_RETURN_IF_ERROR(each->AwaitWarm());
      }
    }
    double ours = 0;
    double theirs = 0;
    for (const bool is_full : {i % 2 == 0, i % 2 != 0}) {
      double& microseconds = is_full ? ours : theirs;
      BERTH_ASSIGN_OR_RETURN(microseconds,
                             Microseconds([&] { return (is_full ? full : empty)->Allocate(); }));
    }
    BERTH_RETURN_IF_ERROR(full->Free());
    BERTH_RETURN_IF_ERROR(empty->Free());
    if (i < 0) continue;
    pairs.ours.push_back(ours);
    pairs.theirs.push_back(theirs);
  }
  Round round = {.pairs = std::move(pairs)};
  BERTH_ASSIGN_OR_RETURN(round.stop, full->Stop());
  return round;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> LoadedMeasurements(const Programs& programs) {
  // The smallest number whose median has a 95 % interval.
  constexpr int kRounds = 6;
  std::vector<Pairs> rounds;
  std::vector<double> stops;
  for (int i = 0; i < kRounds; ++i) {
    BERTH_ASSIGN_OR_RETURN(Round round, LoadedRound(programs));
    rounds.push_back(std::move(round.pairs));
    stops.push_back(round.stop);
  }
  const std::string load = absl::StrCat(kBlocks, " live blocks of ", kSessions, " sessions");
  return std::vector<Measurement>{
      CompareRounds(absl::StrCat("warm block allocate beside ", load), rounds, "us",
                    "the same in an empty daemon", 1.3),
      Measurement{.name = absl::StrCat("the daemon's end with ", load),
                  .value = Median(stops),
                  .unit = "ms",
                  .bound = 1000}};
}

}  // namespace berth::bench
