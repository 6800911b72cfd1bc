// ModuleDesk: the core's steps about compiled modules. A tenant's processes that want one are given it; of those who
// want one that is not there the first compiles it and the others wait; when whoever compiles it ends, takes too long
// or gives up, the next one compiles it.
//
// Not a lease: a module that was handed over is the process's own, and nothing has to come back. So nothing here waits
// for the proof of anybody's death.

#ifndef DAEMON_CORE_MODULE_DESK_H_
#define DAEMON_CORE_MODULE_DESK_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/core/module_table.h"
#include "daemon/core/module_types.h"
#include "daemon/core/request_memory.h"
#include "daemon/core/session_table.h"

namespace berth::core {

class Step;

// Thread-compatible; part of the core.
class ModuleDesk {
 public:
  // `core` outlives the desk.
  // What an earlier broker gave is not kept, so no other broker may give its ids: what was said of them and is heard
  // late would be of another module.
  ModuleDesk(Core::Impl* core, const ModuleLimits& limits, uint64_t epoch)
      : core_(core), table_(limits, (epoch - 1) << 32) {}

  // Each ends in an answer to the request, now or later.
  void Obtain(const Step& step, const RequestId& request, const Session& session, const Channel& channel,
              const ObtainModuleRequest& asked);
  void Store(const Step& step, const RequestId& request, const Channel& channel,
             const StoreModuleRequest& asked);
  void Abandon(const Step& step, const RequestId& request, const Channel& channel,
               const AbandonModuleRequest& asked);

  void Restore(const Step& step, const ModuleRecord& record);
  void Stored(const Step& step, ModuleId module, CompileId compile, const absl::Status& status);
  void Loaded(const Step& step, ModuleId module, const absl::Status& status);

  // What the channel compiles somebody else may.
  void EndCompilesOf(const Step& step, ChannelId channel);
  // Takes back the right to compile, where it is still that channel's. Returns whether it was.
  bool Undo(const Step& step, const ObtainModuleResult& result);
  // The request waits here no more.
  void Leave(const RequestId& request) { table_.Leave(request); }
  // Whether the request stores a module, rather than wait for one.
  bool Stores(const RequestId& request);
  void Expire(const Step& step);

  ModuleTable& table() { return table_; }
  const ModuleTable& table() const { return table_; }
  static ModuleView ViewOf(const Module& module);
  // OK, or what is broken.
  absl::Status CheckBooks() const;

 private:
  // Gives the request the module, which is ready, or the right to compile it.
  void GiveTo(const Step& step, Module& module, const RequestId& request);
  void LetCompile(const Step& step, Module& module, const RequestId& request);
  // Has the module given to who waits for it.
  void Serve(const Step& step, Module& module);
  // It is compiled by nobody: the next who waits does, or it is forgotten.
  void PassOn(const Step& step, Module& module);
  // Its compile came to nothing.
  void EndCompile(const Step& step, Module& module);
  // It is forgotten, and who waits for it told why.
  void GiveUp(const Step& step, Module& module, const absl::Status& why);
  // What is kept of it goes.
  void Drop(const Step& step, const Module& module);
  // Has others leave. Errors: LIMIT.
  absl::Status MakeRoom(const Step& step, const Tenant& tenant, uint64_t modules, Bytes bytes);
  absl::Status MayCompile(const Tenant& tenant) const;
  absl::Status MayWait(const Tenant& tenant) const;
  // The module that the channel compiles under that right. Errors: NOT_FOUND.
  absl::StatusOr<Module*> FindCompiled(const Channel& channel, CompileId compile);

  Core::Impl* const core_;
  ModuleTable table_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MODULE_DESK_H_
