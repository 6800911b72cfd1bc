#include "daemon/vault/cgroups.h"

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
#include "common/os_error.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace berth {
namespace {

constexpr char kVault[] = "/vault";
constexpr char kBroker[] = "/broker";
constexpr char kProcesses[] = "/cgroup.procs";
// A process that starts another while all are moved; another time finds that one.
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

// What systemd says of a cgroup that it leaves to its service.
bool IsDelegated(const std::string& folder) {
  char value = 0;
  return ::getxattr(folder.c_str(), "user.delegate", &value, 1) == 1 && value == '1';
}

// Where the unified hierarchy is; empty where it is not.
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
    // The one of no numbered hierarchy. Who is outside of what can be seen has dots in it.
    if (!absl::ConsumePrefix(&line, "0::/") || absl::StrContains(line, "..")) continue;
    const std::string own = absl::StrCat(mount, "/", line);
    if (is_delegated(own)) return own;
    // An earlier vault has divided it.
    for (const char* const name : {kVault, kBroker}) {
      const std::string above(absl::StripSuffix(own, name));
      if (above != own && is_delegated(above)) return above;
    }
  }
  return std::nullopt;
}

absl::StatusOr<Cgroups> Cgroups::Divide(const std::string& folder) {
  for (const char* const name : {kVault, kBroker}) {
    const std::string path = folder + name;
    if (::mkdir(path.c_str(), 0755) < 0 && errno != EEXIST) return OsError(absl::StrCat("mkdir ", path), errno);
  }
  const std::string vault = absl::StrCat(folder, kVault, kProcesses);
  BERTH_RETURN_IF_ERROR(Write(vault, "0"));
  for (int i = 0; i < kMoves; ++i) {
    const std::vector<std::string> left = LinesOf(folder + kProcesses);
    if (left.empty()) break;
    // One that has ended meanwhile is not to be moved.
    for (const std::string& pid : left) Write(vault, pid).IgnoreError();
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
  if (!bounds_) return absl::FailedPreconditionError("there is no memory controller");
  return Write(absl::StrCat(folder_, kBroker, "/memory.max"), absl::StrCat(KernelBound(bound)));
}

}  // namespace berth
