// What the vault's parts share that is too small for a place of its own: its log and its clock.

#ifndef DAEMON_VAULT_VAULT_LOG_H_
#define DAEMON_VAULT_VAULT_LOG_H_

#include "daemon/vault/restart_policy.h"

namespace berth {

// Writes a line to stderr.
__attribute__((format(printf, 1, 2))) void Log(const char* format, ...);

MonotonicTime Now();

// Milliseconds until `deadline`, as poll() wants them: at most a minute.
int PollTimeout(MonotonicTime deadline);

}  // namespace berth

#endif  // DAEMON_VAULT_VAULT_LOG_H_
