#include "daemon/supervisor/folder/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/os/fd_passing.h"
#include "common/os/named_memory.h"
#include "common/os/os_error.h"
#include "common/os/whole_file.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "daemon/base/private_folder.h"
#include "daemon/ledger/ledger_file.h"
#include "daemon/supervisor/fd_store/node_record.h"
#include "daemon/supervisor/folder/folder_claim.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {
namespace {

// Limit of connections that wait while a broker is being started; the kernel caps it at net.core.somaxconn.
constexpr int kBacklog = 4096;

// Groups that may connect beside this user.
enum class Others { kNone, kGroup, kObservers };
struct Socket {
  fd_store::Listener listener;
  const char* name;
  int type;
  Others others;
};
constexpr Socket kSockets[] = {
    {fd_store::Listener::kBerthd, "berthd.sock", SOCK_STREAM, Others::kGroup},
    {fd_store::Listener::kAdmin, "admin.sock", SOCK_STREAM, Others::kNone},
    {fd_store::Listener::kAttach, "attach.sock", SOCK_SEQPACKET, Others::kGroup},
    {fd_store::Listener::kObserver, "observer.sock", SOCK_STREAM, Others::kObservers},
    {fd_store::Listener::kAdminAttach, "admin-attach.sock", SOCK_SEQPACKET, Others::kNone},
};
// A slash precedes the longest name, and a zero follows it.
static_assert(RunFolder::kMaxPathBytes + 1 + sizeof("admin-attach.sock") <= sizeof(sockaddr_un::sun_path));

const Socket& SocketOf(fd_store::Listener listener) {
  return *std::find_if(std::begin(kSockets), std::end(kSockets),
                       [listener](const Socket& socket) { return socket.listener == listener; });
}

// Gives the file to the group, which then may do what its mode says. A user namespace that does not map the group knows
// none of its members either: the file stays with the daemon's own group.
absl::Status GiveToGroup(const std::string& path, uid_t owner, gid_t group) {
  if (::chown(path.c_str(), owner, group) == 0 || errno == EINVAL) return absl::OkStatus();
  return OsError(absl::StrCat("chown ", path, " to group ", group), errno);
}

absl::Status MakeFolder(const std::string& path, FolderGroups groups) {
  if (::mkdir(path.c_str(), 0700) < 0) {
    if (errno != EEXIST) return OsError(absl::StrCat("mkdir ", path), errno);
  } else if (::geteuid() == 0) {
    if (groups.clients.has_value()) {
      if (absl::Status given = GiveToGroup(path, 0, *groups.clients); !given.ok()) return given;
    }
    if (::chmod(path.c_str(), groups.observers.has_value() ? 0751 : 0750) < 0)
      return OsError(absl::StrCat("chmod ", path), errno);
  }
  struct stat info;
  if (::lstat(path.c_str(), &info) < 0) return OsError(absl::StrCat("stat ", path), errno);
  // A link could be pointed at another folder while the daemon serves.
  if (S_ISLNK(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("folder ", path, " is a symbolic link; name its target"));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a folder of uid ", ::geteuid()));
  }
  return absl::OkStatus();
}

// Checks that only this user can write to the folder, and made the files in it that a daemon trusts.
absl::Status CheckTrusted(const std::string& path) {
  BERTH_RETURN_IF_ERROR(CheckPrivate(path));
  for (const char* const name : {RunFolder::kLock, RunFolder::kNode, RunFolder::kLedger, NodeRecord::kName}) {
    BERTH_RETURN_IF_ERROR(CheckOwner(absl::StrCat(path, "/", name)));
  }
  return absl::OkStatus();
}

// Returns the pid that a daemon wrote into its lock file; "?" between its lock and its write.
std::string ReadPid(int fd) {
  char text[16];
  const ssize_t got = ::pread(fd, text, sizeof(text), 0);
  const std::string line(text, got > 0 ? static_cast<size_t>(got) : 0);
  return line.empty() ? "?" : line.substr(0, line.find('\n'));
}

std::string ReadPid(const std::string& name) {
  const UniqueFd lock(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return ReadPid(lock.get());
}

// Returns whether `fd` refers to the file that now has that name.
bool IsFileAt(int fd, const std::string& name) {
  struct stat mine;
  struct stat there;
  return ::fstat(fd, &mine) == 0 && ::lstat(name.c_str(), &there) == 0 && mine.st_dev == there.st_dev &&
         mine.st_ino == there.st_ino;
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

// Returns whether a process has the socket at `path` open and listens on it.
bool IsListenedOn(const std::string& path, int type) {
  const UniqueFd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = AddressOf(path);
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return true;
  return errno != ECONNREFUSED && errno != ENOENT;
}

absl::Status ServedByAnother(const std::string& path, const std::string& pid) {
  return absl::FailedPreconditionError(absl::StrCat("folder ", path, " is served by another berthd, pid ", pid));
}

absl::Status NodeServedByAnother(const std::string& path, const std::string& pid) {
  return absl::FailedPreconditionError(absl::StrCat(
      "folder ", path, " has the node id of a node that is served by another berthd, pid ", pid,
      ", at another path: the folder was moved, copied or mounted; stop that daemon first, or delete the files ",
      RunFolder::kNode, ", ", NodeRecord::kName, " and ", RunFolder::kLedger, " of a copy to serve it as a new node"));
}

absl::Status Lock(int fd, const std::string& path) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return OsError(absl::StrCat("flock ", path, "/", RunFolder::kLock), errno);
  return ServedByAnother(path, ReadPid(fd));
}

// Logs that only the lock excludes a second daemon.
void LogUnclaimed(const std::string& path, const absl::Status& why) {
  Log("folder %s: only %s excludes a second daemon, and only until it is deleted: %s", path.c_str(), RunFolder::kLock,
      std::string(why.message()).c_str());
}

}  // namespace

std::optional<gid_t> FindGroup(const std::string& name) {
  if (const group* const entry = ::getgrnam(name.c_str())) return entry->gr_gid;
  gid_t number;
  return absl::SimpleAtoi(name, &number) ? std::optional<gid_t>(number) : std::nullopt;
}

absl::StatusOr<RunFolder> RunFolder::Take(const std::string& path, FolderGroups groups, UniqueFd lock) {
  if (path.size() > kMaxPathBytes || path.empty() || path[0] != '/') {
    return absl::InvalidArgumentError(absl::StrCat("folder \"", path, "\": ", path.size(),
                                                   " bytes; expected an absolute path of at most ", kMaxPathBytes,
                                                   "; choose a folder with a shorter path"));
  }
  const std::string name = absl::StrCat(path, "/", kLock);
  // Checked before the folder is created: a folder that was deleted under a running daemon contains nothing to find.
  if (absl::IsFailedPrecondition(CheckUnclaimed(path))) return ServedByAnother(path, ReadPid(name));
  BERTH_RETURN_IF_ERROR(CheckAbove(path));
  BERTH_RETURN_IF_ERROR(MakeFolder(path, groups));
  BERTH_RETURN_IF_ERROR(CheckTrusted(path));
  if (!lock || !IsFileAt(lock.get(), name)) {
    lock.reset(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  }
  if (!lock) return OsError(absl::StrCat("open ", name), errno);
  BERTH_RETURN_IF_ERROR(Lock(lock.get(), path));
  RunFolder folder(path, std::move(lock));
  // If two daemons start at once, the lock lets only one of them get here.
  absl::StatusOr<UniqueFd> claim = ClaimFolder(path);
  if (absl::IsFailedPrecondition(claim.status())) return ServedByAnother(path, ReadPid(name));
  if (absl::IsUnavailable(claim.status())) {
    LogUnclaimed(path, claim.status());
  } else {
    BERTH_ASSIGN_OR_RETURN(folder.claim_, std::move(claim));
  }
  folder.folder_ = IdOf(path);
  // A refused daemon changes neither the node id nor the pid in the folder.
  BERTH_RETURN_IF_ERROR(folder.FindOrDrawNode());
  BERTH_RETURN_IF_ERROR(folder.WritePid(folder.lock_.get()));
  // Remains of an earlier daemon that was killed.
  RemoveAllNamedMemory(path);
  return folder;
}

absl::StatusOr<RunFolder> RunFolder::Inherit(const std::string& path, UniqueFd lock, UniqueFd claim,
                                             uint64_t node) {
  RunFolder folder(path, std::move(lock));
  folder.claim_ = std::move(claim);
  folder.node_ = node;
  if (!folder.claim_) {
    // Leases exist: another daemon's claim is no reason to end them.
    absl::StatusOr<UniqueFd> made = ClaimFolder(path);
    if (made.ok()) folder.claim_ = *std::move(made);
    if (!made.ok()) LogUnclaimed(path, made.status());
  }
  // The broker holds the predecessor's claim, with that one's pid, until it receives this one.
  if (absl::StatusOr<UniqueFd> renewed = ClaimNode(node); renewed.ok()) {
    folder.node_claim_ = *std::move(renewed);
  } else {
    Log("folder %s: cannot renew the claim on its node id: %s", path.c_str(),
        std::string(renewed.status().message()).c_str());
  }
  if (folder.IsLockThere()) folder.folder_ = IdOf(path);
  BERTH_RETURN_IF_ERROR(folder.WritePid(folder.lock_.get()));
  return folder;
}

RunFolder::FileId RunFolder::IdOf(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) < 0) return {};
  return {.device = info.st_dev, .inode = info.st_ino};
}

