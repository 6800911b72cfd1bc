#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "tests/bench/child_process.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

constexpr int kCrowd = 512;
// The smallest number whose median has a 95 % interval is 6.
constexpr int kRounds = 7;

// Starts kCrowd processes of `command` together and waits for the last. Returns the duration in seconds. Errors:
// kInternal if one was not served.
absl::StatusOr<double> RunCrowd(const std::vector<std::string>& command) {
  const int64_t start = MonotonicNanoseconds();
  std::vector<ChildProcess> crowd;
  for (int i = 0; i < kCrowd; ++i) {
    BERTH_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start({.command = command}));
    crowd.push_back(std::move(child));
  }
  int refused = 0;
  for (ChildProcess& child : crowd) refused += child.Wait() != 0;
  const double seconds = (MonotonicNanoseconds() - start) * 1e-9;
  if (refused > 0)
    return absl::InternalError(
        absl::StrCat(refused, " of ", kCrowd, " were not served: ", absl::StrJoin(command, " ")));
  return seconds;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> CrowdMeasurements(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs));
  BERTH_ASSIGN_OR_RETURN(const auto echo_server, StartEcho(programs));
  const std::string echo_socket = EchoSocket(echo_server->folder());
  Pairs pairs;
  for (int round = 0; round < kRounds; ++round) {
    BERTH_ASSIGN_OR_RETURN(pairs.theirs.emplace_back(), RunCrowd({programs.client, "echo", echo_socket}));
    BERTH_ASSIGN_OR_RETURN(pairs.ours.emplace_back(),
                           RunCrowd({programs.client, "permit", daemon->folder()}));
  }
  // The same as a test runner starts them: all are admitted at once.
  BERTH_ASSIGN_OR_RETURN(const auto wide,
                         StartDaemon(programs, {}, {absl::StrCat("BERTH_GPU_TEST_CONCURRENCY=", kCrowd)}));
  Pairs commands;
  for (int round = 0; round < kRounds; ++round) {
    BERTH_ASSIGN_OR_RETURN(commands.theirs.emplace_back(),
                           RunCrowd({programs.client, "echo-exec", echo_socket}));
    BERTH_ASSIGN_OR_RETURN(commands.ours.emplace_back(),
                           RunCrowd({programs.berth, "--folder", wide->folder(), "run", "--", "/bin/true"}));
  }
  return std::vector<Measurement>{ComparePairs(absl::StrCat(kCrowd, " processes: session, acquire, release"),
                                               pairs, "s", "the same, one bare echo each", 1.3),
                                  ComparePairs(absl::StrCat(kCrowd, " processes through `berth run`"), commands,
                                               "s", "the same, one bare echo each and then exec", 1.3)};
}

}  // namespace berth::bench
