#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/permit.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/notification.h"
#include "common/status_macros.h"
#include "tests/bench/child_process.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/statistics.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
// The daemon's patience for a take-up (daemon/core/permits/take_up.cc), and 10 ms.
constexpr double kBoundMs = 510;

absl::Status AwaitWaiters(const Inspector& inspector, uint64_t count) {
  for (const absl::Time deadline = absl::Now() + kPatience;; absl::SleepFor(absl::Milliseconds(1))) {
    BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, inspector.ListPools());
    if (pools.pools(0).waiters() == count) return absl::OkStatus();
    if (absl::Now() > deadline) return absl::DeadlineExceededError("too few came to wait");
  }
}

// Returns the milliseconds from a release to the grant of a waiter behind `heads` waiters that were just stopped.
// `unseen`: the daemon sees none of their pids.
absl::StatusOr<double> PassStopped(const Programs& programs, int heads, bool unseen) {
  const std::vector<std::string> environment = {"BERTH_GPU_TEST_CONCURRENCY=1"};
  BERTH_ASSIGN_OR_RETURN(const auto daemon, unseen ? StartDaemonInPidNamespace(programs, environment)
                                                   : StartDaemon(programs, {}, environment));
  BERTH_ASSIGN_OR_RETURN(const auto holder, Session::Open({.folder = daemon->folder()}));
  BERTH_ASSIGN_OR_RETURN(const auto next, Session::Open({.folder = daemon->folder()}));
  const Inspector inspector(holder);
  BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(holder));
  std::vector<ChildProcess> stopped;
  for (int i = 0; i < heads; ++i) {
    BERTH_ASSIGN_OR_RETURN(
        ChildProcess process,
        ChildProcess::Start({.command = {programs.berth, "run", "--quiet", "--", "/bin/true"},
                             .environment = {absl::StrCat("BERTH_FOLDER=", daemon->folder())}}));
    stopped.push_back(std::move(process));
  }
  BERTH_RETURN_IF_ERROR(AwaitWaiters(inspector, static_cast<uint64_t>(heads)));
  Notification granted;
  absl::Status status;
  int64_t end = 0;
  Permit::AcquireAsync(next, {}, [&](absl::StatusOr<Permit> acquired) {
    end = MonotonicNanoseconds();
    status = acquired.status();
    granted.Notify();
  });
  BERTH_RETURN_IF_ERROR(AwaitWaiters(inspector, static_cast<uint64_t>(heads) + 1));
  for (const ChildProcess& process : stopped) process.Signal(SIGSTOP);
  const int64_t start = MonotonicNanoseconds();
  BERTH_RETURN_IF_ERROR(permit.Release());
  granted.WaitForNotification();
  BERTH_RETURN_IF_ERROR(status);
  return (end - start) * 1e-6;
}

absl::StatusOr<Measurement> MeasureStopped(const Programs& programs, std::string name, int heads, int rounds,
                                           bool unseen = false) {
  std::vector<double> all;
  for (int i = 0; i < rounds; ++i) {
    BERTH_ASSIGN_OR_RETURN(all.emplace_back(), PassStopped(programs, heads, unseen));
  }
  return Measurement{.name = std::move(name), .value = Median(all), .unit = "ms", .bound = kBoundMs};
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> StopMeasurements(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const Measurement one,
                         MeasureStopped(programs, "release to the grant behind a stopped waiter", 1, 9));
  BERTH_ASSIGN_OR_RETURN(const Measurement hundred,
                         MeasureStopped(programs, "release to the grant behind 100 stopped waiters", 100, 5));
  std::vector<Measurement> all = {one, hundred};
  // A PID namespace needs root.
  if (::geteuid() == 0) {
    BERTH_ASSIGN_OR_RETURN(all.emplace_back(),
                           MeasureStopped(programs, "release to the grant behind 100 stopped waiters, unseen", 100, 5,
                                          /*unseen=*/true));
  }
  return all;
}

}  // namespace berth::bench
