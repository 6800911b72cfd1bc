#include "daemon/vault/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/fd_passing.h"
#include "common/named_memory.h"
#include "common/os_error.h"
#include "common/secret.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// Connections that wait while a broker is being started; the kernel caps it at net.core.somaxconn.
constexpr int kBacklog = 4096;
constexpr char kGroup[] = "berth";
constexpr char kBerthdSocket[] = "berthd.sock";
constexpr char kAdminSocket[] = "admin.sock";
constexpr char kAttachSocket[] = "attach.sock";
constexpr char kObserverSocket[] = "observer.sock";
constexpr char kAdminAttachSocket[] = "admin-attach.sock";
// A slash stands before the longest of them, and a zero after it.
static_assert(RunFolder::kMaxPathBytes + 1 + sizeof(kAdminAttachSocket) <= sizeof(sockaddr_un::sun_path));

// Who shares root's daemon; nothing where that group does not exist or this is not root.
std::optional<gid_t> SharedGroup() {
  return ::geteuid() == 0 ? FindGroup(kGroup) : std::nullopt;
}

absl::Status MakeFolder(const std::string& path, bool observers) {
  const bool root = ::geteuid() == 0;
  if (::mkdir(path.c_str(), 0700) < 0) {
    if (errno != EEXIST) return OsError(absl::StrCat("mkdir ", path), errno);
  } else if (root) {
    const std::optional<gid_t> group = SharedGroup();
    if (group.has_value() && ::chown(path.c_str(), 0, *group) < 0)
      return OsError(absl::StrCat("chown ", path), errno);
    if (::chmod(path.c_str(), observers ? 0751 : 0750) < 0) return OsError(absl::StrCat("chmod ", path), errno);
  }
  struct stat info;
  if (::lstat(path.c_str(), &info) < 0) return OsError(absl::StrCat("stat ", path), errno);
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a folder of uid ", ::geteuid()));
  }
  return absl::OkStatus();
}

// The pid that a daemon wrote into its lock file; "?" between its lock and its write.
std::string ReadPid(int fd) {
  char text[16];
  const ssize_t got = ::pread(fd, text, sizeof(text), 0);
  const std::string line(text, got > 0 ? static_cast<size_t>(got) : 0);
  return line.empty() ? "?" : line.substr(0, line.find('\n'));
}

// Whether `fd` is of the file that is there by now.
bool IsFileAt(int fd, const std::string& name) {
  struct stat mine;
  struct stat there;
  return ::fstat(fd, &mine) == 0 && ::lstat(name.c_str(), &there) == 0 && mine.st_dev == there.st_dev &&
         mine.st_ino == there.st_ino;
}

}  // namespace

std::optional<gid_t> FindGroup(const std::string& name) {
  const group* const entry = ::getgrnam(name.c_str());
  return entry == nullptr ? std::nullopt : std::optional<gid_t>(entry->gr_gid);
}

absl::StatusOr<RunFolder> RunFolder::Take(const std::string& path, bool observers, UniqueFd lock) {
  if (path.size() > kMaxPathBytes || path.empty() || path[0] != '/') {
    return absl::InvalidArgumentError(absl::StrCat("folder \"", path, "\": ", path.size(),
                                                   " bytes; it has to be an ", "absolute path of at most ",
                                                   kMaxPathBytes));
  }
  BERTH_RETURN_IF_ERROR(MakeFolder(path, observers));
  const std::string name = path + "/berthd.lock";
  if (!lock || !IsFileAt(lock.get(), name)) {
    lock.reset(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  }
  if (!lock) return OsError(absl::StrCat("open ", name), errno);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) < 0) {
    if (errno != EWOULDBLOCK) return OsError(absl::StrCat("flock ", name), errno);
    return absl::FailedPreconditionError(
        absl::StrCat("folder ", path, " is served by another berthd, pid ", ReadPid(lock.get())));
  }
  RunFolder folder(path, std::move(lock));
  BERTH_RETURN_IF_ERROR(folder.WritePid());
  BERTH_RETURN_IF_ERROR(folder.ReadOrDrawNode());
  // What an earlier daemon left that was killed.
  RemoveAllNamedMemory(path);
  return folder;
}

absl::StatusOr<RunFolder> RunFolder::Inherit(const std::string& path, UniqueFd lock) {
  RunFolder folder(path, std::move(lock));
  BERTH_RETURN_IF_ERROR(folder.WritePid());
  BERTH_RETURN_IF_ERROR(folder.ReadOrDrawNode());
  return folder;
}

