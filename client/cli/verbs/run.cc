#include <memory>

#include "client/cli/run/run_command.h"
#include "client/cli/verbs.h"

namespace berth::cli {

void AddRun(Command app, const Globals& globals) {
  const Command verb =
      app.AddSubcommand("run", "Run a command that holds permits: berth run [OPTIONS] -- COMMAND [ARGUMENTS]...");
  const auto options = std::make_shared<RunOptions>();
  AddRunOptions(verb, globals, options.get(), [&globals, options] { return RunCommand(globals, *options); });
}

}  // namespace berth::cli
