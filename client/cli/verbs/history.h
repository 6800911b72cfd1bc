// `berth history`: the past and current leases of the node, with their holders and times.

#ifndef CLIENT_CLI_VERBS_HISTORY_H_
#define CLIENT_CLI_VERBS_HISTORY_H_

#include "CLI/CLI.hpp"
#include "client/cli/verbs.h"

namespace berth::cli {

// As the Add…() functions in verbs.h.
void AddHistory(Command app, const Globals& globals);

}  // namespace berth::cli

#endif  // CLIENT_CLI_VERBS_HISTORY_H_
