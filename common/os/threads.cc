#include "common/os/threads.h"

#include <dirent.h>
#include <errno.h>

#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"

namespace berth {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

}  // namespace

absl::StatusOr<std::vector<int32_t>> OtherThreadsOf(int32_t pid) {
  std::vector<int32_t> threads;
  const std::unique_ptr<DIR, CloseDir> tasks(::opendir(absl::StrCat("/proc/", pid, "/task").c_str()));
  while (true) {
    errno = 0;
    const dirent* const entry = tasks == nullptr ? nullptr : ::readdir(tasks.get());
    if (entry == nullptr) {
      const int error = errno;
      if (error == EMFILE || error == ENFILE || error == ENOMEM) {
        return OsError(absl::StrCat("/proc/", pid, "/task"), error);
      }
      return threads;
    }
    int32_t thread;
    if (absl::SimpleAtoi(entry->d_name, &thread) && thread != pid) threads.push_back(thread);
  }
}

}  // namespace berth
