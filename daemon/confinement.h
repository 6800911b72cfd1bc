// Confinement: what the daemon's processes give up for good, before they hear anybody.
//
//   all            no tracing, no mount or namespace, no bpf, kexec, clock, swap or key and more (seccomp): refused
//                  with EPERM
//   the broker     which hears everybody, besides: capabilities, all but CAP_SYS_PTRACE, where it has that (without it
//                  root cannot tell what namespace and program a peer of another user's is; no exec gives any back:
//                  no_new_privs); programs, processes, sockets but Unix ones, modules, a GPU's driver, and every
//                  request of ioctl but a few. A call that is made all the same ends the process, and the kernel's log
//                  says which; a socket, and a request of which it is not plain whose it is, are only refused.
//
// It is for good, and for all that they start: so another vault is started by a process from before (vault/starter.h).
// A build with sanitizers, which fork and trace themselves, keeps its calls.

#ifndef DAEMON_CONFINEMENT_H_
#define DAEMON_CONFINEMENT_H_

#include "absl/status/status.h"

namespace berth {

// The first vault's, and so that of all that follows. Nothing is given up by a user's own daemon, which has no
// CAP_SYS_ADMIN: the kernel wants no_new_privs of it, and NVIDIA's driver starts a setuid program. Requires: no other
// threads. Errors: those of the system.
absl::Status ConfineDaemon();

// The broker's. Requires: no other threads. Errors: those of the system; what was given up until then is given up.
absl::Status ConfineBroker();

}  // namespace berth

#endif  // DAEMON_CONFINEMENT_H_
