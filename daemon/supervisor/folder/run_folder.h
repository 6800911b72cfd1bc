// RunFolder: the folder that one daemon owns, with its lock, node id and sockets, and the claims on path and node id.
//
// Files of the folder, and the folder itself, can be deleted or moved while the daemon runs. The claims
// (folder_claim.h) then still exclude a second daemon. Restore() recreates what is missing.

#ifndef DAEMON_SUPERVISOR_FOLDER_RUN_FOLDER_H_
#define DAEMON_SUPERVISOR_FOLDER_RUN_FOLDER_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"

namespace berth {

// Groups whose members can connect to a folder's sockets, in addition to this user. Without `clients` the sockets keep
// the group that they are created with. Without `observers` only this user reaches the observers' socket.
struct FolderGroups {
  std::optional<gid_t> clients;
  std::optional<gid_t> observers;
};

// RunFolder is move-only. Destruction releases the lock and removes the sockets it made. Thread-compatible.
class RunFolder {
 public:
  // Limit of the path, in bytes: a longer path does not fit into a session's credentials. The sockets' names fit behind
  // a path of this length into sun_path.
  static constexpr size_t kMaxPathBytes = 89;
  // Names of the files with the lock, the node id and the ledger.
  static constexpr char kLock[] = "berthd.lock";
  static constexpr char kNode[] = "node";
  static constexpr char kLedger[] = "ledger";

  // Creates the folder if it does not exist, locks it, and claims its path and node id. Touches no socket. Mode for
  // root: 0750 with the clients' group, or 0751 if there are observers, whose socket lies in it; for any other user:
  // 0700. If `lock` is an earlier daemon's lock file of this very folder, that fd is used.
  // Errors: kInvalidArgument if `path` is too long or relative; those of the file system. kFailedPrecondition if
  // another daemon has the folder, or its node id at another path (names that daemon); or if other users could replace
  // the folder or files in it.
  static absl::StatusOr<RunFolder> Take(const std::string& path, FolderGroups groups = {},
                                        UniqueFd lock = UniqueFd());

  // Continues with the folder at `path` after the process that had taken it and made its sockets has ended. Takes
  // duplicates of that process's lock and claim, and its node id. Without a claim (an earlier program has none) the
  // path is claimed here. Claims the node id anew, with this process's pid. The sockets stay for a later process unless
  // KeepSockets() is called. Leaves missing files to Restore().
  // Errors: those of the file system.
  static absl::StatusOr<RunFolder> Inherit(const std::string& path, UniqueFd lock, UniqueFd claim, uint64_t node);

  RunFolder(RunFolder&&) = default;
  RunFolder& operator=(RunFolder&&) = delete;
  ~RunFolder();

  // Duplicates: the folder stays locked, and its path claimed, as long as a duplicate is open.
  absl::StatusOr<UniqueFd> ShareLock() const { return DuplicateFd(lock_.get()); }
  absl::StatusOr<UniqueFd> ShareClaim() const { return DuplicateFd(claim_.get()); }
  // False if the kernel does not list sockets: then the lock alone excludes a second daemon.
  bool claimed() const { return static_cast<bool>(claim_); }
  // As ShareClaim() and claimed(), for the claim on the node id.
  absl::StatusOr<UniqueFd> ShareNodeClaim() const { return DuplicateFd(node_claim_.get()); }
  bool node_claimed() const { return static_cast<bool>(node_claim_); }

  // Adopts the sockets of an earlier daemon, as if they had been made here.
  void KeepSockets();
  // Leaves the sockets to a later daemon.
  void LeaveSockets() { made_.clear(); }

  // Returns the file name of the listener's socket.
  static const char* NameOf(fd_store::Listener listener);

  // Random id of the node, drawn when the folder's first daemon started. The files `node`, `record` and `ledger` each
  // have it: Take() restores a missing or damaged `node` from the others.
  uint64_t node() const { return node_; }

  // A listening socket, non-blocking and close-on-exec.
  struct Listening {
    fd_store::Listener listener;
    UniqueFd fd;
  };
  // Creates the five sockets in place of an earlier daemon's. admin.sock and admin-attach.sock are for this user alone,
  // observer.sock also for the group of observers, the others also for the clients' group.
  absl::StatusOr<std::vector<Listening>> Listen(FolderGroups groups = {});
  // Creates one socket alone.
  absl::StatusOr<Listening> ListenOn(fd_store::Listener listener, FolderGroups groups);

  // The parts that Restore() has recreated.
  struct Restored {
    // The folder itself was recreated or replaced.
    bool folder = false;
    bool lock = false;
    // Also if the file had another content.
    bool node = false;
    // Replacements of sockets that clients can no longer reach.
    std::vector<Listening> sockets;
    bool anything() const { return folder || lock || node || !sockets.empty(); }
  };
  // Recreates deleted or replaced parts of the folder and adds them to `restored`. Sockets come last: if another daemon
  // has the lock, as a daemon in another network namespace may, the sockets are left alone.
  // Errors: kFailedPrecondition if the folder at the path is another user's, or if another daemon has locked it; those
  // of the file system.
  absl::Status Restore(FolderGroups groups, Restored* restored);
  // Writes the node id's file again if its content is not the node id. Returns whether it was written. Errors: those of
  // the file system.
  absl::StatusOr<bool> RestoreNode();
  // Returns whether the lock file at the path is another than the locked one: another daemon may have the folder.
  bool IsForeign() const { return IdOf(PathOf(kLock)) != FileId() && !IsLockThere(); }

 private:
  // Identity of a file, whatever its name; zero for no file.
  struct FileId {
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const FileId&) const = default;
  };

  RunFolder(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  // Returns the id of the file at `path`; zero if there is none.
  static FileId IdOf(const std::string& path);
  absl::Status LockAgain();
  absl::Status WritePid(int lock) const;
  // Returns the id in the node id's file; 0 if the file is missing or has another content.
  absl::StatusOr<uint64_t> ReadNode() const;
  absl::Status FindOrDrawNode();
  // Claims the node id. Errors: kFailedPrecondition if another daemon has claimed it; those of the system.
  absl::Status ClaimOwnNode();
  // Returns whether the lock file at the path is the locked one.
  bool IsLockThere() const;
  // Writes the file beside its path and renames it.
  absl::Status WriteNode() const;
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }

  std::string path_;
  UniqueFd lock_;
  UniqueFd claim_;
  UniqueFd node_claim_;
  FileId folder_;
  uint64_t node_ = 0;
  // The sockets that this object made; empty when moved from.
  std::map<fd_store::Listener, FileId> made_;
};

// Returns the group with that name, or else with that number; nullopt if there is none.
std::optional<gid_t> FindGroup(const std::string& name);

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_FOLDER_RUN_FOLDER_H_
