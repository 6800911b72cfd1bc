#include "common/line_output.h"

#include <errno.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/os/nonblocking_write.h"

namespace berth {
namespace {

size_t CountLines(absl::string_view text) { return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')); }

}  // namespace

void LineOutput::Write(absl::string_view lines) {
  MutexLock lock(&mu_);
  FlushLocked();
  if (left_out_ > 0 || retained_.size() + lines.size() > kMaxRetained) {
    left_out_ += CountLines(lines);
    return;
  }
  retained_.append(lines.data(), lines.size());
  FlushLocked();
}

void LineOutput::Flush() {
  MutexLock lock(&mu_);
  FlushLocked();
}

bool LineOutput::behind() const {
  MutexLock lock(&mu_);
  return behind_;
}

LineOutput::Backlog LineOutput::backlog() const {
  MutexLock lock(&mu_);
  return {.lines = CountLines(retained_) + left_out_, .in_line = in_line_};
}

void LineOutput::Continue(const Backlog& backlog) {
  MutexLock lock(&mu_);
  left_out_ = backlog.lines;
  in_line_ = backlog.in_line;
}

size_t LineOutput::WriteLocked(absl::string_view text) {
  ssize_t written;
  while ((written = WriteWithoutBlocking(fd_, text.data(), text.size())) < 0 && errno == EINTR) {
  }
  behind_ = written < 0 && errno == EAGAIN;
  if (written <= 0) return 0;
  in_line_ = text[static_cast<size_t>(written) - 1] != '\n';
  return static_cast<size_t>(written);
}

void LineOutput::FlushLocked() {
  while (!retained_.empty()) {
    const size_t written = WriteLocked(retained_);
    retained_.erase(0, written);
    if (written > 0) continue;
    if (behind_) return;
    // No reader, no space on the disk, or no open fd.
    left_out_ += CountLines(retained_);
    retained_.clear();
  }
  if (left_out_ == 0) return;
  const std::string report =
      absl::StrCat(in_line_ ? "\n" : "", name_, ": ", left_out_, left_out_ == 1 ? " line is" : " lines are",
                   " missing here: the reader of this output was too slow, or gone\n");
  const size_t written = WriteLocked(report);
  if (written == 0) return;
  left_out_ = 0;
  retained_ = report.substr(written);
}

}  // namespace berth
