// ModuleKeeper: the broker's hands on compiled modules. What a process has compiled it writes to a place that the
// keeper made for it; the keeper copies that to memory of its own, seals it, sees that it is what the process called
// it, and hands out that memory alone, to be read. What is kept over a restart is in files (module_files.h).
//
// Modules and places are clients', and leave operators and the daemon fds (daemon/vault/fd_reserve.h): past that one is
// refused, and who asked compiles for itself.
//
// A thread of its own does what takes long, in the order in which it is told; so nobody waits for a disk.

#ifndef DAEMON_BROKER_MODULE_KEEPER_H_
#define DAEMON_BROKER_MODULE_KEEPER_H_

#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/unique_fd.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/module_files.h"
#include "daemon/core/effects.h"

namespace berth {

// Thread-safe.
class ModuleKeeper {
 public:
  // `files` may be null: then nothing is kept over a restart. Places are of `largest`. `broker` must outlive the
  // keeper.
  ModuleKeeper(Broker* broker, std::unique_ptr<ModuleFiles> files, Bytes largest);
  ModuleKeeper(const ModuleKeeper&) = delete;
  ModuleKeeper& operator=(const ModuleKeeper&) = delete;
  // What it was told and has not begun it leaves.
  ~ModuleKeeper() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until all that it was told is done, `patience` long at the most.
  void Flush(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);

  // Carries the effect out; never waits.
  void Carry(const core::ModuleWork& work) ABSL_LOCKS_EXCLUDED(mu_);
  // New fds of a module, to be read, and of a place, to be written. Errors: kNotFound for what is gone.
  absl::StatusOr<UniqueFd> OpenModule(core::ModuleId module) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<UniqueFd> OpenPlace(core::CompileId compile) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Do(const core::ModuleWork& work) ABSL_LOCKS_EXCLUDED(mu_);
  void MakePlace(core::CompileId compile) ABSL_LOCKS_EXCLUDED(mu_);
  void Store(const core::ModuleWork& work) ABSL_LOCKS_EXCLUDED(mu_);
  void Load(const core::ModuleWork& work) ABSL_LOCKS_EXCLUDED(mu_);
  // Errors: kInvalidArgument for what is not what `work` says; LIMIT where no fd is left for it.
  absl::StatusOr<UniqueFd> TakeOver(const core::ModuleWork& work) ABSL_LOCKS_EXCLUDED(mu_);

  Broker& broker_;
  const Bytes largest_;
  // The thread's.
  const std::unique_ptr<ModuleFiles> files_;
  bool unwritable_ = false;

  mutable Mutex mu_;
  CondVar more_;
  SteadyCondVar idle_;
  bool working_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<core::ModuleWork> work_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<core::ModuleId, UniqueFd> modules_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<core::CompileId, UniqueFd> places_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_MODULE_KEEPER_H_
