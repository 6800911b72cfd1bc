// `berth`: permits, blocks and the node, from the command line.

#include <algorithm>
#include <span>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/string_view.h"
#include "client/cli/exit_status.h"
#include "client/cli/history.h"
#include "client/cli/probe.h"
#include "client/cli/verbs.h"
#include "common/version.h"

namespace berth::cli {
namespace {

struct Command {
  absl::string_view name;
  void (*add)(CLI::App&, const Globals&, Verb*);
};

// In the order that help lists them in.
constexpr Command kCommands[] = {{"run", &AddRun},
                                 {"acquire", &AddAcquire},
                                 {"release", &AddRelease},
                                 {"ctest-spec", &AddCtestSpec},
                                 {"ctest-run", &AddCtestRun},
                                 {"status", &AddStatus},
                                 {"permits", &AddPermits},
                                 {"explain", &AddExplain},
                                 {"blocks", &AddBlocks},
                                 {"bytes", &AddBytes},
                                 {"config", &AddConfig},
                                 {"strays", &AddStrays},
                                 {"streams", &AddStreams},
                                 {"sessions", &AddSessions},
                                 {"health", &AddHealth},
                                 {"devices", &AddDevices},
                                 {"device", &AddDevice},
                                 {"probe", &AddProbe},
                                 {"topology", &AddTopology},
                                 {"budget", &AddBudget},
                                 {"reservations", &AddReservations},
                                 {"reap", &AddReap},
                                 {"log", &AddLog},
                                 {"plans", &AddPlans},
                                 {"modules", &AddModules},
                                 {"reset", &AddReset},
                                 {"upgrade", &AddUpgrade},
                                 {"history", &AddHistory}};

// Describes to the parser what `words` may mean: to describe everything takes a quarter of a millisecond of each
// `berth run`.
void AddCommands(CLI::App& app, const Globals& globals, Verb* chosen, std::span<char* const> words) {
  const auto said = [&](absl::string_view word) { return absl::c_linear_search(words, word); };
  const bool all = said("--help") || said("-h") ||
                   absl::c_none_of(kCommands, [&](const Command& command) { return said(command.name); });
  for (const Command& command : kCommands) {
    if (all || said(command.name)) command.add(app, globals, chosen);
  }
}

}  // namespace
}  // namespace berth::cli

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
  const auto end_of_ours = std::find(argv, argv + argc, absl::string_view("--"));
  AddCommands(app, globals, &chosen, {argv + 1, end_of_ours});
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
