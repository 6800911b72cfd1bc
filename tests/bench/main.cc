// The benchmarks: prints one line for each figure (tests/bench/figure.h). tests/bench/run builds and starts
// this.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "daemon/vault/broker_environment.h"
#include "tests/bench/figures.h"

int main(int argc, char** argv) {
  using namespace berth::bench;
  // The core is measured in the heap that a broker has, which the C library learns of before main().
  if (berth::EnterBrokerEnvironment()) ::execv("/proc/self/exe", argv);
  Programs programs;
  std::string filter;
  bool json = false;
  CLI::App app("Berth's figures, each beside its bound.");
  app.add_option("--berthd", programs.berthd, "The daemon")->required();
  app.add_option("--echo-server", programs.echo_server, "The yardstick")->required();
  app.add_option("--client", programs.client, "bench_client")->required();
  app.add_option("--berth", programs.berth, "The command")->required();
  app.add_option("--backend", programs.backend, "What blocks are made of: host or cuda");
  app.add_option("--filter", filter, "Take only the figures whose name this regular expression finds");
  bool peers = false;
  app.add_flag("--peers", peers,
               "Only the figures beside others' locks, whose servers must be installed (README.md)");
  app.add_flag("--json", json, "One JSON object a line");
  CLI11_PARSE(app, argc, argv);
  std::vector<NamedFigures> all = {
      {"permit acquire+release", PermitFigures},
      {"kept acquire+release", KeptPermitFigures},
      {"nested acquire+release", NestedPermitFigures},
      {"release to grant", TurnFigures},
      {"Access()", AccessFigures},
      {"arena", ArenaFigures},
      {"warm block", WarmBlockFigures},
      {"plan in the core", PlanCoreFigures},
      {"plan over the wire", PlanFigures},
      {"module from the node", ModuleFigures},
      {"inventory while a driver hangs", HangFigures},
      {"10000 live blocks", LoadedFigures},
      {"512 processes", CrowdFigures},
      {"ten thousand waiters", QueueFigures},
      {"among ten thousand waiters over the wire", WaiterFigures},
      {"an operator beside ten thousand waiters", OperatorFigures},
      {"ledger", LedgerFigures},
      {"a broker's death", BrokerDeathFigures},
      {"a vault's death", VaultDeathFigures},
      {"dead holder to next grant", HandOverFigures},
      {"random kills", RandomKillFigures},
  };
  if (peers) all = {{"64 clients", PeerFigures}};
  return RunFigures(all, programs, filter, json ? Format::kJson : Format::kTable) == 0 ? 0 : 1;
}
