// `berth probe`: verifies that a device works for a program.

#ifndef CLIENT_CLI_VERBS_PROBE_H_
#define CLIENT_CLI_VERBS_PROBE_H_

#include "client/cli/verbs.h"

namespace berth::cli {

// As the Add…() functions in verbs.h.
void AddProbe(Command app, const Globals& globals);

}  // namespace berth::cli

#endif  // CLIENT_CLI_VERBS_PROBE_H_