void RunFolder::KeepSockets() {
  made_ = {kBerthdSocket, kAdminSocket, kAttachSocket, kObserverSocket, kAdminAttachSocket};
}

absl::Status RunFolder::WritePid() const {
  const std::string pid = absl::StrCat(::getpid(), "\n");
  // In this order whoever reads a line of it meanwhile reads a pid.
  if (::pwrite(lock_.get(), pid.data(), pid.size(), 0) < 0 ||
      ::ftruncate(lock_.get(), static_cast<off_t>(pid.size())) < 0) {
    return OsError(absl::StrCat("write ", PathOf("berthd.lock")), errno);
  }
  return absl::OkStatus();
}

RunFolder::~RunFolder() {
  for (const std::string& name : made_) ::unlink(PathOf(name).c_str());
  if (!made_.empty()) RemoveAllNamedMemory(path_);
}

absl::Status RunFolder::ReadOrDrawNode() {
  const std::string name = PathOf("node");
  const UniqueFd file(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return OsError(absl::StrCat("open ", name), errno);
  if (::pread(file.get(), &node_, sizeof(node_), 0) == sizeof(node_) && node_ != 0) return absl::OkStatus();
  node_ = RandomId();
  if (::pwrite(file.get(), &node_, sizeof(node_), 0) != sizeof(node_))
    return OsError(absl::StrCat("write ", name), errno);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RunFolder::Listening>> RunFolder::Listen(std::optional<gid_t> observers) {
  const std::optional<gid_t> shared = SharedGroup();
  BERTH_ASSIGN_OR_RETURN(UniqueFd berthd, ListenOn(kBerthdSocket, SOCK_STREAM, shared, /*group_may=*/true));
  BERTH_ASSIGN_OR_RETURN(UniqueFd admin, ListenOn(kAdminSocket, SOCK_STREAM, std::nullopt, /*group_may=*/false));
  BERTH_ASSIGN_OR_RETURN(UniqueFd attach, ListenOn(kAttachSocket, SOCK_SEQPACKET, shared, /*group_may=*/true));
  BERTH_ASSIGN_OR_RETURN(Listening observer, ListenForObservers(observers));
  BERTH_ASSIGN_OR_RETURN(Listening operators, ListenForOperators());
  std::vector<Listening> sockets;
  sockets.push_back({custody::Listener::kBerthd, std::move(berthd)});
  sockets.push_back({custody::Listener::kAdmin, std::move(admin)});
  sockets.push_back({custody::Listener::kAttach, std::move(attach)});
  sockets.push_back(std::move(observer));
  sockets.push_back(std::move(operators));
  return sockets;
}

absl::StatusOr<RunFolder::Listening> RunFolder::ListenForObservers(std::optional<gid_t> observers) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd socket,
                         ListenOn(kObserverSocket, SOCK_STREAM, observers, observers.has_value()));
  return Listening{custody::Listener::kObserver, std::move(socket)};
}

absl::StatusOr<RunFolder::Listening> RunFolder::ListenForOperators() {
  BERTH_ASSIGN_OR_RETURN(UniqueFd socket,
                         ListenOn(kAdminAttachSocket, SOCK_SEQPACKET, std::nullopt, /*group_may=*/false));
  return Listening{custody::Listener::kAdminAttach, std::move(socket)};
}

absl::StatusOr<UniqueFd> RunFolder::ListenOn(const std::string& name, int type, std::optional<gid_t> group,
                                             bool group_may) {
  const std::string path = PathOf(name);
  if (::unlink(path.c_str()) < 0 && errno != ENOENT) return OsError(absl::StrCat("unlink ", path), errno);
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return OsError("socket", errno);
  // No client has an fd to send. Closing one could wait for as long as the client likes; where the kernel lets them
  // come all the same, EventLoop::Close() takes them.
  RefuseFds(socket.get()).IgnoreError();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // Nobody but this user reaches the socket before its mode is what it shall be.
  const mode_t before = ::umask(0177);
  const absl::Cleanup restore = [before] { ::umask(before); };
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0) {
    return OsError(absl::StrCat("bind ", path), errno);
  }
  made_.push_back(name);
  if (group.has_value() && ::chown(path.c_str(), static_cast<uid_t>(-1), *group) < 0) {
    return OsError(absl::StrCat("chown ", path), errno);
  }
  if (::chmod(path.c_str(), group_may ? 0660 : 0600) < 0)
    return OsError(absl::StrCat("chmod ", path), errno);
  if (::listen(socket.get(), kBacklog) < 0) return OsError(absl::StrCat("listen ", path), errno);
  return socket;
}

}  // namespace berth