void RunFolder::KeepSockets() {
  // A missing socket has no id: Restore() creates it. A supervisor that was killed may have created the socket file
  // without handing its fd to any other process.
  for (const Socket& socket : kSockets) {
    const std::string path = PathOf(socket.name);
    made_[socket.listener] = IsListenedOn(path, socket.type) ? IdOf(path) : FileId();
  }
}

const char* RunFolder::NameOf(fd_store::Listener listener) { return SocketOf(listener).name; }

bool RunFolder::IsLockThere() const { return IsFileAt(lock_.get(), PathOf(kLock)); }

absl::Status RunFolder::WritePid(int lock) const {
  const std::string pid = absl::StrCat(::getpid(), "\n");
  // In this order a concurrent reader of the first line always reads a pid.
  if (::pwrite(lock, pid.data(), pid.size(), 0) < 0 || ::ftruncate(lock, static_cast<off_t>(pid.size())) < 0) {
    return OsError(absl::StrCat("write ", PathOf(kLock)), errno);
  }
  return absl::OkStatus();
}

RunFolder::~RunFolder() {
  if (made_.empty()) return;
  // Leaves the sockets of another daemon alone, should there be one.
  for (const auto& [listener, id] : made_) {
    const std::string path = PathOf(SocketOf(listener).name);
    if (id == IdOf(path)) ::unlink(path.c_str());
  }
  if (IsLockThere()) RemoveAllNamedMemory(path_);
}

