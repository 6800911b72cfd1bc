#include "daemon/base/namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/os_error.h"
#include "common/os/proc_file.h"
#include "common/os/process.h"
#include "common/os/threads.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"

namespace berth {
namespace {

using namespaces_internal::kGetId;
using namespaces_internal::kGetMountId;
using namespaces_internal::kPidfdGetMount;
using namespaces_internal::kPidfdGetPid;
using namespaces_internal::kPidfdGetUser;

// The kernel's fixed inode numbers of the initial namespaces.
constexpr ino_t kFirstUserNamespace = 0xEFFFFFFD;
constexpr ino_t kFirstPidNamespace = 0xEFFFFFFC;

struct Kind {
  uint32_t request;
  const char* name;
};
constexpr Kind kMount = {kPidfdGetMount, "mnt"};
constexpr Kind kPid = {kPidfdGetPid, "pid"};
constexpr Kind kUser = {kPidfdGetUser, "user"};

ino_t InodeOf(const UniqueFd& ns) {
  struct stat info = {};
  return ::fstat(ns.get(), &info) == 0 ? info.st_ino : 0;
}

ino_t OwnInode(const char* name) {
  struct stat info = {};
  return ::stat(absl::StrCat("/proc/self/ns/", name).c_str(), &info) == 0 ? info.st_ino : 0;
}
// A process never changes its own PID namespace.
ino_t OwnPidNamespace() {
  static const ino_t inode = OwnInode("pid");
  return inode;
}
ino_t OwnUserNamespace() {
  static const ino_t inode = OwnInode("user");
  return inode;
}

// Returns the process's pids in the PID namespaces from this one inwards, as its pidfd reports them; empty if the
// process is not below this namespace, or has ended. Errors: those of ReadProcFile().
absl::StatusOr<std::vector<int32_t>> NumbersOf(int pidfd) {
  std::vector<int32_t> numbers;
  BERTH_ASSIGN_OR_RETURN(const std::string info, ReadProcFile(absl::StrCat("/proc/self/fdinfo/", pidfd)));
  for (absl::string_view line : absl::StrSplit(info, '\n')) {
    if (!absl::ConsumePrefix(&line, "NSpid:")) continue;
    for (const absl::string_view field : absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty())) {
      int32_t number;
      if (absl::SimpleAtoi(field, &number) && number > 0) numbers.push_back(number);
    }
  }
  return numbers;
}

// Opens the namespace of a process whose main thread has ended, by another thread: all threads of a process share their
// user and PID namespaces. Errors: as OpenNamespace().
absl::StatusOr<UniqueFd> OpenNamespaceOfThread(int pidfd, int32_t pid, const Kind& kind) {
  BERTH_ASSIGN_OR_RETURN(const std::vector<int32_t> threads, OtherThreadsOf(pid));
  UniqueFd ns;
  int error = ENOENT;
  for (size_t i = 0; i < threads.size() && !ns; ++i) {
    const std::string path = absl::StrCat("/proc/", pid, "/task/", threads[i], "/ns/", kind.name);
    ns.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    // A thread that ends meanwhile has none.
    if (!ns && errno != ENOENT && errno != ESRCH) error = errno;
  }
  if (IsGone(pidfd) || (!ns && error == ENOENT)) return absl::NotFoundError("the process has ended");
  if (!ns) return OsError(absl::StrCat("open /proc/PID/task/TID/ns/", kind.name), error);
  return ns;
}

// Errors: kNotFound if the process has ended, kPermissionDenied, kResourceExhausted for want of fds or memory,
// kUnimplemented if the kernel lacks the request and the process has no pid here.
absl::StatusOr<UniqueFd> OpenNamespace(int pidfd, int32_t pid, const Kind& kind) {
  UniqueFd ns(::ioctl(pidfd, kind.request, 0));
  if (ns) return ns;
  const bool unknown = errno == ENOTTY || errno == EINVAL || errno == EOPNOTSUPP;
  if (!unknown && errno != ESRCH) return OsError("ioctl(pidfd, namespace)", errno);
  if (unknown && pid <= 0)
    return absl::UnimplementedError("Linux shows the namespaces of such a process only from 6.11");
  if (unknown) ns.reset(::open(absl::StrCat("/proc/", pid, "/ns/", kind.name).c_str(), O_RDONLY | O_CLOEXEC));
  const int error = unknown ? errno : ESRCH;
  if (IsGone(pidfd) || pid <= 0) return absl::NotFoundError("the process has ended");
  if (!ns && (error == ESRCH || error == ENOENT)) return OpenNamespaceOfThread(pidfd, pid, kind);
  if (!ns) return OsError(absl::StrCat("open /proc/PID/ns/", kind.name), error);
  return ns;
}

// Returns a name that no other namespace of this boot has or had. Errors: those of OpenNamespace().
absl::StatusOr<std::string> UniqueNameOf(int pidfd, int32_t pid) {
  const absl::StatusOr<UniqueFd> of_pids = OpenNamespace(pidfd, pid, kPid);
  if (!of_pids.ok()) return of_pids.status();
  uint64_t id = 0;
  if (::ioctl(of_pids->get(), kGetId, &id) == 0) return absl::StrCat("pidns:", id);
  const absl::StatusOr<UniqueFd> of_mounts = OpenNamespace(pidfd, pid, kMount);
  if (!of_mounts.ok()) return of_mounts.status();
  if (::ioctl(of_mounts->get(), kGetMountId, &id) == 0) return absl::StrCat("mntns:", id);
  return absl::UnimplementedError("Linux numbers namespaces only from 6.11");
}

// Returns the outermost non-root owner of the user namespaces from `ns` out to this process's own.
absl::StatusOr<std::optional<uint32_t>> OwnerOf(UniqueFd ns) {
  std::optional<uint32_t> user;
  while (InodeOf(ns) != OwnUserNamespace()) {
    uid_t owner = 0;
    if (::ioctl(ns.get(), NS_GET_OWNER_UID, &owner) < 0) return OsError("ioctl(NS_GET_OWNER_UID)", errno);
    if (owner != 0 && owner != kOverflowUid) user = owner;
    UniqueFd parent(::ioctl(ns.get(), NS_GET_PARENT));
    // The namespace contains this process's own or is a sibling: its creator has no uid here.
    if (!parent && errno == EPERM) break;
    if (!parent) return OsError("ioctl(NS_GET_PARENT)", errno);
    ns = std::move(parent);
  }
  return user;
}

}  // namespace

