// ModuleStore: manages compiled modules for the broker. A process writes a compiled module to a place (memory) that
// the store made for it. The store copies the module to memory of its own, seals it, and verifies its digest against
// the one that the process gave. The store hands out only the sealed memory, read-only. Modules that survive a restart
// are in files (module_files.h).
//
// Modules and places count as clients' fds and leave a reserve to operators and the daemon
// (daemon/supervisor/fd_store/fd_reserve.h). Beyond that limit a request is refused, and the caller compiles for
// itself.
//
// A separate thread does the slow work, so that no caller waits for a disk. The thread executes one step per user in
// turn, and each user's steps in order. A step handles at most the size of one module. A module that is dropped before
// its turn to be written to disk is not written. Nor is a module that exceeds its user's rate: it is lost at a restart.

#ifndef DAEMON_BROKER_MODULE_STORE_H_
#define DAEMON_BROKER_MODULE_STORE_H_

#include <memory>

#include <berth/bytes.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "common/steady_cond_var.h"
#include "common/thread.h"
#include "daemon/base/token_bucket.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/module_files.h"
#include "daemon/broker/user_turns.h"
#include "daemon/core/types/effects.h"

namespace berth {

// Thread-safe.
class ModuleStore {
 public:
  // The bytes that the store writes to the disk for one user: at once, and then each second.
  static constexpr Bytes kWrittenAtOnce = MiB(512);
  static constexpr Bytes kWrittenPerSecond = MiB(16);

  // `files` may be null: then no module survives a restart. Each place has the size `largest`. `broker` must outlive
  // the store.
  ModuleStore(Broker* broker, std::unique_ptr<ModuleFiles> files, Bytes largest,
              Bytes written_at_once = kWrittenAtOnce);
  ModuleStore(const ModuleStore&) = delete;
  ModuleStore& operator=(const ModuleStore&) = delete;
  // Discards steps that have not begun.
  ~ModuleStore() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until all steps are done, at most for `patience`.
  void Flush(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);

  // Executes the effect; never waits.
  void Apply(const core::ModuleWork& work) ABSL_LOCKS_EXCLUDED(mu_);
  // Return new fds: of a module, read-only, and of a place, writable. Errors: kNotFound if it no longer exists.
  absl::StatusOr<UniqueFd> OpenModule(core::ModuleId module) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<UniqueFd> OpenPlace(core::CompileId compile) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // One step for a user: the core's request, or, if `memory` is set, writing that module to its file.
  struct Step {
    core::ModuleWork work;
    UniqueFd memory;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Do(Step step) ABSL_LOCKS_EXCLUDED(mu_);
  void Drop(const core::ModuleWork& work) ABSL_LOCKS_EXCLUDED(mu_);
  // Queues a later step that writes the module to its file, unless a queued step drops the module.
  void WriteLater(const core::ModuleWork& work, UniqueFd memory) ABSL_LOCKS_EXCLUDED(mu_);
  void Write(const core::ModuleWork& work, const UniqueFd& memory);
  void MakePlace(core::CompileId compile) ABSL_LOCKS_EXCLUDED(mu_);
  void Store(const core::ModuleWork& work) ABSL_LOCKS_EXCLUDED(mu_);
  void Load(const core::ModuleWork& work) ABSL_LOCKS_EXCLUDED(mu_);
  // Copies and verifies the written module. Errors: kInvalidArgument if it does not match `work`; LIMIT if no fd is
  // left for it.
  absl::StatusOr<UniqueFd> TakeOver(const core::ModuleWork& work) ABSL_LOCKS_EXCLUDED(mu_);

  Broker& broker_;
  const Bytes largest_;
  // Used by the thread alone.
  const std::unique_ptr<ModuleFiles> files_;
  bool unwritable_ = false;
  UidBuckets written_;

  mutable Mutex mu_;
  CondVar more_;
  SteadyCondVar idle_;
  bool working_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  UserTurns<Step> steps_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<core::ModuleId, UniqueFd> modules_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<core::CompileId, UniqueFd> places_ ABSL_GUARDED_BY(mu_);

  Thread thread_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_MODULE_STORE_H_
