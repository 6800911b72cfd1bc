// UniqueFd owns a file descriptor and closes it once.

#ifndef COMMON_OS_UNIQUE_FD_H_
#define COMMON_OS_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

#include "absl/status/statusor.h"

namespace berth {

// UniqueFd is move-only; -1 is empty. Thread-compatible.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// Duplicates `fd`, close-on-exec. Errors: kResourceExhausted at the process's fd limit, else kInternal.
absl::StatusOr<UniqueFd> DuplicateFd(int fd);

}  // namespace berth

#endif  // COMMON_OS_UNIQUE_FD_H_