std::string DistinguishingCgroup(const std::string& text) {
  const absl::string_view line = absl::StripSuffix(text, "\n");
  // With several hierarchies, containers have cgroups in the others, and may share a cgroup in this hierarchy.
  absl::string_view path = line;
  if (absl::StrContains(line, '\n') || !absl::ConsumePrefix(&path, "0::")) return "";
  // The process was never placed into a cgroup.
  return path == "/" ? "" : std::string(path);
}

absl::StatusOr<std::string> ContainerOf(int pidfd, int32_t pid) {
  BERTH_ASSIGN_OR_RETURN(const std::vector<int32_t> numbers, NumbersOf(pidfd));
  // Otherwise the pid is not valid in this process's /proc.
  const bool known_here = pid > 0 && !numbers.empty() && numbers.front() == pid;
  if (known_here && numbers.size() == 1) return "";
  if (known_here) {
    BERTH_ASSIGN_OR_RETURN(const std::string cgroup, ReadProcFile(absl::StrCat("/proc/", pid, "/cgroup")));
    std::string path = DistinguishingCgroup(cgroup);
    if (IsGone(pidfd)) return absl::NotFoundError("the process has ended");
    if (!path.empty()) return path;
  }
  absl::StatusOr<std::string> name = UniqueNameOf(pidfd, known_here ? pid : 0);
  if (!name.ok() && IsGone(pidfd)) return absl::NotFoundError("the process has ended");
  if (name.ok() || absl::IsNotFound(name.status()) || absl::IsResourceExhausted(name.status())) return name;
  return absl::UnimplementedError(absl::StrCat("its container cannot be identified: ", name.status().message()));
}

