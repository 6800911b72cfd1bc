#include <memory>
#include <optional>
#include <utility>

#include <berth/block.h>
#include <berth/permit.h>
#include <berth/plan.h>
#include <berth/session.h>

#include "absl/functional/function_ref.h"
#include "client/sdk/admin/inspector.h"
#include "common/status_macros.h"
#include "tests/bench/echo_client.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/quiet.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

// Dropped pairs: connections, caches and the daemon's own buffers warm up.
constexpr int kWarmUp = 300;
// Each round has new servers. The smallest number whose median has a 95 % interval is 6.
constexpr int kRounds = 9;

// Times `ours` and `theirs` alternately, every second pair in reverse order; `between` runs untimed after each pair.
absl::StatusOr<Pairs> Interleave(int count, Step ours, Step theirs, Step between) {
  Pairs pairs;
  for (int i = -kWarmUp; i < count; ++i) {
    double our_time = 0;
    if (i % 2 == 0) {
      BERTH_ASSIGN_OR_RETURN(our_time, Microseconds(ours));
    }
    BERTH_ASSIGN_OR_RETURN(const double their_time, Microseconds(theirs));
    if (i % 2 != 0) {
      BERTH_ASSIGN_OR_RETURN(our_time, Microseconds(ours));
    }
    BERTH_RETURN_IF_ERROR(between());
    if (i < 0) continue;
    pairs.ours.push_back(our_time);
    pairs.theirs.push_back(their_time);
  }
  return pairs;
}

// Runs one round against new servers: pairs of acquire+release and two echoes.
absl::StatusOr<Pairs> PermitRound(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs));
  BERTH_ASSIGN_OR_RETURN(const auto echo_server, StartEcho(programs));
  EchoClient echo(EchoSocket(echo_server->folder()));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  const auto acquire_and_release = [&]() -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session));
    return permit.Release();
  };
  const auto two_echoes = [&]() -> absl::Status {
    BERTH_RETURN_IF_ERROR(echo.Call());
    return echo.Call();
  };
  return Interleave(1000, acquire_and_release, two_echoes, [] { return absl::OkStatus(); });
}

// Runs one round against new servers: pairs of an echo served as the daemon serves and an echo served in gRPC's default
// way.
absl::StatusOr<Pairs> EchoRound(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const auto our_server, StartEcho(programs, {"--single-poller"}));
  BERTH_ASSIGN_OR_RETURN(const auto their_server, StartEcho(programs));
  EchoClient ours(EchoSocket(our_server->folder()));
  EchoClient theirs(EchoSocket(their_server->folder()));
  return Interleave(
      1000, [&] { return ours.Call(); }, [&] { return theirs.Call(); }, [] { return absl::OkStatus(); });
}

// Runs one round against new servers: pairs of a warm allocation with its fd and one echo. After every kTurns pairs the
// warm block cache refills. A nearly empty cache would be refilled at once, beside the next call.
absl::StatusOr<Pairs> WarmBlockRound(const Programs& programs) {
  constexpr Bytes kBlock = MiB(2);
  constexpr Bytes kWarm = MiB(16);
  constexpr int kTurns = 6;
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs, {"--warm-blocks=8"}));
  BERTH_ASSIGN_OR_RETURN(const auto echo_server, StartEcho(programs));
  EchoClient echo(EchoSocket(echo_server->folder()));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  const Inspector inspector(session);
  std::optional<Block> block;
  int turns = 0;
  const auto allocate = [&]() -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(block, Block::Allocate(session, {.bytes = kBlock, .label = "bench"}));
    return absl::OkStatus();
  };
  const auto free_and_refill = [&]() -> absl::Status {
    BERTH_RETURN_IF_ERROR(block->Free());
    return ++turns % kTurns == 0 ? AwaitQuiet(inspector, kWarm) : absl::OkStatus();
  };
  // A first request makes this size a warm size.
  BERTH_RETURN_IF_ERROR(allocate());
  BERTH_RETURN_IF_ERROR(block->Free());
  BERTH_RETURN_IF_ERROR(AwaitQuiet(inspector, kWarm));
  return Interleave(
      500, allocate, [&] { return echo.Call(); }, free_and_refill);
}

// Runs one round against new servers: pairs of a plan over 16 devices and one echo.
absl::StatusOr<Pairs> PlanRound(const Programs& programs) {
  Programs host = programs;
  host.backend = "host";
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(host, {"--host-devices=16", "--host-bytes=64MiB"}));
  BERTH_ASSIGN_OR_RETURN(const auto echo_server, StartEcho(host));
  EchoClient echo(EchoSocket(echo_server->folder()));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  std::optional<Plan> plan;
  const auto make = [&]() -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(Plan made, Plan::Make(session, {.units = 1'000'003}));
    plan.emplace(std::move(made));
    return absl::OkStatus();
  };
  const auto release = [&]() -> absl::Status {
    const absl::Status status = plan->Release();
    plan.reset();
    return status;
  };
  return Interleave(
      1000, make, [&] { return echo.Call(); }, release);
}

absl::StatusOr<std::vector<Pairs>> Rounds(const Programs& programs,
                                          absl::FunctionRef<absl::StatusOr<Pairs>(const Programs&)> round) {
  std::vector<Pairs> rounds;
  for (int i = 0; i < kRounds; ++i) {
    BERTH_ASSIGN_OR_RETURN(rounds.emplace_back(), round(programs));
  }
  return rounds;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> PermitMeasurements(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const std::vector<Pairs> rounds, Rounds(programs, PermitRound));
  std::vector<double> one_echo;
  for (const Pairs& pairs : rounds) one_echo.push_back(Median(pairs.theirs).value / 2);
  BERTH_ASSIGN_OR_RETURN(const std::vector<Pairs> echoes, Rounds(programs, EchoRound));
  return std::vector<Measurement>{{.name = "bare echo", .value = Median(std::move(one_echo)), .unit = "us"},
                                  CompareRounds("bare echo, served on one thread as the daemon serves", echoes, "us",
                                                "one bare echo", std::nullopt),
                                  CompareRounds("permit acquire+release", rounds, "us", "two bare echoes", 1.15)};
}

absl::StatusOr<std::vector<Measurement>> PlanMeasurements(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const std::vector<Pairs> rounds, Rounds(programs, PlanRound));
  return std::vector<Measurement>{CompareRounds("plan for 16 devices", rounds, "us", "one bare echo", 1.2)};
}

absl::StatusOr<std::vector<Measurement>> WarmBlockMeasurements(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const std::vector<Pairs> rounds, Rounds(programs, WarmBlockRound));
  return std::vector<Measurement>{
      CompareRounds("warm block allocate with its fd", rounds, "us", "one bare echo", 1.5)};
}

}  // namespace berth::bench
