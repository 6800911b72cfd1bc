#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {

void AddReset(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand(
      "reset", "End every session and give all back: the way out of a ledger that cannot be read (operator)");
  verb->callback([&globals, chosen] {
    *chosen = [&globals] {
      return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
        BERTH_ASSIGN_OR_RETURN(const v1::ResetNodeResponse answer, inspector.ResetNode());
        return Show(globals, answer, [] { return std::string("everything was let go of\n"); });
      });
    };
  });
}

}  // namespace berth::cli
