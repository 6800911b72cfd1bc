#include "client/sdk/transport/high_fd.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace berth::internal {
namespace {

constexpr rlim_t kTop = 1024;
// Nested sessions use two numbers each.
constexpr rlim_t kPlaces = 64;

}  // namespace

int LeastHighFd() {
  rlimit limit = {.rlim_cur = kTop, .rlim_max = kTop};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t top = std::min(limit.rlim_cur, kTop);
  return static_cast<int>(std::max(top / 2, top > kPlaces ? top - kPlaces : 0));
}

UniqueFd MoveFarUp(UniqueFd fd) {
  const int least = LeastHighFd();
  if (!fd || fd.get() >= least) return fd;
  UniqueFd moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, least));
  return moved ? std::move(moved) : std::move(fd);
}

}  // namespace berth::internal
