#include "daemon/base/control_signals.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <initializer_list>

namespace berth {

sigset_t ControlSignals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGHUP, SIGTERM, SIGINT}) ::sigaddset(&set, number);
  return set;
}

__attribute__((no_sanitize("address", "thread"))) void BlockControlSignals() {
  // The kernel's set. A sanitizer replaces the C library's functions, but is not initialised yet.
  const uint64_t set = 1ULL << (SIGHUP - 1) | 1ULL << (SIGTERM - 1) | 1ULL << (SIGINT - 1);
  ::syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, nullptr, sizeof(set));
}

sigset_t TakeControlSignals() {
  sigset_t taken = ControlSignals();
  sigset_t ignored;
  ::sigemptyset(&ignored);
  for (const int number : {SIGTERM, SIGINT}) {
    struct sigaction action = {};
    ::sigaction(number, nullptr, &action);
    // A shell without job control starts `berthd &` with SIGINT ignored, so that the shell's own ^C leaves the daemon
    // alone. A blocked signal is queued even if it is ignored.
    if (action.sa_handler != SIG_IGN) continue;
    ::sigdelset(&taken, number);
    ::sigaddset(&ignored, number);
  }
  ::sigprocmask(SIG_BLOCK, &taken, nullptr);
  ::sigprocmask(SIG_UNBLOCK, &ignored, nullptr);
  return taken;
}

void LeaveControlSignals() {
  ::signal(SIGHUP, SIG_IGN);
  const sigset_t set = ControlSignals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace berth
