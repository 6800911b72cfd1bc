#include <errno.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include <berth/permit.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "tests/bench/child_process.h"
#include "tests/bench/echo_client.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/stopwatch.h"
#include "tests/bench/witness.h"

namespace berth::bench {
namespace {

constexpr int kRounds = 9;
constexpr int kTurns = 300;
constexpr int kWarmUp = 30;
constexpr absl::Duration kPatience = absl::Seconds(30);

// A process that acquires and releases on command.
class Turner {
 public:
  static absl::StatusOr<std::unique_ptr<Turner>> Start(const Programs& programs, const std::string& folder) {
    BERTH_ASSIGN_OR_RETURN(Pipe commands, MakePipe());
    BERTH_ASSIGN_OR_RETURN(Pipe facts, MakePipe());
    BERTH_ASSIGN_OR_RETURN(ChildProcess process,
                           ChildProcess::Start({.command = {programs.client, "turn", folder},
                                                .pipe = facts.write.get(),
                                                .input = commands.read.get()}));
    auto turner = std::unique_ptr<Turner>(
        new Turner(std::move(process), std::move(commands.write), std::move(facts.read)));
    BERTH_RETURN_IF_ERROR(turner->Next().status());
    return turner;
  }

  absl::Status Go() {
    return ::write(commands_.get(), "x", 1) == 1 ? absl::OkStatus() : OsError("write", errno);
  }
  absl::StatusOr<Fact> Next() {
    BERTH_RETURN_IF_ERROR(AwaitReadable(facts_.get(), kPatience));
    Fact fact;
    if (::read(facts_.get(), &fact, sizeof(fact)) != sizeof(fact)) return OsError("read", errno);
    return fact;
  }

 private:
  Turner(ChildProcess process, UniqueFd commands, UniqueFd facts)
      : process_(std::move(process)), commands_(std::move(commands)), facts_(std::move(facts)) {}
  ChildProcess process_;
  const UniqueFd commands_;
  const UniqueFd facts_;
};

// Returns the microseconds from this process's release to the waiting process's grant.
absl::StatusOr<double> Turn(const std::shared_ptr<Session>& session, const Inspector& inspector,
                            Turner& turner) {
  BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session));
  BERTH_RETURN_IF_ERROR(turner.Go());
  for (const absl::Time deadline = absl::Now() + kPatience;;) {
    BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, inspector.ListPools());
    if (pools.pools(0).waiters() == 1) break;
    if (absl::Now() > deadline) return absl::DeadlineExceededError("nobody came to wait");
  }
  const int64_t start = MonotonicNanoseconds();
  BERTH_RETURN_IF_ERROR(permit.Release());
  BERTH_ASSIGN_OR_RETURN(const Fact granted, turner.Next());
  BERTH_RETURN_IF_ERROR(turner.Go());
  BERTH_RETURN_IF_ERROR(turner.Next().status());
  return (granted.nanoseconds - start) * 1e-3;
}

absl::StatusOr<Pairs> Round(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs, {}, {"BERTH_GPU_TEST_CONCURRENCY=1"}));
  BERTH_ASSIGN_OR_RETURN(const auto echo_server, StartEcho(programs));
  EchoClient echo(EchoSocket(echo_server->folder()));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  const Inspector inspector(session);
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<Turner> turner, Turner::Start(programs, daemon->folder()));
  Pairs pairs;
  for (int i = -kWarmUp; i < kTurns; ++i) {
    BERTH_ASSIGN_OR_RETURN(const double ours, Turn(session, inspector, *turner));
    BERTH_ASSIGN_OR_RETURN(const double theirs, Microseconds([&] { return echo.Call(); }));
    if (i < 0) continue;
    pairs.ours.push_back(ours);
    pairs.theirs.push_back(theirs);
  }
  return pairs;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> TurnMeasurements(const Programs& programs) {
  std::vector<Pairs> rounds;
  for (int i = 0; i < kRounds; ++i) {
    BERTH_ASSIGN_OR_RETURN(rounds.emplace_back(), Round(programs));
  }
  return std::vector<Measurement>{
      CompareRounds("release to another process's grant", rounds, "us", "one bare echo", 1.5)};
}

}  // namespace berth::bench