absl::StatusOr<uint32_t> UserBehind(int pidfd, int32_t pid, uint32_t uid) {
  absl::StatusOr<UniqueFd> ns = OpenNamespace(pidfd, pid, kUser);
  if (ns.ok()) {
    const absl::StatusOr<std::optional<uint32_t>> owner = OwnerOf(*std::move(ns));
    if (!owner.ok()) return owner.status();
    return owner->value_or(uid);
  }
  if (absl::IsNotFound(ns.status()) || absl::IsResourceExhausted(ns.status())) return ns.status();
  // In a user namespace other than the initial one, all uids belong to its creator: no uid is another user's.
  if (OwnUserNamespace() != kFirstUserNamespace) return uid;
  // A map is readable even if the namespace is not, such as for a process that this process may not trace.
  std::string map;
  if (pid > 0) {
    BERTH_ASSIGN_OR_RETURN(map, ReadProcFile(absl::StrCat("/proc/", pid, "/uid_map")));
  }
  BERTH_ASSIGN_OR_RETURN(const std::string own_map, ReadProcFile("/proc/self/uid_map"));
  if (IsGone(pidfd)) return absl::NotFoundError("the process has ended");
  if (!map.empty() && map == own_map) return uid;
  return absl::PermissionDeniedError(absl::StrCat("its user namespace cannot be read: ", ns.status().message()));
}

absl::StatusOr<std::string> RootMadeContainerOf(int pidfd, int32_t pid) {
  const auto unseen = [](const absl::Status& why) -> absl::StatusOr<std::string> {
    if (absl::IsResourceExhausted(why)) return why;
    return "";
  };
  absl::StatusOr<UniqueFd> opened = OpenNamespace(pidfd, pid, kPid);
  if (!opened.ok()) return unseen(opened.status());
  UniqueFd ns = *std::move(opened);
  while (InodeOf(ns) != OwnPidNamespace()) {
    UniqueFd users(::ioctl(ns.get(), NS_GET_USERNS));
    if (!users && errno != EPERM) return unseen(OsError("ioctl(NS_GET_USERNS)", errno));
    // If the user namespace is not below this process's own, the creator of the own namespace owns it as well.
    const auto owner = users ? OwnerOf(std::move(users)) : std::optional<uint32_t>();
    if (!owner.ok()) return unseen(owner.status());
    if (!owner->has_value()) return absl::StrCat("pid:", InodeOf(ns));
    UniqueFd parent(::ioctl(ns.get(), NS_GET_PARENT));
    if (!parent) return unseen(OsError("ioctl(NS_GET_PARENT)", errno));
    ns = std::move(parent);
  }
  return "";
}

absl::Status CheckDistinguishesContainers() {
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self) return OsError("pidfd_open", errno);
  const absl::Status unique = UniqueNameOf(self.get(), ::getpid()).status();
  const bool sees_all = OwnPidNamespace() == kFirstPidNamespace;
  // In a unified hierarchy, and with a pid here for every process, the cgroup path identifies the container.
  BERTH_ASSIGN_OR_RETURN(const std::string cgroup, ReadProcFile("/proc/self/cgroup"));
  const bool unified = !absl::StrContains(absl::StripSuffix(cgroup, "\n"), '\n');
  if (unique.ok() || (sees_all && unified)) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(unique.message(), sees_all ? "; and the cgroups here have several hierarchies"
                                              : "; and this process is in a PID namespace of its own"));
}

}  // namespace berth