absl::StatusOr<uint64_t> RunFolder::ReadNode() const {
  const std::string name = PathOf(kNode);
  const UniqueFd file(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return errno == ENOENT || errno == ELOOP ? 0 : absl::StatusOr<uint64_t>(OsError(name, errno));
  // One byte more than a node id has: other content is often longer.
  char bytes[sizeof(node_) + 1];
  const ssize_t got = ::pread(file.get(), bytes, sizeof(bytes), 0);
  if (got < 0 && errno != EISDIR) return OsError(absl::StrCat("read ", name), errno);
  uint64_t node = 0;
  if (got == sizeof(node)) memcpy(&node, bytes, sizeof(node));
  return node;
}

absl::Status RunFolder::FindOrDrawNode() {
  BERTH_ASSIGN_OR_RETURN(const uint64_t own, ReadNode());
  const uint64_t recorded = NodeRecord::ReadNode(path_);
  const absl::StatusOr<LedgerIdentity> ledger = LedgerFile::ReadIdentity(PathOf(kLedger));
  const uint64_t of_ledger = ledger.ok() ? ledger->node : 0;
  // Two files that agree outvote the third. Otherwise the ledger, which has the leases, precedes the record.
  node_ = recorded != 0 && recorded == own ? own : of_ledger != 0 ? of_ledger : recorded != 0 ? recorded : own;
  const bool found = node_ != 0;
  if (!found) node_ = RandomId();
  BERTH_RETURN_IF_ERROR(ClaimOwnNode());
  if (node_ == own) return absl::OkStatus();
  if (found) {
    Log("folder %s: %s is missing or damaged; restoring the node id of the %s", path_.c_str(), kNode,
        node_ == of_ledger ? "ledger" : "record");
  }
  return WriteNode();
}

absl::Status RunFolder::ClaimOwnNode() {
  // The kernel does not list sockets.
  if (!claim_) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(node_claim_, ClaimNode(node_));
  BERTH_ASSIGN_OR_RETURN(const std::optional<std::string> other, FindOtherOfNode(node_, node_claim_));
  return other.has_value() ? NodeServedByAnother(path_, *other) : absl::OkStatus();
}

absl::Status RunFolder::WriteNode() const {
  return WriteWholeFile(PathOf(kNode), {reinterpret_cast<const char*>(&node_), sizeof(node_)}, 0600);
}

absl::StatusOr<bool> RunFolder::RestoreNode() {
  const absl::StatusOr<uint64_t> there = ReadNode();
  if (there.ok() && *there == node_) return false;
  BERTH_RETURN_IF_ERROR(WriteNode());
  return true;
}

absl::Status RunFolder::LockAgain() {
  // The file is locked before it gets its name, so that no other daemon can lock it first.
  const std::string name = PathOf(kLock);
  const std::string unnamed = name + ".new";
  ::unlink(unnamed.c_str());
  UniqueFd lock(::open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return OsError(absl::StrCat("open ", unnamed), errno);
  const absl::Cleanup remove = [&unnamed] { ::unlink(unnamed.c_str()); };
  BERTH_RETURN_IF_ERROR(Lock(lock.get(), path_));
  BERTH_RETURN_IF_ERROR(WritePid(lock.get()));
  if (::link(unnamed.c_str(), name.c_str()) < 0) {
    if (errno != EEXIST) return OsError(absl::StrCat("link ", name), errno);
    lock.reset(::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!lock) return OsError(absl::StrCat("open ", name), errno);
    BERTH_RETURN_IF_ERROR(Lock(lock.get(), path_));
    BERTH_RETURN_IF_ERROR(WritePid(lock.get()));
  }
  lock_ = std::move(lock);
  return absl::OkStatus();
}

absl::Status RunFolder::Restore(FolderGroups groups, Restored* restored) {
  BERTH_RETURN_IF_ERROR(MakeFolder(path_, groups));
  if (const FileId now = IdOf(path_); now != folder_) {
    restored->folder = true;
    folder_ = now;
  }
  if (!IsLockThere()) {
    BERTH_RETURN_IF_ERROR(LockAgain());
    restored->lock = true;
  }
  BERTH_ASSIGN_OR_RETURN(const bool node, RestoreNode());
  restored->node |= node;
  for (const Socket& socket : kSockets) {
    const auto made = made_.find(socket.listener);
    if (made == made_.end() || (made->second != FileId() && made->second == IdOf(PathOf(socket.name)))) continue;
    BERTH_ASSIGN_OR_RETURN(restored->sockets.emplace_back(), ListenOn(socket.listener, groups));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RunFolder::Listening>> RunFolder::Listen(FolderGroups groups) {
  std::vector<Listening> sockets;
  for (const Socket& socket : kSockets) {
    BERTH_ASSIGN_OR_RETURN(Listening made, ListenOn(socket.listener, groups));
    sockets.push_back(std::move(made));
  }
  return sockets;
}

absl::StatusOr<RunFolder::Listening> RunFolder::ListenOn(fd_store::Listener listener,
                                                         FolderGroups groups) {
  const Socket& how = SocketOf(listener);
  const std::string path = PathOf(how.name);
  if (::unlink(path.c_str()) < 0 && errno != ENOENT) return OsError(absl::StrCat("unlink ", path), errno);
  UniqueFd socket(::socket(AF_UNIX, how.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return OsError("socket", errno);
  // Clients have no fds to send. Closing a received fd could block for as long as the client likes. If the kernel lets
  // fds through all the same, EventLoop::Close() receives them.
  RefuseFds(socket.get()).IgnoreError();
  const sockaddr_un address = AddressOf(path);
  // Until its mode is set, only this user can reach the socket.
  const mode_t before = ::umask(0177);
  const absl::Cleanup restore = [before] { ::umask(before); };
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0) {
    return OsError(absl::StrCat("bind ", path), errno);
  }
  made_[listener] = IdOf(path);
  const std::optional<gid_t> group = how.others == Others::kGroup       ? groups.clients
                                     : how.others == Others::kObservers ? groups.observers
                                                                        : std::nullopt;
  if (group.has_value()) {
    if (absl::Status given = GiveToGroup(path, static_cast<uid_t>(-1), *group); !given.ok()) return given;
  }
  const bool group_may = how.others == Others::kGroup || group.has_value();
  if (::chmod(path.c_str(), group_may ? 0660 : 0600) < 0) return OsError(absl::StrCat("chmod ", path), errno);
  if (::listen(socket.get(), kBacklog) < 0) return OsError(absl::StrCat("listen ", path), errno);
  return Listening{listener, std::move(socket)};
}

}  // namespace berth
