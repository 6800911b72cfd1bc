#include "common/os/stack_limit.h"

#include <pthread.h>
#include <stdio.h>

namespace berth {

size_t StackBytes() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_destroy(&attributes);
  return bytes;
}

bool LacksStack(char* why, size_t size) {
  const size_t bytes = StackBytes();
  if (bytes >= kMinStackBytes) return false;
  ::snprintf(why, size, "a stack has %zu KiB, and needs %zu KiB (RLIMIT_STACK: ulimit -s raises it)", bytes >> 10,
             kMinStackBytes >> 10);
  return true;
}

void BoundStacks() {
  if (StackBytes() <= kMaxStackBytes) return;
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kMaxStackBytes);
  ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
}

}  // namespace berth
