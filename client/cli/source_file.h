// SourceFile: reads a file's bytes with a check that they did not change meanwhile.

#ifndef CLIENT_CLI_SOURCE_FILE_H_
#define CLIENT_CLI_SOURCE_FILE_H_

#include <sys/stat.h>

#include <string>
#include <utility>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth::cli {

// Move-only. Thread-compatible.
class SourceFile {
 public:
  // Opens a non-empty regular file that no process has open for writing. Where the file system does not report that,
  // waits until the last write is 2 s ago. Never blocks on another process, as opening a FIFO would.
  // Errors: kInvalidArgument for every other kind of file, for an empty file, and for the kernel's own files (/proc,
  // /sys); kFailedPrecondition if it is open for writing, or changes during the wait; the system's.
  static absl::StatusOr<SourceFile> Open(const std::string& path);

  int fd() const { return fd_.get(); }
  Bytes size() const { return Bytes(static_cast<uint64_t>(before_.st_size)); }

  // OK if the file is unchanged since Open(): its size, mtime and ctime are the same, and nothing follows its last
  // byte. A file that only lost a name meanwhile, for example by a rename over it, counts as unchanged.
  // Many writes through a shared mapping change these times only once; Open() refuses a file with such a mapping.
  // Errors: kFailedPrecondition naming the change.
  absl::Status CheckUnchanged() const;

 private:
  SourceFile(std::string path, UniqueFd fd, const struct stat& before)
      : path_(std::move(path)), fd_(std::move(fd)), before_(before) {}

  // As CheckUnchanged(), without a read.
  absl::Status CheckState() const;

  std::string path_;
  UniqueFd fd_;
  struct stat before_;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_SOURCE_FILE_H_
