// ModuleManager: the core's steps about compiled modules. Processes of a tenant that request a cached module receive
// it. If the module is missing, the first process compiles it and the others wait. If the compiling process ends, times
// out or gives up, the next waiter compiles it.
//
// A module is not a lease: a delivered module belongs to the process and is never returned. So no step here waits for
// the proof of a process's death.

#ifndef DAEMON_CORE_MODULES_MODULE_MANAGER_H_
#define DAEMON_CORE_MODULES_MODULE_MANAGER_H_

#include <cstdint>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/modules/module_table.h"
#include "daemon/core/requests/wait_place.h"
#include "daemon/core/sessions/session_table.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/module_types.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/request_id.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class ModuleManager final : public WaitPlace {
 public:
  // `core` outlives the manager.
  // Ids start at a value derived from `epoch`, so that no two brokers assign the same id. Ids of an earlier broker are
  // not persisted; a late message about one of them would otherwise name another module.
  ModuleManager(Managers& core, const ModuleLimits& limits, uint64_t epoch)
      : core_(core), table_(limits, (epoch - 1) << 32) {}

  // ---- Events and queries (core.h) -------------------------------------------------------------------------

  void ObtainModule(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                    const ObtainModuleRequest& request);
  void StoreModule(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                   const StoreModuleRequest& request);
  void AbandonModule(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                     const AbandonModuleRequest& request);
  void RestoreModule(StepContext& step, const ModuleRecord& record);
  void RecordCorruptModules(uint64_t count);
  void ModuleStored(StepContext& step, ModuleId module, CompileId compile, const absl::Status& status);
  void ModuleLoaded(StepContext& step, ModuleId module, const absl::Status& status);
  Page<ModuleView> ListModules(const Caller& caller, const PageRequest& request) const;
  ModuleUsage GetModuleUsage(const Caller& caller) const;

  // ---- The steps ----------------------------------------------------------------------------------------------

  // Each call answers the request, now or later.
  void Obtain(StepContext& step, const RequestId& request, const Session& session, const Channel& channel,
              const ObtainModuleRequest& asked);
  void Store(StepContext& step, const RequestId& request, const Channel& channel, const StoreModuleRequest& asked);
  void Abandon(StepContext& step, const RequestId& request, const Channel& channel, const AbandonModuleRequest& asked);

  void Restore(StepContext& step, const ModuleRecord& record);
  void Stored(StepContext& step, ModuleId module, CompileId compile, const absl::Status& status);
  void Loaded(StepContext& step, ModuleId module, const absl::Status& status);

  // Ends the channel's compiles; other processes may compile these modules.
  void EndCompilesOf(StepContext& step, ChannelId channel);
  // Revokes the right to compile if that channel still has it. Returns whether it had.
  bool Undo(StepContext& step, const ObtainModuleResult& result);

  // ---- WaitPlace --------------------------------------------------------------------------------------------

  bool SetDeadline(const RequestId& request, const WaitTicket& ticket, absl::Time deadline) override;
  void Leave(StepContext&, const RequestId& request, const WaitTicket&) override { table_.Leave(request); }
  void Expire(StepContext& step) override;
  absl::Time next_deadline() const override { return table_.next_deadline(); }
  // A request that stores a module continues.
  bool OutlivesCall(const RequestId& request) override;

  const ModuleTable& table() const { return table_; }
  static ModuleView ViewOf(const Module& module);
  // Returns OK, or the violated invariant.
  absl::Status CheckInvariants() const;

 private:
  // Answers the request with the ready module, or with the right to compile it.
  void GiveTo(StepContext& step, Module& module, const RequestId& request);
  void LetCompile(StepContext& step, Module& module, const RequestId& request);
  // Answers the requests that wait for the module.
  void Serve(StepContext& step, Module& module);
  // Handles a module that no process compiles: grants the right to the next waiter, or forgets the module.
  void PassOn(StepContext& step, Module& module);
  // Ends a compile without a result.
  void EndCompile(StepContext& step, Module& module);
  // Forgets the module and answers its waiters with `why`.
  void GiveUp(StepContext& step, Module& module, const absl::Status& why);
  // Deletes the module's stored content.
  void Drop(StepContext& step, const Module& module);
  // Evicts other modules to make capacity. Errors: LIMIT.
  absl::Status FreeCapacity(StepContext& step, const Tenant& tenant, uint64_t modules, Bytes bytes);
  absl::Status MayCompile(const Tenant& tenant) const;
  absl::Status MayWait(const Tenant& tenant) const;
  // Returns the module that the channel compiles under that right. Errors: NOT_FOUND.
  absl::StatusOr<Module*> FindCompiled(const Channel& channel, CompileId compile);

  Managers& core_;
  ModuleTable table_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MODULES_MODULE_MANAGER_H_
