// ModuleFiles: the compiled modules that the node persists across restarts, one file each in a private folder.
//
//   "BERTHMOD", version, length and SHA-256 of the record | the record | the module
//
// Files are written under a temporary name and renamed, and never synced. A file that a crash left torn fails its
// digest check and is dropped. The folder has mode 0700 and belongs to the daemon's own user. One daemon uses the
// folder at a time.

#ifndef DAEMON_BROKER_MODULE_FILES_H_
#define DAEMON_BROKER_MODULE_FILES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "daemon/core/types/module_types.h"

namespace berth {

// Used by one thread at a time.
class ModuleFiles {
 public:
  // Creates the folder and its parent if they are missing.
  // Errors: kFailedPrecondition if the path is no folder, is another user's, or is used by another daemon; the
  // system's.
  static absl::StatusOr<std::unique_ptr<ModuleFiles>> Open(const std::string& parent);
  ModuleFiles(const ModuleFiles&) = delete;
  ModuleFiles& operator=(const ModuleFiles&) = delete;

  // The persisted modules, least recently used first. Scan() removes and counts files that are no valid modules.
  struct Contents {
    std::vector<core::ModuleRecord> records;
    uint64_t corrupt = 0;
  };
  Contents Scan();

  // Reads a module into sealed memory. Errors: kDataLoss if the file is missing or does not match `record`; the
  // system's.
  absl::StatusOr<UniqueFd> Load(const core::ModuleRecord& record);
  // Writes a module from `memory`. Errors: the system's, with no file left behind.
  absl::Status Store(const core::ModuleRecord& record, int memory);
  // Removes a module's file. Does nothing if there is none.
  void Drop(const core::ModuleRecord& record);

 private:
  ModuleFiles(UniqueFd folder, UniqueFd lock) : folder_(std::move(folder)), lock_(std::move(lock)) {}

  const UniqueFd folder_;
  const UniqueFd lock_;
};

// A read-only fd of a memory copy that no process can write to, and the digest of its content.
struct SealedModule {
  UniqueFd fd;
  Digest content;
};
// Copies the first `bytes` of `from` from `offset` on. Errors: kDataLoss if there are fewer; the system's.
absl::StatusOr<SealedModule> SealModule(int from, uint64_t offset, Bytes bytes);

}  // namespace berth

#endif  // DAEMON_BROKER_MODULE_FILES_H_
