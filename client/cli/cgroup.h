// Cgroup: a control group of one command's own, so that it is known when the last process that came of it has ended,
// whatever those closed or detached themselves from.

#ifndef CLIENT_CLI_CGROUP_H_
#define CLIENT_CLI_CGROUP_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace berth::cli {

// Move-only. One caller at a time, but for Signal().
class Cgroup {
 public:
  // Makes one below the group of this process (cgroup v2).
  // Errors: kFailedPrecondition where there is no cgroup v2; kPermissionDenied where this user may make none below
  // its own.
  static absl::StatusOr<Cgroup> Make();

  Cgroup(Cgroup&&) = default;
  Cgroup& operator=(Cgroup&&) = delete;
  // Removes the group, unless processes are in it.
  ~Cgroup();

  // The group's folder, for clone3()'s CLONE_INTO_CGROUP.
  int fd() const { return folder_.get(); }
  const std::string& path() const { return path_; }

  // Waits until no process is in it.
  void AwaitEmpty() const;
  // Sends a signal to every process that is in it. Thread-safe.
  void Signal(int number) const;

 private:
  Cgroup(std::string path, UniqueFd folder, UniqueFd events)
      : path_(std::move(path)), folder_(std::move(folder)), events_(std::move(events)) {}

  // Empty once it was moved from.
  std::string path_;
  UniqueFd folder_;
  UniqueFd events_;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_CGROUP_H_
