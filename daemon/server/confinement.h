// Confinement: the privileges that the daemon's processes give up for good, before they accept input.
//
//   all            no tracing, no mount or namespace, no bpf, kexec, clock, swap, key and similar calls (seccomp): the
//                  kernel refuses them with EPERM
//   the broker     which accepts input from every client, also gives up: all capabilities except an existing
//                  CAP_SYS_PTRACE (without it root cannot read the namespace and program of another user's process;
//                  exec gives none back: no_new_privs); programs, processes, sockets except Unix sockets, modules, a
//                  GPU's driver, and all ioctl requests except a few. Such a call ends the process, and the kernel's
//                  log names it; a socket, and an ioctl request whose number does not identify its driver, is only
//                  refused.
//
// Confinement is permanent and covers all child processes, so another supervisor is started by a process that forked
// earlier (supervisor/launcher.h). A build with sanitizers, which fork and trace themselves, does not filter calls.

#ifndef DAEMON_SERVER_CONFINEMENT_H_
#define DAEMON_SERVER_CONFINEMENT_H_

#include "absl/status/status.h"

namespace berth {

// Confines the first supervisor, and with it every later process. A user's own daemon has no CAP_SYS_ADMIN and gives up
// nothing: the kernel would require no_new_privs, and NVIDIA's driver starts a setuid program. Requires: no other
// threads. Errors: those of the system.
absl::Status ConfineDaemon();

// Confines the broker. Requires: no other threads. Errors: those of the system; privileges given up before the error
// stay given up.
absl::Status ConfineBroker();

}  // namespace berth

#endif  // DAEMON_SERVER_CONFINEMENT_H_
