// `berth probe`: whether a device works for a program.

#ifndef CLIENT_CLI_PROBE_H_
#define CLIENT_CLI_PROBE_H_

#include "client/cli/verbs.h"

namespace berth::cli {

// As verbs.h says of every verb.
void AddProbe(CLI::App& app, const Globals& globals, Verb* chosen);

}  // namespace berth::cli

#endif  // CLIENT_CLI_PROBE_H_
