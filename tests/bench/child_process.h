// ChildProcess: a program started for a benchmark, which never outlives its object.

#ifndef TESTS_BENCH_CHILD_PROCESS_H_
#define TESTS_BENCH_CHILD_PROCESS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/os/unique_fd.h"

namespace berth::bench {

// The fd number at which a child finds ChildOptions::pipe.
inline constexpr int kChildPipeFd = 3;

struct ChildOptions {
  // The program's path, then its arguments.
  std::vector<std::string> command;
  // "NAME=value"; replaces Berth's variables in this process's environment. All other variables are inherited.
  std::vector<std::string> environment;
  // Becomes the child's fd 3; -1 for none.
  int pipe = -1;
  // The child's standard input, output and error; -1 for this process's own.
  int input = -1;
  int output = -1;
  int error = -1;
};

// Move-only. Destroying it kills and reaps the process. Thread-compatible.
class ChildProcess {
 public:
  // Errors: kNotFound and similar, of posix_spawn.
  static absl::StatusOr<ChildProcess> Start(const ChildOptions& options);

  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)), pidfd_(std::move(other.pidfd_)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { KillAndReap(); }

  int pid() const { return pid_; }
  // Readable once the process has ended.
  int pidfd() const { return pidfd_.get(); }

  void Signal(int signal) const;
  // Waits for the end. Returns the exit code, or 128 + the signal. Requires: not called before.
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
