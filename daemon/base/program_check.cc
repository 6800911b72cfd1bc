#include "daemon/base/program_check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"

namespace berth {
namespace {

absl::Status NoProgram(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(path, why, ": install the program there, then upgrade"));
}

}  // namespace

absl::Status CheckProgram(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  struct stat file = {};
  if (::stat(path.c_str(), &file) < 0) {
    // Another error may not occur to the process that executes the file.
    return errno == ENOENT || errno == ENOTDIR ? NoProgram(path, " does not exist") : absl::OkStatus();
  }
  if (!S_ISREG(file.st_mode)) return NoProgram(path, " is not a file");
  if ((file.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH)) == 0) return NoProgram(path, " is not executable");
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  char start[4] = {};
  const ssize_t got = fd ? ::pread(fd.get(), start, sizeof(start), 0) : -1;
  if (got < 0) return absl::OkStatus();
  const absl::string_view text(start, static_cast<size_t>(got));
  if (text != "\x7f" "ELF" && !absl::StartsWith(text, "#!")) return NoProgram(path, " is not a program");
  return absl::OkStatus();
}

}  // namespace berth
