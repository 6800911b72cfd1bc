#include "daemon/supervisor/folder/folder_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "daemon/supervisor/supervisor_log.h"

namespace berth {
namespace {

using std::chrono::seconds;

// Interval between checks. Only these checks notice a renamed ancestor.
constexpr seconds kPause(60);
// Interval while the folder cannot be repaired or is not watched.
constexpr seconds kShortPause(1);
constexpr uint32_t kEvents =
    IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
constexpr uint32_t kContentEvents = IN_MODIFY | IN_CLOSE_WRITE | IN_DONT_FOLLOW;

}  // namespace

FolderWatch::FolderWatch(std::string path, std::vector<std::string> files)
    : path_(std::move(path)),
      files_(std::move(files)),
      notices_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
      mounts_(::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC)) {
  if (notices_) return;
  Log("cannot watch folder %s: inotify_init1: %s; checking it every second", path_.c_str(), strerror(errno));
}

void FolderWatch::BeginLook() {
  if (!notices_) return;
  char events[4096];
  while (::read(notices_.get(), events, sizeof(events)) > 0) {
  }
  const int watched = ::inotify_add_watch(notices_.get(), path_.c_str(), kEvents);
  // The watch of a deleted folder is gone already.
  if (watched_ >= 0 && watched_ != watched) ::inotify_rm_watch(notices_.get(), watched_);
  watched_ = watched;
  // A file that is missing or replaced later causes an event of the folder, and its watch is added by the next check.
  for (const std::string& file : files_) {
    ::inotify_add_watch(notices_.get(), (path_ + "/" + file).c_str(), kContentEvents);
  }
}

void FolderWatch::EndLook(MonotonicTime now, bool whole) {
  due_ = now + (whole && watched_ >= 0 ? kPause : kShortPause);
}

}  // namespace berth
