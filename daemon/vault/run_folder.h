// RunFolder: the folder that one daemon owns: its lock, its node id, its sockets.

#ifndef DAEMON_VAULT_RUN_FOLDER_H_
#define DAEMON_VAULT_RUN_FOLDER_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/vault/custody_wire.h"

namespace berth {

// RunFolder is move-only; it gives the lock back when destroyed, and removes the sockets it made.
// Thread-compatible.
class RunFolder {
 public:
  // What a session's capsule can name; the sockets' names fit behind it into sun_path.
  static constexpr size_t kMaxPathBytes = 89;

  // Makes the folder if it is not there (for root 0750, group berth where that group exists, and 0751 where there are
  // observers, whose socket lies in it; for a user 0700) and locks it. Touches no socket. Where `lock` is an earlier
  // daemon's of this very folder it is locked by that.
  // Errors: kInvalidArgument if `path` is too long or relative; kFailedPrecondition if another daemon has it
  // (names it), or if it is not this user's; those of the file system.
  static absl::StatusOr<RunFolder> Take(const std::string& path, bool observers = false, UniqueFd lock = UniqueFd());

  // Goes on with the folder at `path` where another process of the daemon ended that had taken it and made its sockets,
  // by a duplicate of its lock. Its sockets are left to the next one, should this one not come to KeepSockets().
  // Errors: as Take().
  static absl::StatusOr<RunFolder> Inherit(const std::string& path, UniqueFd lock);

  RunFolder(RunFolder&&) = default;
  RunFolder& operator=(RunFolder&&) = delete;
  ~RunFolder();

  // A duplicate of the lock: the folder is locked as long as there is one.
  absl::StatusOr<UniqueFd> ShareLock() const { return DuplicateFd(lock_.get()); }

  // Goes on with the sockets of an earlier daemon, as if they were made here.
  void KeepSockets();
  // Leaves the sockets to a later daemon.
  void LeaveSockets() { made_.clear(); }

  // Random, drawn when the folder's first daemon started.
  uint64_t node() const { return node_; }

  // A listening socket, non-blocking and close-on-exec.
  struct Listening {
    custody::Listener listener;
    UniqueFd fd;
  };
  // Makes the five sockets in place of what an earlier daemon left: admin.sock and admin-attach.sock for this user
  // alone, observer.sock for the group of observers too, the others for group berth too, where this is root and the
  // group exists. Without observers observer.sock is this user's alone.
  absl::StatusOr<std::vector<Listening>> Listen(std::optional<gid_t> observers = std::nullopt);
  // Make one alone, which the vault before this one did not have: observer.sock, admin-attach.sock.
  absl::StatusOr<Listening> ListenForObservers(std::optional<gid_t> observers);
  absl::StatusOr<Listening> ListenForOperators();

 private:
  RunFolder(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  absl::Status WritePid() const;
  absl::Status ReadOrDrawNode();
  // `group`: who may connect beside this user; nothing for nobody.
  absl::StatusOr<UniqueFd> ListenOn(const std::string& name, int type, std::optional<gid_t> group, bool group_may);
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }

  std::string path_;
  UniqueFd lock_;
  uint64_t node_ = 0;
  // Names of the sockets made; empty when moved from.
  std::vector<std::string> made_;
};

// The group of that name: nothing where there is none.
std::optional<gid_t> FindGroup(const std::string& name);

}  // namespace berth

#endif  // DAEMON_VAULT_RUN_FOLDER_H_
