// Offsets the wall clock of one process and its descendants by the number of seconds in the file named by
// BERTH_TEST_CLOCK, which may change at any time. Loaded by LD_PRELOAD. Waits on that clock, as abseil's, expire as
// they do where the machine's clock is set.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
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

// Splits a futex wait for a wall-clock time into many short waits, and checks the clock after each.
extern "C" long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  static const auto next = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  const auto call = [&] {
    return next(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
  };
  const auto* const until = reinterpret_cast<const timespec*>(arguments[3]);
  const long operation = arguments[1];
  if (number != SYS_futex || (operation & FUTEX_CMD_MASK) != FUTEX_WAIT_BITSET ||
      (operation & FUTEX_CLOCK_REALTIME) == 0 || until == nullptr) {
    return call();
  }
  arguments[1] = operation & ~static_cast<long>(FUTEX_CLOCK_REALTIME);
  while (true) {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec)) {
      errno = ETIMEDOUT;
      return -1;
    }
    // By a clock that no process sets.
    constexpr long kLook = 5'000'000;
    timespec look;
    clock_gettime(CLOCK_MONOTONIC, &look);
    look.tv_nsec += kLook;
    look.tv_sec += look.tv_nsec / 1'000'000'000;
    look.tv_nsec %= 1'000'000'000;
    arguments[3] = reinterpret_cast<long>(&look);
    const long result = call();
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
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
