// `berth history`: who had what, when and for how long.

#ifndef CLIENT_CLI_HISTORY_H_
#define CLIENT_CLI_HISTORY_H_

#include "CLI/CLI.hpp"
#include "client/cli/verbs.h"

namespace berth::cli {

// As verbs.h says of every verb.
void AddHistory(CLI::App& app, const Globals& globals, Verb* chosen);

}  // namespace berth::cli

#endif  // CLIENT_CLI_HISTORY_H_
