// The figures: how much slower than the bare transport, how many nanoseconds, how soon after a death. Each
// starts what it needs and leaves nothing behind.

#ifndef TESTS_BENCH_FIGURES_H_
#define TESTS_BENCH_FIGURES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/figure.h"
#include "tests/bench/servers.h"

namespace berth::bench {

// Takes one or more figures.
using TakeFigures = std::function<absl::StatusOr<std::vector<Figure>>(const Programs&)>;

struct NamedFigures {
  // What --filter matches, and how a failure is reported.
  std::string name;
  TakeFigures take;
};

// Round trips, call by call beside the echo (call_figures.cc).
absl::StatusOr<std::vector<Figure>> PermitFigures(const Programs& programs);
absl::StatusOr<std::vector<Figure>> WarmBlockFigures(const Programs& programs);
absl::StatusOr<std::vector<Figure>> PlanFigures(const Programs& programs);

// (module_figures.cc)
absl::StatusOr<std::vector<Figure>> ModuleFigures(const Programs& programs);

// What an operator asks while a driver hangs (hang_figures.cc).
absl::StatusOr<std::vector<Figure>> HangFigures(const Programs& programs);

// What costs no call (local_figures.cc).
absl::StatusOr<std::vector<Figure>> NestedPermitFigures(const Programs& programs);
absl::StatusOr<std::vector<Figure>> KeptPermitFigures(const Programs& programs);
absl::StatusOr<std::vector<Figure>> AccessFigures(const Programs& programs);
absl::StatusOr<std::vector<Figure>> PlanCoreFigures(const Programs& programs);
// (arena_figures.cc)
absl::StatusOr<std::vector<Figure>> ArenaFigures(const Programs& programs);

// From one process's release to another's grant (turn_figures.cc).
absl::StatusOr<std::vector<Figure>> TurnFigures(const Programs& programs);
// Many that contend, beside others' locks (peer_figures.cc).
absl::StatusOr<std::vector<Figure>> PeerFigures(const Programs& programs);

// Many that wait, in the core (queue_figures.cc) and over the wire (waiter_figures.cc).
absl::StatusOr<std::vector<Figure>> QueueFigures(const Programs& programs);
absl::StatusOr<std::vector<Figure>> WaiterFigures(const Programs& programs);
absl::StatusOr<std::vector<Figure>> OperatorFigures(const Programs& programs);

// Many processes (crowd_figures.cc).
absl::StatusOr<std::vector<Figure>> CrowdFigures(const Programs& programs);
// A daemon that has much on its books (load_figures.cc).
absl::StatusOr<std::vector<Figure>> LoadedFigures(const Programs& programs);

// What it costs to keep what is kept over a broker's death (ledger_figures.cc), and what such a death and a vault's
// cost clients, with every lease counted and looked at afterwards (restart_figures.cc).
absl::StatusOr<std::vector<Figure>> LedgerFigures(const Programs& programs);
absl::StatusOr<std::vector<Figure>> BrokerDeathFigures(const Programs& programs);
absl::StatusOr<std::vector<Figure>> VaultDeathFigures(const Programs& programs);

// Processes that die (death_figures.cc).
absl::StatusOr<std::vector<Figure>> HandOverFigures(const Programs& programs);
absl::StatusOr<std::vector<Figure>> RandomKillFigures(const Programs& programs);

// Runs those of `all` that `filter`, a regular expression, finds in the name; prints a line for each figure
// as it comes. Returns the number that failed or were short.
int RunFigures(const std::vector<NamedFigures>& all, const Programs& programs, const std::string& filter,
               Format format);

}  // namespace berth::bench

#endif  // TESTS_BENCH_FIGURES_H_
