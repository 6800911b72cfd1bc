// LineOutput writes lines for people to an fd that other processes share, such as stderr, beside the work of its
// process.
//
// LineOutput never waits for the reader of the fd, and never raises a signal (common/os/nonblocking_write.h). Lines
// that the reader does not take yet are retained up to a limit, and retried by later calls. Lines above the limit, and
// lines for which there is no reader, are left out. A line in their place reports their number, once the reader takes
// it.

#ifndef COMMON_LINE_OUTPUT_H_
#define COMMON_LINE_OUTPUT_H_

#include <cstddef>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"

namespace berth {

// Thread-safe.
class LineOutput {
 public:
  // Retained text for a reader that is behind: as much as a pipe holds by default.
  static constexpr size_t kMaxRetained = 64 << 10;

  // `name` begins the line that reports left-out lines. `fd` is not owned.
  LineOutput(int fd, absl::string_view name) : fd_(fd), name_(name) {}
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;

  // Writes one or more lines, each with its newline.
  void Write(absl::string_view lines) ABSL_LOCKS_EXCLUDED(mu_);
  // Retries what the reader has not taken.
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the fd has no capacity for something that Flush() would write.
  bool behind() const ABSL_LOCKS_EXCLUDED(mu_);

  // The lines that the reader has not taken, for a program that writes to the same fd after this one.
  struct Backlog {
    size_t lines = 0;
    // The reader has taken the first part of a line.
    bool in_line = false;
  };
  Backlog backlog() const ABSL_LOCKS_EXCLUDED(mu_);
  // Reports the lines of an earlier program as left out. Called before all other methods.
  void Continue(const Backlog& backlog) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes the first part of `text`. Returns its size, or 0 if nothing was written.
  size_t WriteLocked(absl::string_view text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int fd_;
  const std::string name_;
  mutable Mutex mu_;
  // Begins in the middle of a line if the reader has taken the line's first part.
  std::string retained_ ABSL_GUARDED_BY(mu_);
  // Lines that follow `retained_` and are left out.
  size_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
  // The last byte that the reader has taken is not the end of a line.
  bool in_line_ ABSL_GUARDED_BY(mu_) = false;
  bool behind_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace berth

#endif  // COMMON_LINE_OUTPUT_H_
