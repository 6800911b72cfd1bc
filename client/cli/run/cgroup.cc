#include "client/cli/run/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/os_error.h"
#include "common/secret.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// Returns where cgroup v2 is mounted, alone or next to v1.
absl::StatusOr<std::string> MountPoint() {
  std::ifstream file("/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw": the file system type follows the dash.
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (absl::StrContains(line, " - cgroup2 ") && words.size() > 4) return words[4];
  }
  return absl::FailedPreconditionError("no cgroup v2 is mounted on this system");
}

// Returns the control group of this process, relative to the mount point: "/user.slice/…".
absl::StatusOr<std::string> OwnGroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "0::")) return std::string(absl::StripSuffix(rest, "/"));
  }
  return absl::FailedPreconditionError("this process is in no cgroup v2");
}

std::string ReadFrom(int fd) {
  std::string text;
  char bytes[4096];
  for (ssize_t got; (got = ::pread(fd, bytes, sizeof(bytes), static_cast<off_t>(text.size()))) > 0;) {
    text.append(bytes, static_cast<size_t>(got));
  }
  return text;
}

}  // namespace

absl::StatusOr<Cgroup> Cgroup::Make() {
  BERTH_ASSIGN_OR_RETURN(const std::string mount, MountPoint());
  BERTH_ASSIGN_OR_RETURN(const std::string own, OwnGroup());
  const std::string path = absl::StrCat(mount, own, "/berth-run-", ::getpid(), "-", absl::Hex(RandomId()));
  if (::mkdir(path.c_str(), 0755) < 0) return OsError(absl::StrCat("cannot create a cgroup: ", path), errno);
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  UniqueFd events(::open(absl::StrCat(path, "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  const int error = errno;
  if (!folder || !events) {
    ::rmdir(path.c_str());
    return OsError(path, error);
  }
  return Cgroup(path, std::move(folder), std::move(events));
}

Cgroup::~Cgroup() {
  if (folder_) ::rmdir(path_.c_str());
}

void Cgroup::AwaitEmpty() const {
  // Read before poll(): poll() reports changes since the last read.
  while (absl::StrContains(ReadFrom(events_.get()), "populated 1")) {
    pollfd changed = {.fd = events_.get(), .events = POLLPRI};
    ::poll(&changed, 1, -1);
  }
}

std::set<pid_t> Cgroup::Processes() const {
  std::set<pid_t> pids;
  const UniqueFd processes(::openat(folder_.get(), "cgroup.procs", O_RDONLY | O_CLOEXEC));
  if (!processes) return pids;
  const std::string text = ReadFrom(processes.get());
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    pid_t pid = 0;
    // 0 is a process that this PID namespace does not show.
    if (absl::SimpleAtoi(line, &pid) && pid > 0) pids.insert(pid);
  }
  return pids;
}

void Cgroup::Signal(int number, bool of_other_groups) const {
  if (number == SIGKILL && !of_other_groups) {
    // Linux 5.14: kills all processes at once, including those forked meanwhile.
    const UniqueFd kill(::openat(folder_.get(), "cgroup.kill", O_WRONLY | O_CLOEXEC));
    if (kill && ::write(kill.get(), "1", 1) == 1) return;
  }
  std::vector<std::pair<pid_t, UniqueFd>> pidfds;
  for (const pid_t pid : Processes()) {
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (pidfd) pidfds.emplace_back(pid, std::move(pidfd));
  }
  // A pid may belong to another process by the time its pidfd is opened: that process is not in the group.
  const std::set<pid_t> members = Processes();
  for (const auto& [pid, pidfd] : pidfds) {
    if (of_other_groups && ::getpgid(pid) == ::getpgrp()) continue;
    if (members.contains(pid)) ::syscall(SYS_pidfd_send_signal, pidfd.get(), number, nullptr, 0);
  }
}

}  // namespace berth::cli
