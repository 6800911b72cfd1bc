// Subprocess: a process that a test starts, watches by its pidfd, and that cannot outlive the test unless it is to.

#ifndef TESTS_SUPPORT_SUBPROCESS_H_
#define TESTS_SUPPORT_SUBPROCESS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "tests/support/testing.h"

namespace berth::testing {

// An fd that a process is started with, by its name, as systemd does (sd_listen_fds(3)).
struct ListenFd {
  std::string name;
  int fd = -1;
};

struct SubprocessOptions {
  // The program's path first.
  std::vector<std::string> argv;
  // Set or replaced in the test's own environment, "NAME=value"; or taken out of it, "NAME".
  std::vector<std::string> environment;
  // Its own PID namespace, with a /proc of it. Needs root.
  bool pid_namespace = false;
  // A user namespace that maps only uid and gid 0, so that every other user reads as the overflow uid. Needs
  // root.
  bool user_namespace = false;
  // Handed to the process under the same number.
  int inherited_fd = -1;
  // A file that what it says on its standard error is appended to; the test's own standard error where empty.
  std::string errors;
  // Handed to it from number 3 on. `inherited_fd` is beyond them, then.
  std::vector<ListenFd> listen_fds;
  // Goes on where the test program ends without having ended it.
  bool outlives = false;
  // File descriptors that it may have; 0 for as many as the test.
  uint64_t fd_limit = 0;
};

// Move-only. Destroying it kills the process and waits for its end. Starts processes that the kernel kills
// when the starting thread ends.
class Subprocess {
 public:
  // Fatal where it cannot be started. Thread-safe.
  static Subprocess Start(const SubprocessOptions& options);

  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&&) = delete;
  ~Subprocess();

  pid_t pid() const { return pid_; }
  // Readable once the process is gone.
  int pidfd() const { return pidfd_.get(); }
  // What it prints; readable by poll(), but for a line that was read together with an earlier one.
  int output_fd() const { return output_.get(); }
  bool has_line() const { return unread_.find('\n') != std::string::npos; }
  // Lines that it has printed by now and that are not read yet; does not wait.
  size_t LinesByNow();

  // Writes a line to its standard input. A process that is gone takes nothing.
  void WriteLine(absl::string_view line);
  void CloseInput() { input_.reset(); }
  // The next line of its standard output.
  // Errors: kOutOfRange at the end of it; kDeadlineExceeded.
  absl::StatusOr<std::string> ReadLine(absl::Duration patience = kPatience);
  // Everything up to the end of its standard output.
  std::string ReadAll();

  void Signal(int number) const;
  void Kill() const;
  // Whether it has ended, by its pidfd.
  bool IsGone() const;
  // Waits for its end. Returns: its exit code, or 128 + the signal that ended it. Fatal where it goes on for
  // `patience`.
  int Wait(absl::Duration patience = kPatience);

 private:
  Subprocess(pid_t pid, UniqueFd pidfd, UniqueFd input, UniqueFd output)
      : pid_(pid), pidfd_(std::move(pidfd)), input_(std::move(input)), output_(std::move(output)) {}

  pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd input_;
  UniqueFd output_;
  std::string unread_;
  bool reaped_ = false;
  int code_ = 0;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_SUBPROCESS_H_
