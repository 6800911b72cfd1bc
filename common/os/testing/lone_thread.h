// A process whose main thread has ended while another thread runs, for tests of what /proc shows of such a process.

#ifndef COMMON_OS_TESTING_LONE_THREAD_H_
#define COMMON_OS_TESTING_LONE_THREAD_H_

#include <sched.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

namespace berth {

// Whether the process's main thread has ended, and the process has not been reaped.
inline bool IsMainThreadOver(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() && line[name_end + 2] == 'Z';
}

// Ends the main thread, which calls this, once `rest` runs on another thread.
template <typename Rest>
[[noreturn]] void EndMainThread(Rest rest) {
  std::thread([rest = std::move(rest)] {
    while (!IsMainThreadOver(::getpid())) ::sched_yield();
    rest();
  }).detach();
  while (true) ::syscall(SYS_exit, 0);
}

// Forks a process whose only thread is not the main thread, and which waits to be killed. Requires: no other threads.
inline pid_t StartLoneThread() {
  const pid_t child = ::fork();
  if (child == 0) {
    EndMainThread([] {
      while (true) ::pause();
    });
  }
  while (!IsMainThreadOver(child)) ::sched_yield();
  return child;
}

}  // namespace berth

#endif  // COMMON_OS_TESTING_LONE_THREAD_H_
