// The measurements: slowdown against the bare transport, nanoseconds of local operations, latency after a death. Each
// function starts the processes that it needs and leaves nothing behind.

#ifndef TESTS_BENCH_MEASUREMENTS_MEASUREMENTS_H_
#define TESTS_BENCH_MEASUREMENTS_MEASUREMENTS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/measurement.h"
#include "tests/bench/servers.h"

namespace berth::bench {

// Measures one or more measurements.
using TakeMeasurements = std::function<absl::StatusOr<std::vector<Measurement>>(const Programs&)>;

struct NamedMeasurements {
  // The name that --filter matches, and under which a failure is reported.
  std::string name;
  TakeMeasurements take;
};

// Round trips, call by call beside the echo (call_measurements.cc).
absl::StatusOr<std::vector<Measurement>> PermitMeasurements(const Programs& programs);
absl::StatusOr<std::vector<Measurement>> WarmBlockMeasurements(const Programs& programs);
absl::StatusOr<std::vector<Measurement>> PlanMeasurements(const Programs& programs);

// Compiled modules (module_measurements.cc).
absl::StatusOr<std::vector<Measurement>> ModuleMeasurements(const Programs& programs);

// Operators' calls while a driver hangs (hang_measurements.cc).
absl::StatusOr<std::vector<Measurement>> HangMeasurements(const Programs& programs);

// Operations without a call (local_measurements.cc).
absl::StatusOr<std::vector<Measurement>> NestedPermitMeasurements(const Programs& programs);
absl::StatusOr<std::vector<Measurement>> CachedPermitMeasurements(const Programs& programs);
absl::StatusOr<std::vector<Measurement>> AccessMeasurements(const Programs& programs);
absl::StatusOr<std::vector<Measurement>> PlanCoreMeasurements(const Programs& programs);
// Arenas (arena_measurements.cc).
absl::StatusOr<std::vector<Measurement>> ArenaMeasurements(const Programs& programs);

// A short command's overhead by its wrapper (start_measurements.cc).
absl::StatusOr<std::vector<Measurement>> StartMeasurements(const Programs& programs);

// Time from one process's release to another's grant (turn_measurements.cc).
absl::StatusOr<std::vector<Measurement>> TurnMeasurements(const Programs& programs);
// The same behind waiters that are stopped (stop_measurements.cc).
absl::StatusOr<std::vector<Measurement>> StopMeasurements(const Programs& programs);
// Many contending processes, beside other locks (peer_measurements.cc).
absl::StatusOr<std::vector<Measurement>> PeerMeasurements(const Programs& programs);

// Many waiters, in the core (queue_measurements.cc) and over the wire (waiter_measurements.cc).
absl::StatusOr<std::vector<Measurement>> QueueMeasurements(const Programs& programs);
absl::StatusOr<std::vector<Measurement>> WaiterMeasurements(const Programs& programs);
absl::StatusOr<std::vector<Measurement>> OperatorMeasurements(const Programs& programs);
// Many waiters that cannot be served (constraint_measurements.cc).
absl::StatusOr<std::vector<Measurement>> ConstraintMeasurements(const Programs& programs);
// Requests for bytes that are not available (byte_wait_measurements.cc).
absl::StatusOr<std::vector<Measurement>> ByteWaitMeasurements(const Programs& programs);

// Many processes (crowd_measurements.cc).
absl::StatusOr<std::vector<Measurement>> CrowdMeasurements(const Programs& programs);
// A daemon that holds many leases (load_measurements.cc).
absl::StatusOr<std::vector<Measurement>> LoadedMeasurements(const Programs& programs);

// The cost of persisting state over a broker's death (ledger_measurements.cc), and the cost of a broker's and a
// supervisor's death to clients, with every lease counted and checked afterwards (restart_measurements.cc).
absl::StatusOr<std::vector<Measurement>> LedgerMeasurements(const Programs& programs);
absl::StatusOr<std::vector<Measurement>> BrokerDeathMeasurements(const Programs& programs);
absl::StatusOr<std::vector<Measurement>> SupervisorDeathMeasurements(const Programs& programs);
// A broker's death after one user has stored all answers that its share allows (answer_measurements.cc).
absl::StatusOr<std::vector<Measurement>> StoredAnswerMeasurements(const Programs& programs);

// Processes that die (death_measurements.cc).
absl::StatusOr<std::vector<Measurement>> HandOverMeasurements(const Programs& programs);
absl::StatusOr<std::vector<Measurement>> RandomKillMeasurements(const Programs& programs);

// Runs the entries of `all` whose name matches the regular expression `filter`; prints a line for each measurement as
// it is measured. Returns the number that failed or missed their bound.
int RunMeasurements(const std::vector<NamedMeasurements>& all, const Programs& programs, const std::string& filter,
                    Format format);

}  // namespace berth::bench

#endif  // TESTS_BENCH_MEASUREMENTS_MEASUREMENTS_H_
