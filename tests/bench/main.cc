// The benchmarks: prints one line for each measurement (tests/bench/measurement.h). tests/bench/run builds and starts
// this program.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "daemon/supervisor/processes/broker_environment.h"
#include "tests/bench/measurements/measurements.h"

int main(int argc, char** argv) {
  using namespace berth::bench;
  // The core is measured with a broker's heap settings, which the C library reads before main().
  if (berth::EnterBrokerEnvironment()) ::execv("/proc/self/exe", argv);
  Programs programs;
  std::string filter;
  bool json = false;
  CLI::App app("Berth's measurements, each beside its bound.");
  app.add_option("--berthd", programs.berthd, "The daemon")->required();
  app.add_option("--echo-server", programs.echo_server, "The yardstick")->required();
  app.add_option("--client", programs.client, "bench_client")->required();
  app.add_option("--berth", programs.berth, "The command")->required();
  app.add_option("--backend", programs.backend, "The memory of blocks: host or cuda");
  app.add_option("--filter", filter, "Take only the measurements whose name this regular expression finds");
  bool peers = false;
  app.add_flag("--peers", peers,
               "Only the measurements beside others' locks, whose servers must be installed (README.md)");
  app.add_flag("--json", json, "One JSON object a line");
  CLI11_PARSE(app, argc, argv);
  std::vector<NamedMeasurements> all = {
      {"permit acquire+release", PermitMeasurements},
      {"cached acquire+release", CachedPermitMeasurements},
      {"nested acquire+release", NestedPermitMeasurements},
      {"short commands", StartMeasurements},
      {"release to grant", TurnMeasurements},
      {"release to grant behind stopped waiters", StopMeasurements},
      {"Access()", AccessMeasurements},
      {"arena", ArenaMeasurements},
      {"warm block", WarmBlockMeasurements},
      {"plan in the core", PlanCoreMeasurements},
      {"plan over the wire", PlanMeasurements},
      {"module from the node", ModuleMeasurements},
      {"inventory while a driver hangs", HangMeasurements},
      {"10000 live blocks", LoadedMeasurements},
      {"512 processes", CrowdMeasurements},
      {"ten thousand waiters", QueueMeasurements},
      {"among ten thousand waiters over the wire", WaiterMeasurements},
      {"an operator beside ten thousand waiters", OperatorMeasurements},
      {"another's permit beside distinct waiters", ConstraintMeasurements},
      {"another's block beside requests for bytes", ByteWaitMeasurements},
      {"ledger", LedgerMeasurements},
      {"a broker's death", BrokerDeathMeasurements},
      {"a supervisor's death", SupervisorDeathMeasurements},
      {"a broker's death beside stored answers", StoredAnswerMeasurements},
      {"dead holder to next grant", HandOverMeasurements},
      {"random kills", RandomKillMeasurements},
  };
  if (peers) all = {{"64 clients", PeerMeasurements}};
  return RunMeasurements(all, programs, filter, json ? Format::kJson : Format::kTable) == 0 ? 0 : 1;
}
