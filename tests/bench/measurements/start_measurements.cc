// The overhead of a wrapper for a short command: many started at once, beside the usual alternative.

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "tests/bench/child_process.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

constexpr int kRounds = 6;
constexpr int kCommands = 300;
constexpr int kStarts = 100;
// Upper bound of the time before main().
constexpr double kMaxMillisecondsToMain = 15;

// Returns the milliseconds until `count` commands, started at once, have ended. Errors: one did not exit with 0.
absl::StatusOr<double> RunAll(const std::vector<std::string>& command, const std::string& folder, int output,
                              int count = kCommands) {
  const int64_t start = MonotonicNanoseconds();
  std::vector<ChildProcess> children;
  for (int i = 0; i < count; ++i) {
    BERTH_ASSIGN_OR_RETURN(ChildProcess child,
                           ChildProcess::Start({.command = command,
                                                .environment = {absl::StrCat("BERTH_FOLDER=", folder)},
                                                .output = output}));
    children.push_back(std::move(child));
  }
  for (ChildProcess& child : children) {
    if (const int code = child.Wait(); code != 0) {
      return absl::InternalError(absl::StrCat(command[0], " ended with ", code));
    }
  }
  return (MonotonicNanoseconds() - start) * 1e-6;
}

// Returns the milliseconds from the fork of `command` to the first byte of its output. Errors: it said nothing, or did
// not exit with 0.
absl::StatusOr<double> TimeToOutput(const std::vector<std::string>& command, const std::string& folder) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return OsError("pipe2", errno);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const int64_t start = MonotonicNanoseconds();
  BERTH_ASSIGN_OR_RETURN(ChildProcess child,
                         ChildProcess::Start({.command = command,
                                              .environment = {absl::StrCat("BERTH_FOLDER=", folder)},
                                              .output = writer.get()}));
  writer.reset();
  char first;
  const bool spoke = ::read(reader.get(), &first, 1) == 1;
  const double took = (MonotonicNanoseconds() - start) * 1e-6;
  if (const int code = child.Wait(); code != 0 || !spoke) {
    return absl::InternalError(absl::StrCat(command[0], spoke ? "" : " said nothing and", " ended with ", code));
  }
  return took;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> StartMeasurements(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const TemporaryFolder locks, TemporaryFolder::Make());
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs, {}));
  const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!nowhere) return OsError("/dev/null", errno);
  const std::string lock = absl::StrCat(locks.path(), "/lock");
  Pairs runs, versions;
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& [command, times] :
         {std::pair(std::vector<std::string>{programs.berth, "run", "--", "/bin/true"}, &runs.ours),
          std::pair(std::vector<std::string>{"/usr/bin/flock", lock, "/bin/true"}, &runs.theirs),
          std::pair(std::vector<std::string>{programs.berth, "--version"}, &versions.ours),
          std::pair(std::vector<std::string>{"/bin/true"}, &versions.theirs)}) {
      BERTH_ASSIGN_OR_RETURN(const double took, RunAll(command, daemon->folder(), nowhere.get()));
      times->push_back(took);
    }
  }
  // One at a time, each first in every other pair: a notice is prepared, and no wait lasts long enough for it.
  const std::vector<std::string> noticing = {programs.berth, "run", "--", "/bin/true"};
  const std::vector<std::string> quiet = {programs.berth, "run", "--quiet", "--", "/bin/true"};
  Pairs notices;
  for (int pair = 0; pair < kCommands; ++pair) {
    for (const bool ours : {pair % 2 == 0, pair % 2 != 0}) {
      BERTH_ASSIGN_OR_RETURN(const double took,
                             RunAll(ours ? noticing : quiet, daemon->folder(), nowhere.get(), /*count=*/1));
      (ours ? notices.ours : notices.theirs).push_back(took);
    }
  }
  // The first output shows how soon main() comes: until then signals have the kernel's dispositions. `berth --version`
  // answers before main().
  std::vector<double> command_starts, daemon_starts;
  for (int round = 0; round < kStarts; ++round) {
    for (const auto& [command, times] :
         {std::pair(std::vector<std::string>{programs.berth, "--help"}, &command_starts),
          std::pair(std::vector<std::string>{programs.berthd, "--version"}, &daemon_starts)}) {
      BERTH_ASSIGN_OR_RETURN(const double took, TimeToOutput(command, daemon->folder()));
      times->push_back(took);
    }
  }
  return std::vector<Measurement>{
      {.name = "`berth --help`, alone: from fork to its first output",
       .value = Median(std::move(command_starts)),
       .unit = "ms",
       .bound = kMaxMillisecondsToMain},
      {.name = "`berthd --version`, alone: from fork to its first output",
       .value = Median(std::move(daemon_starts)),
       .unit = "ms",
       .bound = kMaxMillisecondsToMain},
      ComparePairs(absl::StrCat(kCommands, " times `berth run -- true` at once, in a pool of two"), runs, "ms",
                   "`flock F true`", 2),
      ComparePairs("`berth run -- true`, with the notice of a wait", notices, "ms", "`berth run --quiet -- true`",
                   1.05),
      ComparePairs(absl::StrCat(kCommands, " times `berth --version` at once"), versions, "ms", "`true`", 2)};
}

}  // namespace berth::bench
