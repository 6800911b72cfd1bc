#include "daemon/supervisor/processes/cgroups.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"

namespace berth {
namespace {

constexpr char kSupervisor[] = "/vault";
constexpr char kBroker[] = "/broker";
constexpr char kProcesses[] = "/cgroup.procs";
// Limit of passes over the processes to move: a process may fork during a pass, and the next pass finds the child.
constexpr int kMoves = 10;

std::string Read(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char bytes[4096];
  for (ssize_t got; file && (got = ::read(file.get(), bytes, sizeof(bytes))) > 0;) {
    text.append(bytes, static_cast<size_t>(got));
  }
  return text;
}

absl::Status Write(const std::string& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || ::write(file.get(), text.data(), text.size()) < 0) return OsError(absl::StrCat("write ", path), errno);
  return absl::OkStatus();
}

// Returns whether systemd has marked the cgroup as delegated to its service.
bool IsDelegated(const std::string& folder) {
  char value = 0;
  return ::getxattr(folder.c_str(), "user.delegate", &value, 1) == 1 && value == '1';
}

// Returns the mount point of the unified hierarchy; empty if it is not mounted.
std::string FindMount() {
  for (const char* const path : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    struct statfs info;
    if (::statfs(path, &info) == 0 && info.f_type == CGROUP2_SUPER_MAGIC) return path;
  }
  return "";
}

std::vector<std::string> LinesOf(const std::string& path) {
  return absl::StrSplit(Read(path), '\n', absl::SkipEmpty());
}

}  // namespace

std::optional<std::string> Cgroups::Find() {
  const std::string mount = FindMount();
  return mount.empty() ? std::nullopt : FindIn(Read("/proc/self/cgroup"), mount, IsDelegated);
}

std::optional<std::string> Cgroups::FindIn(const std::string& self, const std::string& mount,
                                           bool (*is_delegated)(const std::string& folder)) {
  for (absl::string_view line : absl::StrSplit(self, '\n')) {
    // The line of the unified hierarchy. A path with ".." is outside of this cgroup namespace.
    if (!absl::ConsumePrefix(&line, "0::/") || absl::StrContains(line, "..")) continue;
    const std::string own = absl::StrCat(mount, "/", line);
    if (is_delegated(own)) return own;
    // An earlier supervisor has divided the service's cgroup.
    for (const char* const name : {kSupervisor, kBroker}) {
      const std::string above(absl::StripSuffix(own, name));
      if (above != own && is_delegated(above)) return above;
    }
  }
  return std::nullopt;
}

absl::StatusOr<Cgroups> Cgroups::Divide(const std::string& folder) {
  for (const char* const name : {kSupervisor, kBroker}) {
    const std::string path = folder + name;
    if (::mkdir(path.c_str(), 0755) < 0 && errno != EEXIST) return OsError(absl::StrCat("mkdir ", path), errno);
  }
  const std::string supervisor = absl::StrCat(folder, kSupervisor, kProcesses);
  BERTH_RETURN_IF_ERROR(Write(supervisor, "0"));
  for (int i = 0; i < kMoves; ++i) {
    const std::vector<std::string> left = LinesOf(folder + kProcesses);
    if (left.empty()) break;
    // A process that has ended meanwhile cannot be moved.
    for (const std::string& pid : left) Write(supervisor, pid).IgnoreError();
  }
  const std::vector<std::string> controllers =
      absl::StrSplit(absl::StripSuffix(Read(folder + "/cgroup.controllers"), "\n"), ' ');
  const bool bounds = std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
  if (bounds) BERTH_RETURN_IF_ERROR(Write(folder + "/cgroup.subtree_control", "+memory"));
  return Cgroups(folder, bounds);
}

absl::Status Cgroups::PlaceBroker(int pid) const {
  return Write(absl::StrCat(folder_, kBroker, kProcesses), absl::StrCat(pid));
}

absl::Status Cgroups::BoundBroker(uint64_t bound) const {
  if (!bounds_) return absl::FailedPreconditionError("the cgroup has no memory controller");
  return Write(absl::StrCat(folder_, kBroker, "/memory.max"), absl::StrCat(KernelBound(bound)));
}

}  // namespace berth
