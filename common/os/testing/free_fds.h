// FreeFds: limits the process's fds, for tests of fd exhaustion.

#ifndef COMMON_OS_TESTING_FREE_FDS_H_
#define COMMON_OS_TESTING_FREE_FDS_H_

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

namespace berth {

// While it lives, the process can open at most `count` more fds; open fds are unaffected. Not thread-safe.
class FreeFds {
 public:
  explicit FreeFds(rlim_t count) {
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (next < 0 || ::close(next) < 0 || ::getrlimit(RLIMIT_NOFILE, &before_) < 0) ::abort();
    const rlimit limit = {.rlim_cur = static_cast<rlim_t>(next) + count, .rlim_max = before_.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &limit) < 0) ::abort();
  }
  FreeFds(const FreeFds&) = delete;
  FreeFds& operator=(const FreeFds&) = delete;
  ~FreeFds() {
    if (::setrlimit(RLIMIT_NOFILE, &before_) < 0) ::abort();
  }

 private:
  rlimit before_;
};

}  // namespace berth

#endif  // COMMON_OS_TESTING_FREE_FDS_H_
