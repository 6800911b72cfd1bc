// ModuleFiles: the compiled modules that the node keeps over a restart, a file each in a private folder.
//
//   "BERTHMOD", version, length and SHA-256 of what follows | the record | the module
//
// Files are written beside and renamed, and never synced: what a crash leaves torn shows by its digest, and is dropped.
// The folder is 0700 and the daemon's own user's, and one daemon has it at a time.

#ifndef DAEMON_BROKER_MODULE_FILES_H_
#define DAEMON_BROKER_MODULE_FILES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/core/module_types.h"

namespace berth {

// One thread at a time.
class ModuleFiles {
 public:
  // Makes the folder and its parent where they are missing.
  // Errors: kFailedPrecondition for one that is somebody else's, no folder, or served by another daemon; the system's.
  static absl::StatusOr<std::unique_ptr<ModuleFiles>> Open(const std::string& parent);
  ModuleFiles(const ModuleFiles&) = delete;
  ModuleFiles& operator=(const ModuleFiles&) = delete;

  // What is there, used longest ago first. Files that are none of modules are removed, and counted.
  struct Contents {
    std::vector<core::ModuleRecord> records;
    uint64_t corrupt = 0;
  };
  Contents Scan();

  // Reads a module into sealed memory. Errors: kDataLoss where it is gone or not what `record` says; the system's.
  absl::StatusOr<UniqueFd> Load(const core::ModuleRecord& record);
  // `memory` holds the module. Errors: the system's, with nothing left of it.
  absl::Status Store(const core::ModuleRecord& record, int memory);
  // Ignored where there is none.
  void Drop(const core::ModuleRecord& record);

 private:
  ModuleFiles(UniqueFd folder, UniqueFd lock) : folder_(std::move(folder)), lock_(std::move(lock)) {}

  const UniqueFd folder_;
  const UniqueFd lock_;
};

// A copy of `bytes` in memory that nobody can write to any more, opened for reading; with the digest of what is in it.
struct SealedModule {
  UniqueFd fd;
  Digest content;
};
// Reads the first `bytes` of `from` from `offset` on. Errors: kDataLoss where there is less; the system's.
absl::StatusOr<SealedModule> SealModule(int from, uint64_t offset, Bytes bytes);

}  // namespace berth

#endif  // DAEMON_BROKER_MODULE_FILES_H_
