#include "common/secret.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

namespace berth {
namespace {

void FillRandom(void* bytes, std::size_t size) {
  ssize_t got;
  do {
    got = ::getrandom(bytes, size, 0);
  } while (got < 0 && errno == EINTR);
  // Requests up to 256 bytes are never truncated; a kernel without getrandom cannot run Berth.
  if (got != static_cast<ssize_t>(size)) abort();
}

}  // namespace

uint64_t RandomId() {
  uint64_t id;
  do {
    FillRandom(&id, sizeof(id));
  } while (id == 0);
  return id;
}

Secret RandomSecret() {
  Secret secret;
  FillRandom(secret.bits.data(), secret.bits.size());
  return secret;
}

}  // namespace berth
