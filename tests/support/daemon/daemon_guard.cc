// Kills what is left of a test's daemon, and removes its folder, once the test program has ended in any way. The
// daemon's processes restart each other, and none of them ends with an abort of the test program.
//
//   daemon_guard PARENT   # of the daemon's folder PARENT/run; its standard input ends with the test program

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "tests/support/proc.h"

namespace berth::testing {
namespace {

// Interval between two checks for remaining processes, in milliseconds.
constexpr int kLookAgainMs = 2;
// Most checks; processes that cannot be killed by then are left to the machine's administrator.
constexpr int kLooks = 10'000;

int Main(const std::string& parent) {
  // The signal that ends the test program and its group must not end this guard.
  ::setsid();
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_IGN);
  char byte;
  for (ssize_t got = 1; got != 0;) {
    got = ::read(STDIN_FILENO, &byte, 1);
    if (got < 0 && errno != EINTR) break;
  }
  const std::string folder = "--folder=" + parent + "/run";
  for (int look = 0; look < kLooks; ++look) {
    const std::vector<ChildInfo> left = ProcessesWith("berthd", folder);
    if (left.empty()) break;
    for (const ChildInfo& process : left) ::kill(process.pid, SIGKILL);
    ::poll(nullptr, 0, kLookAgainMs);
  }
  std::error_code ignored;
  std::filesystem::remove_all(parent, ignored);
  return 0;
}

}  // namespace
}  // namespace berth::testing

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "use: daemon_guard PARENT\n");
    return 64;
  }
  return berth::testing::Main(argv[1]);
}
