// WholeFile: a file that is written next to its path and renamed into place. Readers see all of it or none, and a link
// planted at the path is not followed.

#ifndef COMMON_OS_WHOLE_FILE_H_
#define COMMON_OS_WHOLE_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"

namespace berth {

class WholeFile {
 public:
  // Creates an empty file next to `path`, with `mode` less the umask, close-on-exec.
  // Errors: kFailedPrecondition if something other than a regular file is at `path`; those of the system.
  static absl::StatusOr<WholeFile> Create(const std::string& path, mode_t mode);

  WholeFile(WholeFile&& other) noexcept;
  WholeFile& operator=(WholeFile&&) = delete;
  // Removes the file if it was not committed.
  ~WholeFile();

  int fd() const { return fd_.get(); }
  // Renames the file into place, over an existing regular file. Later writes to the fd go to the same file.
  absl::Status Commit();

 private:
  WholeFile(std::string path, std::string beside, UniqueFd fd);

  std::string path_;
  // Empty once the file is in place.
  std::string beside_;
  UniqueFd fd_;
};

// Creates, writes and commits a file in one call.
absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes, mode_t mode);

}  // namespace berth

#endif  // COMMON_OS_WHOLE_FILE_H_
