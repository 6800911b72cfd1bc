#include "daemon/core/types/invariant.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/os/nonblocking_write.h"

namespace berth::core {

void AbortForInvariant(const char* file, int line, const char* condition) {
  char text[512];
  std::snprintf(text, sizeof(text), "%s:%d: invariant broken: %s\n", file, line, condition);
  constexpr int kStderr = 2;
  WriteWithoutBlocking(kStderr, text, std::strlen(text));
  std::abort();
}

absl::Status Broken(const absl::AlphaNum& what) { return absl::InternalError(what.Piece()); }

}  // namespace berth::core
