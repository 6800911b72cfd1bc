// Confinement: what the broker, which hears everybody, gives up for good before it hears anybody.
//
//   capabilities   all but CAP_SYS_PTRACE, where it has that: without it root cannot tell what namespace and program a
//                  peer of another user's is. No exec gives any back (no_new_privs).
//   calls          no program, no process, no socket but Unix ones, no tracing, no mount, no module, no GPU's driver
//                  and more (seccomp). One that is made all the same ends the process, and the kernel's log says which;
//                  a socket is only refused.
//
// It is for good, and for all that it starts: so another vault is started by a process from before (vault/starter.h).

#ifndef DAEMON_CONFINEMENT_H_
#define DAEMON_CONFINEMENT_H_

#include "absl/status/status.h"

namespace berth {

// Requires: no other threads. A build with sanitizers, which fork and trace themselves, keeps its calls. Errors: those
// of the system; what was given up until then is given up.
absl::Status Confine();

}  // namespace berth

#endif  // DAEMON_CONFINEMENT_H_
