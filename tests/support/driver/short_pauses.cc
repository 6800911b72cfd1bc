// Shortens the pauses of a process and its descendants that wait for nothing but a second or more: a monitor then reads
// the scripted drivers ten times a second. Loaded by LD_PRELOAD.

#include <dlfcn.h>
#include <poll.h>

extern "C" int poll(pollfd* fds, nfds_t count, int timeout_ms) {
  static const auto next = reinterpret_cast<int (*)(pollfd*, nfds_t, int)>(dlsym(RTLD_NEXT, "poll"));
  return next(fds, count, count == 0 && timeout_ms >= 1'000 ? timeout_ms / 10 : timeout_ms);
}
