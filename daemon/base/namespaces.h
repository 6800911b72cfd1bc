// Identifies the container and the user behind another process by its namespaces (docs/design/0033).
//
// Every function takes the process's pidfd and its pid in this PID namespace, or 0 if it has none here. A function uses
// the pid only while the pidfd confirms that it still names the process.
//
// Every function may return kResourceExhausted for want of fds or memory, whatever the process: retry.

#ifndef DAEMON_BASE_NAMESPACES_H_
#define DAEMON_BASE_NAMESPACES_H_

#include <linux/nsfs.h>
#include <sys/ioctl.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace berth {

namespace namespaces_internal {

// Ioctls of pidfds, from Linux 6.11 on.
inline constexpr uint32_t kPidfdGetMount = _IO(0xFF, 3);
inline constexpr uint32_t kPidfdGetPid = _IO(0xFF, 5);
inline constexpr uint32_t kPidfdGetUser = _IO(0xFF, 9);
// Ioctls that return a namespace id that the kernel never reuses within a boot: mount namespaces from 6.11 on, all
// kinds from 6.18 on.
inline constexpr uint32_t kGetMountId = _IOR(NSIO, 0x5, uint64_t);
inline constexpr uint32_t kGetId = _IOR(NSIO, 0xd, uint64_t);

}  // namespace namespaces_internal

// The ioctl requests that these functions make, for a system call filter.
inline constexpr uint32_t kNamespaceRequests[] = {
    namespaces_internal::kPidfdGetMount,
    namespaces_internal::kPidfdGetPid,
    namespaces_internal::kPidfdGetUser,
    namespaces_internal::kGetMountId,
    namespaces_internal::kGetId,
    NS_GET_USERNS,
    NS_GET_PARENT,
    NS_GET_OWNER_UID,
};

// Names the container of the process: empty if the process is in this process's PID namespace. Else the name is the
// cgroup path if the path identifies one container, or else a namespace id that the kernel never reuses within a boot.
// Two containers never share a name.
// Errors: kNotFound if the process has ended; kUnimplemented if nothing distinguishes its container from another.
absl::StatusOr<std::string> ContainerOf(int pidfd, int32_t pid);

// Returns the user that created the process's user namespaces: the outermost non-root owner below this process's own
// user namespace. Returns `uid`, the process's own, if there is none.
// Errors: kNotFound if the process has ended; kPermissionDenied if its user namespace differs and cannot be opened.
absl::StatusOr<uint32_t> UserBehind(int pidfd, int32_t pid, uint32_t uid);

// Names the innermost PID namespace around the process that root created; empty if that is this process's own, or is
// not visible. A user cannot choose it. The number is that of /proc/PID/ns/pid, and may be reused.
absl::StatusOr<std::string> RootMadeContainerOf(int pidfd, int32_t pid);

// Returns OK, or why this process cannot distinguish the containers of some processes.
absl::Status CheckDistinguishesContainers();

// Returns the path in the text of a /proc/PID/cgroup if it names a cgroup of exactly one container, or nothing.
std::string DistinguishingCgroup(const std::string& text);

}  // namespace berth

#endif  // DAEMON_BASE_NAMESPACES_H_
