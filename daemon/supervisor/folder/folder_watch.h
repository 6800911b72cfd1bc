// FolderWatch: reports that the run folder may have changed. Watches the folder's names and the content of some files
// by inotify, and the kernel's mount table for a file system mounted over the folder.

#ifndef DAEMON_SUPERVISOR_FOLDER_FOLDER_WATCH_H_
#define DAEMON_SUPERVISOR_FOLDER_FOLDER_WATCH_H_

#include <string>
#include <vector>

#include "common/os/unique_fd.h"
#include "daemon/supervisor/processes/restart_policy.h"

namespace berth {

// Thread-compatible.
class FolderWatch {
 public:
  // `files`: names of the files whose content is watched. If the kernel provides neither watch, due() alone schedules
  // the checks.
  FolderWatch(std::string path, std::vector<std::string> files);

  // Fds to poll for POLLIN (folder) and POLLPRI (mounts); -1 for none.
  int folder_fd() const { return notices_.get(); }
  int mounts_fd() const { return mounts_.get(); }

  // Begins a check of the folder: later changes are reported. Call again after the folder itself was recreated.
  void BeginLook();
  // Ends a check and schedules the next one, should no change be reported: soon if this check left a fault to repair.
  void EndLook(MonotonicTime now, bool whole);
  // Schedules a check as soon as possible.
  void LookNow() { due_ = MonotonicTime(); }
  MonotonicTime due() const { return due_; }

 private:
  const std::string path_;
  const std::vector<std::string> files_;
  UniqueFd notices_;
  UniqueFd mounts_;
  // The inotify watch; -1 for none.
  int watched_ = -1;
  MonotonicTime due_;
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_FOLDER_FOLDER_WATCH_H_
