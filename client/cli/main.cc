// `berth`: permits, blocks and the node, from the command line.

#include <algorithm>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/string_view.h"
#include "client/cli/exit_status.h"
#include "client/cli/history.h"
#include "client/cli/verbs.h"
#include "common/version.h"

int main(int argc, char** argv) {
  using namespace berth::cli;
  CLI::App app("Lease GPU permits and memory from this node's Berth daemon.", "berth");
  app.set_version_flag("--version", std::string("berth ") + berth::kVersion);
  app.footer(
      "--folder, --admin, --observer and --json may stand after the command, too, but for `run`.\n"
      "Ends with 0: done; 1: refused, or not healthy; 64: a wrong command line; 69: no daemon\n"
      "answers; 77: not allowed, e.g. an operator's command without the right to admin.sock.\n"
      "`berth run --help` has the codes of `run`.");
  app.require_subcommand(1);
  // "berth status --json" is as good as "berth --json status".
  app.fallthrough();
  Globals globals;
  app.add_option(
      "--folder", globals.folder,
      "The folder of the daemon's sockets (default: $BERTH_FOLDER, /run/berth, $XDG_RUNTIME_DIR/berth)");
  app.add_flag("--admin", globals.admin, "Use the operator's socket: see every tenant");
  app.add_flag("--observer", globals.observer, "Use the observers' socket: see every tenant, change nothing");
  app.add_flag("--json", globals.json, "Print JSON for programs");
  Verb chosen;
  for (const auto add :
       {&AddRun,     &AddAcquire,      &AddRelease, &AddCtestSpec, &AddCtestRun, &AddStatus,
        &AddPermits, &AddExplain,      &AddBlocks,  &AddBytes,     &AddConfig,   &AddStrays,
        &AddStreams, &AddSessions,     &AddHealth,  &AddDevices,   &AddDevice,   &AddTopology,
        &AddBudget,  &AddReservations, &AddReap,    &AddLog,       &AddPlans,    &AddModules, &AddReset,
        &AddUpgrade, &AddHistory}) {
    add(app, globals, &chosen);
  }
  const auto end_of_ours = std::find(argv, argv + argc, absl::string_view("--"));
  globals.command.assign(end_of_ours, argv + argc);
  try {
    app.parse(static_cast<int>(end_of_ours - argv), argv);
  } catch (const CLI::ParseError& error) {
    if (const auto words = app.remaining(); app.get_subcommands().empty() && !words.empty()) {
      Report(absl::InvalidArgumentError(words[0] + " is no command; berth --help names them"));
      return kUsage;
    }
    // Help and version are "errors" with code 0; a wrong command line has the one code.
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  return Exit(chosen());
}
