// Subprocess: a process that a test starts and watches by its pidfd. It cannot outlive the test unless `outlives` is
// set.
//
// The first one sets BERTH_TEST_PATIENCE (common/patience.h) for the test program itself and for every process that it
// starts from then on: to 10 in the gate. The soak runs with the product's own bounds. A process whose test waits for
// such a bound gets "BERTH_TEST_PATIENCE=1" as a change of its environment.

#ifndef TESTS_SUPPORT_SUBPROCESS_H_
#define TESTS_SUPPORT_SUBPROCESS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/os/unique_fd.h"
#include "tests/support/testing.h"

namespace berth::testing {

// A named fd that a process inherits, as from systemd (sd_listen_fds(3)).
struct ListenFd {
  std::string name;
  int fd = -1;
};

// Names a standard fd that is closed.
inline constexpr int kClosedFd = -2;

struct SubprocessOptions {
  // The program's path comes first.
  std::vector<std::string> argv;
  // Changes to the test's own environment: "NAME=value" sets or replaces a variable, "NAME" removes it.
  std::vector<std::string> environment;
  // Runs it in a new PID namespace with its own /proc. Needs root.
  bool pid_namespace = false;
  // Runs it in a user namespace that maps only uid and gid 0, so that every other user reads as the overflow uid. Needs
  // root.
  bool user_namespace = false;
  // Inherited under the same number; -1 for none.
  int inherited_fd = -1;
  // The file to which its standard error is appended; empty for the test's own standard error.
  std::string errors;
  // Becomes its standard error, in place of `errors`; -1 for none, kClosedFd for a closed standard error.
  int error_fd = -1;
  // Inherited from number 3 on; `inherited_fd` must then be beyond them.
  std::vector<ListenFd> listen_fds;
  // Continues to run where the test program ends without ending it.
  bool outlives = false;
  // Limit of its file descriptors; 0 for the test's own limit.
  uint64_t fd_limit = 0;
  // Runs as the test's user where clients run as another user (OtherUser()). The same holds for `berth` commands that
  // only operators may use, and for any argv with "--admin".
  bool of_operator = false;
};

// Move-only. Destroying it kills the process and waits for its end. The kernel kills the process when the starting
// thread ends.
class Subprocess {
 public:
  // Fatal where it cannot be started. Thread-safe.
  static Subprocess Start(const SubprocessOptions& options);

  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&&) = delete;
  ~Subprocess();

  pid_t pid() const { return pid_; }
  // Readable once the process has ended.
  int pidfd() const { return pidfd_.get(); }
  // The process's standard output; readable by poll(), except for a line that was read together with an earlier line.
  int output_fd() const { return output_.get(); }
  bool has_line() const { return unread_.find('\n') != std::string::npos; }
  // Counts the lines that it has printed and that are not read yet; does not wait.
  size_t LinesByNow();

  // Writes a line to its standard input; no effect after the process has ended.
  void WriteLine(absl::string_view line);
  void CloseInput() { input_.reset(); }
  // Returns the next line of its standard output.
  // Errors: kOutOfRange at its end; kDeadlineExceeded.
  absl::StatusOr<std::string> ReadLine(absl::Duration patience = kPatience);
  // Returns everything up to the end of its standard output.
  std::string ReadAll();

  void Signal(int number) const;
  void Kill() const;
  // Whether it has ended, by its pidfd.
  bool IsGone() const;
  // Waits for its end. Returns: its exit code, or 128 + the signal that ended it. Fatal where it still runs after
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
