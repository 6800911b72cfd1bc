// Sets the wall clock for one process and those that it starts, and no other: by so many seconds as the file that
// BERTH_TEST_CLOCK names has, at any time. Loaded by LD_PRELOAD.

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

int64_t Ahead() {
  static const std::atomic<int64_t>* const ahead = [] {
    const char* const path = getenv("BERTH_TEST_CLOCK");
    const int fd = path == nullptr ? -1 : ::open(path, O_RDONLY | O_CLOEXEC);
    void* const memory = fd < 0 ? MAP_FAILED : ::mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0) ::close(fd);
    return memory == MAP_FAILED ? nullptr : static_cast<const std::atomic<int64_t>*>(memory);
  }();
  return ahead == nullptr ? 0 : ahead->load();
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) {
  static const auto next = reinterpret_cast<int (*)(clockid_t, timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = next(clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += Ahead();
  return result;
}

extern "C" int gettimeofday(timeval* now, void*) {
  timespec time;
  if (clock_gettime(CLOCK_REALTIME, &time) < 0) return -1;
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return 0;
}

extern "C" time_t time(time_t* out) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}
