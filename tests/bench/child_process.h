// ChildProcess: a program started for a benchmark, and never left behind.

#ifndef TESTS_BENCH_CHILD_PROCESS_H_
#define TESTS_BENCH_CHILD_PROCESS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace berth::bench {

// Where a child finds ChildOptions::pipe.
inline constexpr int kChildPipeFd = 3;

struct ChildOptions {
  // The program's path, then its arguments.
  std::vector<std::string> command;
  // "NAME=value", in place of Berth's variables in this process's environment; the other variables are handed
  // on.
  std::vector<std::string> environment;
  // Becomes the child's fd 3; -1 for none.
  int pipe = -1;
  // Become its standard input, output and error; -1 for this process's own.
  int input = -1;
  int output = -1;
  int error = -1;
};

// Move-only; killed and reaped when destroyed. Thread-compatible.
class ChildProcess {
 public:
  // Errors: kNotFound and the like of posix_spawn.
  static absl::StatusOr<ChildProcess> Start(const ChildOptions& options);

  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)), pidfd_(std::move(other.pidfd_)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { KillAndReap(); }

  int pid() const { return pid_; }
  // Readable once the process is gone.
  int pidfd() const { return pidfd_.get(); }

  void Signal(int signal) const;
  // Waits for the end. Returns the exit code, or 128 + the signal. Requires: not waited for yet.
  int Wait();

 private:
  ChildProcess(int pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  void KillAndReap();

  // 0 once reaped or moved from.
  int pid_;
  UniqueFd pidfd_;
};

// A pipe, both ends close-on-exec.
struct Pipe {
  UniqueFd read;
  UniqueFd write;
};
absl::StatusOr<Pipe> MakePipe();

// Waits until `fd` is readable. Errors: kDeadlineExceeded.
absl::Status AwaitReadable(int fd, absl::Duration patience);

}  // namespace berth::bench

#endif  // TESTS_BENCH_CHILD_PROCESS_H_
