// Runs the simulation over a few seeds, in the gate over one seed with a short run. BERTH_SIM_SEED replays one seed,
// BERTH_SIM_SEEDS sets their number, BERTH_SIM_STEPS the length of each run. BERTH_SIM_CHECK_EVERY=1 checks all
// invariants after each step.
// BERTH_SIM_DIGEST=1 prints `digest SEED HEX` and `records SEED HEX` for each run: hashes of its effects and of its
// changes of ledger records. Two versions of the core behave the same if all lines are equal.
// BERTH_SIM_HOURS is the simulated time of the run with a thousand clients. Where it is unset, the soak runs them for
// half a minute, and the gate a smaller crowd for three seconds.

#include <cstdlib>
#include <initializer_list>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/sim/effect_digest.h"
#include "tests/sim/simulation.h"
#include "tests/support/environment.h"

namespace berth::core {
namespace {

// The extent of a run where the environment sets nothing else: in the soak `some` seeds of `long_enough` steps, in the
// gate one seed.
struct Extent {
  Extent(uint64_t some, uint64_t long_enough)
      : one(testing::FromEnvironment("BERTH_SIM_SEED", 0)),
        seeds(one != 0 ? 1 : testing::FromEnvironment("BERTH_SIM_SEEDS", testing::GateOrSoak(1, some))),
        steps(testing::FromEnvironment("BERTH_SIM_STEPS", testing::GateOrSoak(kGateSteps, long_enough))),
        check_every(testing::FromEnvironment("BERTH_SIM_CHECK_EVERY", Simulation::Options().check_every)),
        many(seeds >= some && steps >= long_enough) {}
  uint64_t Seed(uint64_t i) const { return one != 0 ? one : i + 1; }
  static constexpr uint64_t kGateSteps = 1'500;
  // The seed to replay; 0 for none.
  const uint64_t one;
  const uint64_t seeds;
  const uint64_t steps;
  const uint64_t check_every;
  // Whether the runs are so many and so long that together they meet everything that can occur.
  const bool many;
};

// Returns the variables that are set, for the line that replays a run.
std::string AsSet(std::initializer_list<const char*> variables) {
  std::string words;
  for (const char* const name : variables) {
    if (const char* const text = std::getenv(name)) absl::StrAppend(&words, " ", name, "=", text);
  }
  return words;
}

// Runs the simulation to its end and adds up its counts.
void Simulate(Simulation::Options options, uint64_t crowd, uint64_t steps, Simulation::Counts* sum) {
  EffectDigest digest;
  const bool digests = testing::FromEnvironment("BERTH_SIM_DIGEST", 0) != 0;
  if (digests) options.digest = &digest;
  Simulation simulation(options);
  simulation.Crowd(crowd);
  simulation.Run(steps);
  simulation.Finish();
  if (digests) {
    std::cout << "digest " << options.seed << " " << digest.Effects() << "\nrecords " << options.seed << " "
              << digest.Records() << "\n";
  }
  ASSERT_TRUE(simulation.status().ok())
      << simulation.status().message() << "\nreplay: BERTH_SIM_SEED=" << options.seed
      << " BERTH_SIM_STEPS=" << steps << AsSet({"BERTH_SIM_CHECK_EVERY"});
  const Simulation::Counts& counts = simulation.counts();
  sum->sessions += counts.sessions;
  sum->grants += counts.grants;
  sum->nested += counts.nested;
  sum->gangs += counts.gangs;
  sum->notified_revoked += counts.notified_revoked;
  sum->plans += counts.plans;
  sum->replans += counts.replans;
  sum->moves += counts.moves;
  sum->notified_stale += counts.notified_stale;
  sum->allocations += counts.allocations;
  sum->imports += counts.imports;
  sum->undone += counts.undone;
  sum->replayed += counts.replayed;
  sum->quarantined += counts.quarantined;
  sum->worker_deaths += counts.worker_deaths;
  sum->hung_workers += counts.hung_workers;
  sum->abandoned_workers += counts.abandoned_workers;
  sum->enabled_devices += counts.enabled_devices;
  sum->resets += counts.resets;
  sum->drained += counts.drained;
  sum->quotas += counts.quotas;
  sum->readings += counts.readings;
  sum->cleared += counts.cleared;
  sum->explained += counts.explained;
  sum->lost_devices += counts.lost_devices;
  sum->picked += counts.picked;
  sum->contexts += counts.contexts;
  sum->idle_contexts += counts.idle_contexts;
  sum->lost_blocks += counts.lost_blocks;
  sum->rejoined += counts.rejoined;
  sum->left_alive += counts.left_alive;
  sum->waits += counts.waits;
  sum->finished += counts.finished;
  sum->torn += counts.torn;
  sum->handed_over += counts.handed_over;
  sum->reservations += counts.reservations;
  sum->drawn += counts.drawn;
  sum->published += counts.published;
  sum->replaced += counts.replaced;
  sum->handed_waits += counts.handed_waits;
  sum->torn_alone += counts.torn_alone;
  sum->modules += counts.modules;
  sum->rights_to_compile += counts.rights_to_compile;
  sum->corrupt_modules += counts.corrupt_modules;
  sum->restarts += counts.restarts;
  sum->lost_steps += counts.lost_steps;
  sum->waited_on += counts.waited_on;
  sum->lost_answers += counts.lost_answers;
  sum->lost_deliveries += counts.lost_deliveries;
  sum->lost_jobs += counts.lost_jobs;
  sum->lost_fd_changes += counts.lost_fd_changes;
  sum->lost_commands += counts.lost_commands;
  sum->lost_module_work += counts.lost_module_work;
  sum->taken_again += counts.taken_again;
  sum->taken_in_between += counts.taken_in_between;
  sum->taken_back += counts.taken_back;
  sum->unseen += counts.unseen;
  sum->heard_again += counts.heard_again;
  sum->dropped_devices += counts.dropped_devices;
  sum->expired += counts.expired;
  sum->stops += counts.stops;
  sum->resumed += counts.resumed;
  sum->not_resumed += counts.not_resumed;
  sum->ghosts += counts.ghosts;
  sum->given_up += counts.given_up;
  sum->blocks_gone += counts.blocks_gone;
  sum->paused += counts.paused;
  sum->skipped += counts.skipped;
  sum->withdrawn += counts.withdrawn;
  for (const auto& [reason, count] : counts.refusals) sum->refusals[reason] += count;
}

TEST(CoreSimTest, GuaranteesHoldInEveryRun) {
  const Extent run(40, 3'600);
  Simulation::Counts sum;
  const absl::Time start = absl::Now();
  for (uint64_t i = 0; i < run.seeds; ++i) {
    Simulate({.seed = run.Seed(i), .check_every = run.check_every}, /*crowd=*/0, run.steps, &sum);
    if (HasFatalFailure()) return;
  }
  std::cout << static_cast<uint64_t>(run.seeds * run.steps / absl::ToDoubleSeconds(absl::Now() - start))
            << " steps/s; " << sum.sessions << " sessions, " << sum.grants << " grants, " << sum.nested
            << " nested, " << sum.gangs << " gangs, " << sum.plans << " plans, " << sum.replans
            << " made anew, " << sum.moves << " moves, " << sum.notified_stale << " stale, " << sum.allocations
            << " allocations, " << sum.imports << " imports, " << sum.quarantined << " quarantined, "
            << sum.readings << " readings, " << sum.cleared << " said to be whole, " << sum.explained
            << " explained, " << sum.undone << " undone, " << sum.replayed << " replayed, " << sum.reservations
            << " reservations, " << sum.drawn << " drawn, " << sum.published << " published, " << sum.replaced
            << " of them replacing, " << sum.worker_deaths << " worker deaths, " << sum.rejoined << " joined again, "
            << sum.left_alive
            << " left alive, " << sum.finished << " uses, " << sum.waits << " waits, " << sum.torn
            << " torn, " << sum.torn_alone << " by who was alone, " << sum.handed_over << " handed over, "
            << sum.handed_waits << " waits for those, " << sum.hung_workers << " workers hung and "
            << sum.abandoned_workers << " abandoned, " << sum.enabled_devices << " devices enabled, "
            << sum.resets << " reset, " << sum.drained << " drained, " << sum.lost_devices << " lost, "
            << sum.picked << " blocks placed, " << sum.contexts << " context workers, " << sum.idle_contexts
            << " of them idle, " << sum.lost_blocks << " blocks lost, " << sum.modules << " modules given, "
            << sum.rights_to_compile << " to compile, " << sum.corrupt_modules << " corrupt; refused:";
  for (const auto& [reason, count] : sum.refusals) std::cout << " " << reason << " " << count;
  std::cout << "\n";
  if (!run.many) return;
  // Runs in which these never occur test nothing.
  for (const uint64_t count : {sum.sessions,
                               sum.gangs,
                               sum.notified_revoked,
                               sum.plans,
                               sum.replans,
                               sum.notified_stale,
                               sum.grants,
                               sum.nested,
                               sum.allocations,
                               sum.imports,
                               sum.undone,
                               sum.replayed,
                               sum.quarantined,
                               sum.worker_deaths,
                               sum.rejoined,
                               sum.left_alive,
                               sum.finished,
                               sum.waits,
                               sum.torn,
                               sum.handed_over,
                               sum.reservations,
                               sum.contexts,
                               sum.lost_blocks,
                               sum.handed_waits,
                               sum.drawn,
                               sum.published,
                               sum.modules,
                               sum.rights_to_compile,
                               sum.readings,
                               sum.explained}) {
    EXPECT_GT(count, 20);
  }
  for (const uint64_t count :
       {sum.hung_workers, sum.abandoned_workers, sum.enabled_devices, sum.resets, sum.idle_contexts,
        sum.torn_alone, sum.drained, sum.quotas, sum.lost_devices, sum.picked, sum.corrupt_modules, sum.moves,
        sum.cleared, sum.replaced}) {
    EXPECT_GT(count, 5);
  }
  for (const char* const reason : {"ALREADY_HELD",
                                   "BAD_CREDENTIALS",
                                   "BLOCK_IN_USE",
                                   "CANCELLED",
                                   "CONSTRAINT",
                                   "DENIED",
                                   "DEVICE_DRAINING",
                                   "DEVICE_REBUILDING",
                                   "DEVICE_STOPPED",
                                   "DRIVER",
                                   "EXPORT_KIND",
                                   "NO_DEVICE",
                                   "INVALID_FIELD",
                                   "NESTED_OVER_HELD",
                                   "NOT_FOUND",
                                   "NOT_JOINED",
                                   "NO_PERMIT",
                                   "OUT_OF_MEMORY",
                                   "OUT_OF_RANGE",
                                   "OVER_BUDGET",
                                   "OVER_CAP",
                                   "REQUEST_FORGOTTEN",
                                   "REQUEST_REUSED",
                                   "SESSION_ENDED",
                                   "STALE",
                                   "STREAM_MISUSE",
                                   "BLOCK_MAPPED",
                                   "NAME_TAKEN",
                                   "WAIT_TIMED_OUT",
                                   "answers_per_channel",
                                   "blocks",
                                   "blocks_of_tenant",
                                   "bytes_per_module",
                                   "compiles_per_user",
                                   "module_waiters_per_user",
                                   "grants_per_block",
                                   "imports_per_block",
                                   "imports_per_channel",
                                   "plans_per_session",
                                   "queued_deliveries_per_channel",
                                   "reservations_per_session",
                                   "waiters_of_tenant",
                                   "waiters_per_pool"}) {
    EXPECT_GT(sum.refusals[reason], 0) << reason;
  }
}

TEST(CoreSimTest, ConcurrentClientsLeaveNothing) {
  const uint64_t clients = testing::GateOrSoak(300, 3'000);
  Simulation::Counts sum;
  Simulate({.seed = 101, .sessions = clients, .check_every = 200, .wide = true}, /*crowd=*/clients,
           /*steps=*/testing::GateOrSoak(600, 6'000), &sum);
}

// Time passes in one step of a hundred, a quarter of a second on average. With all possible requests, each of a
// thousand clients sends one in some ten seconds.
TEST(CoreSimTest, CrowdRunsForConfiguredTime) {
  const uint64_t seed = testing::FromEnvironment("BERTH_SIM_SEED", 101);
  const uint64_t hours = testing::FromEnvironment("BERTH_SIM_HOURS", 0);
  const uint64_t clients = hours > 0 ? 1'000 : testing::GateOrSoak(100, 1'000);
  Simulation simulation(
      {.seed = seed, .sessions = clients, .check_every = 1'000, .check_records_every = 10'000, .wide = true});
  simulation.Crowd(clients);
  const absl::Time start = absl::Now();
  if (hours == 0) simulation.RunFor(absl::Seconds(testing::GateOrSoak(3, 30)));
  for (uint64_t hour = 1; hour <= hours && simulation.status().ok(); ++hour) {
    simulation.RunFor(absl::Hours(1));
    std::cout << hour << " h: " << simulation.steps() << " steps" << std::endl;
  }
  const double minutes = absl::ToDoubleMinutes(absl::Now() - start);
  const uint64_t steps = simulation.steps();
  std::cout << steps << " steps, " << static_cast<uint64_t>(steps / minutes) << " a minute; "
            << simulation.processes() << " processes at the end\n";
  simulation.Finish();
  ASSERT_TRUE(simulation.status().ok()) << simulation.status().message() << "\nreplay: BERTH_SIM_SEED=" << seed
                                        << AsSet({"BERTH_SIM_HOURS"});
}

TEST(CoreSimTest, BrokerDeathsLoseNoPermitPlanOrPlace) {
  const Extent run(8, 2'500);
  Simulation::Counts sum;
  for (uint64_t i = 0; i < run.seeds; ++i) {
    Simulate({.seed = run.Seed(i), .check_every = run.check_every, .restarts = true, .only_permits = true}, /*crowd=*/0,
             run.steps, &sum);
    if (HasFatalFailure()) return;
  }
  std::cout << sum.restarts << " restarts, " << sum.lost_steps << " of them with a step not written down; "
            << sum.waited_on << " waited on, " << sum.lost_answers << " answers and " << sum.lost_deliveries
            << " deliveries were lost; " << sum.taken_again << " cached permits taken again, " << sum.taken_in_between
            << " without a broker, " << sum.taken_back << " taken back; " << sum.unseen << " ends unseen, "
            << sum.expired << " expired\n";
  if (!run.many) return;
  for (const uint64_t count : {sum.restarts, sum.lost_steps, sum.waited_on, sum.lost_answers, sum.grants, sum.nested,
                               sum.gangs, sum.plans, sum.replans, sum.taken_again, sum.taken_back}) {
    EXPECT_GT(count, 10);
  }
  for (const uint64_t count : {sum.taken_in_between, sum.unseen, sum.expired}) EXPECT_GT(count, 0);
}

TEST(CoreSimTest, BrokerDeathsLoseNoByteOrFence) {
  const Extent run(24, 3'000);
  Simulation::Counts sum;
  for (uint64_t i = 0; i < run.seeds; ++i) {
    Simulate({.seed = run.Seed(i), .check_every = run.check_every, .restarts = true}, /*crowd=*/0, run.steps, &sum);
    if (HasFatalFailure()) return;
  }
  std::cout << sum.restarts << " restarts, " << sum.lost_steps << " of them with a step not written down; "
            << sum.lost_jobs << " jobs, " << sum.lost_deliveries << " deliveries, " << sum.lost_fd_changes
            << " changes of held fds, " << sum.lost_commands << " commands and " << sum.lost_module_work
            << " of the module store's were lost; " << sum.heard_again << " messages heard again; "
            << sum.dropped_devices << " devices dropped\n";
  if (!run.many) return;
  for (const uint64_t count : {sum.restarts, sum.lost_steps, sum.lost_answers, sum.lost_deliveries, sum.lost_jobs,
                               sum.lost_fd_changes, sum.lost_commands, sum.lost_module_work, sum.heard_again,
                               sum.modules, sum.rights_to_compile, sum.allocations, sum.imports,
                               sum.quarantined, sum.waits, sum.finished}) {
    EXPECT_GT(count, 0);
  }
}

TEST(CoreSimTest, StoppedProcessesRetainNothingUntaken) {
  for (const bool only_permits : {true, false}) {
    SCOPED_TRACE(only_permits ? "permits" : "permits and memory");
    const Extent run(16, 2'500);
    Simulation::Counts sum;
    for (uint64_t i = 0; i < run.seeds; ++i) {
      Simulate({.seed = run.Seed(i),
                .check_every = run.check_every,
                .restarts = only_permits == (run.Seed(i) % 2 == 1),
                .pauses = true,
                .only_permits = only_permits},
               /*crowd=*/0, run.steps, &sum);
      if (HasFatalFailure()) return;
    }
    std::cout << sum.paused << " processes stopped; " << sum.skipped << " requests skipped, " << sum.withdrawn
              << " grants withdrawn; " << sum.grants << " grants, " << sum.gangs << " gangs, " << sum.plans
              << " plans, " << sum.restarts << " restarts\n";
    if (!run.many) continue;
    for (const uint64_t count :
         {sum.paused, sum.skipped, sum.withdrawn, sum.grants, sum.gangs, sum.plans, sum.restarts}) {
      EXPECT_GT(count, 10);
    }
  }
}

TEST(CoreSimTest, DaemonRestartsLoseNoLease) {
  for (const bool only_permits : {true, false}) {
    SCOPED_TRACE(only_permits ? "permits" : "permits and memory");
    const Extent run(24, 2'500);
    Simulation::Counts sum;
    for (uint64_t i = 0; i < run.seeds; ++i) {
      Simulate({.seed = run.Seed(i),
                .check_every = run.check_every,
                .restarts = run.Seed(i) % 2 == 1,
                .stops = true,
                .only_permits = only_permits},
               /*crowd=*/0, run.steps, &sum);
      if (HasFatalFailure()) return;
    }
    std::cout << sum.stops << " stops and starts and " << sum.restarts << " brokers' deaths; " << sum.resumed
              << " processes resumed, " << sum.not_resumed << " were too late, " << sum.ghosts << " ended unseen, "
              << sum.given_up << " given up; " << sum.blocks_gone << " blocks lost, " << sum.waited_on
              << " waited on\n";
    if (!run.many) continue;
    for (const uint64_t count : {sum.stops, sum.resumed, sum.not_resumed, sum.ghosts, sum.grants, sum.waited_on,
                                 sum.nested, sum.gangs, sum.plans}) {
      EXPECT_GT(count, 10);
    }
    EXPECT_GT(sum.given_up, 0);
    EXPECT_EQ(sum.blocks_gone > 10, !only_permits);
  }
}

}  // namespace
}  // namespace berth::core
