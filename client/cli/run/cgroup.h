// Cgroup: a control group of its own for one command. It shows when the command's last descendant has ended, even if
// descendants closed inherited fds or detached from their session.

#ifndef CLIENT_CLI_RUN_CGROUP_H_
#define CLIENT_CLI_RUN_CGROUP_H_

#include <sys/types.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth::cli {

// Move-only. One caller at a time, except for Signal().
class Cgroup {
 public:
  // Makes a control group below the group of this process (cgroup v2).
  // Errors: kFailedPrecondition without cgroup v2; kPermissionDenied if this user may not create a group below its own.
  static absl::StatusOr<Cgroup> Make();

  Cgroup(Cgroup&&) = default;
  Cgroup& operator=(Cgroup&&) = delete;
  // Removes the group and the groups below it, unless they contain processes.
  ~Cgroup();

  // The group's folder. A process joins the group by writing to "cgroup.procs" in it.
  int fd() const { return folder_.get(); }
  const std::string& path() const { return path_; }

  // Waits until neither the group nor a group below it contains a process.
  void AwaitEmpty() const;
  // Sends a signal to every process in the group and in the groups below it. With `of_other_groups`, only to processes
  // outside this process's process group. Thread-safe.
  void Signal(int number, bool of_other_groups = false) const;

 private:
  // Returns the folders of the group and of the groups below it, each before those below it.
  std::vector<std::string> Groups() const;
  // The processes of these groups that this PID namespace shows.
  std::set<pid_t> Processes() const;

  Cgroup(std::string path, UniqueFd folder, UniqueFd events)
      : path_(std::move(path)), folder_(std::move(folder)), events_(std::move(events)) {}

  // Empty after a move.
  std::string path_;
  UniqueFd folder_;
  UniqueFd events_;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_CGROUP_H_
