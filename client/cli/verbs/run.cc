#include <memory>

#include "client/cli/run/run_command.h"
#include "client/cli/verbs.h"

namespace berth::cli {

void AddRun(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb =
      app.add_subcommand("run", "Run a command that holds permits: berth run [OPTIONS] -- COMMAND [ARGUMENTS]...");
  const auto options = std::make_shared<RunOptions>();
  AddRunOptions(verb, globals, options.get(), chosen,
                [&globals, options] { return RunCommand(globals, *options); });
}

}  // namespace berth::cli
