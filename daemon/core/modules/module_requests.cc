// Compiled modules: requests, reports of the module store, and views. The steps are in module_manager.cc.

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "daemon/core/managers.h"
#include "daemon/core/modules/module_manager.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"

namespace berth::core {

void ModuleManager::ObtainModule(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                                 const ObtainModuleRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request), request.deadline);
  if (!admitted.has_value()) return;
  Obtain(step, admitted->request, admitted->session, admitted->channel, request);
}

void ModuleManager::StoreModule(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                                const StoreModuleRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  Store(step, admitted->request, admitted->channel, request);
}

void ModuleManager::AbandonModule(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                                  const AbandonModuleRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  Abandon(step, admitted->request, admitted->channel, request);
}

void ModuleManager::RestoreModule(StepContext& step, const ModuleRecord& record) { Restore(step, record); }

void ModuleManager::RecordCorruptModules(uint64_t count) { table_.RecordCorrupt(count); }

void ModuleManager::ModuleStored(StepContext& step, ModuleId module, CompileId compile, const absl::Status& status) {
  Stored(step, module, compile, status);
}

void ModuleManager::ModuleLoaded(StepContext& step, ModuleId module, const absl::Status& status) {
  Loaded(step, module, status);
}

Page<ModuleView> ModuleManager::ListModules(const Caller& caller, const PageRequest& request) const {
  Page<ModuleView> page;
  table_.ForEachAfter(ModuleId(request.after), [&](const Module& module) {
    if (!caller.sees_all() && module.record.tenant != caller.tenant) return true;
    page.more = page.size() >= request.rows;
    if (page.more) return false;
    ModuleView view = ModuleManager::ViewOf(module);
    if (const Channel* const compiler = core_.sessions.table().FindChannel(module.compiler)) {
      view.compiling = compiler->process;
    }
    page.last = module.id.value();
    page.push_back(std::move(view));
    return true;
  });
  return page;
}

ModuleUsage ModuleManager::GetModuleUsage(const Caller& caller) const {
  return table_.Usage(caller.sees_all() ? nullptr : &caller.tenant);
}

bool Undo(const UndoStep& undo, const ObtainModuleResult& result) {
  return undo.core.modules.Undo(undo.step, result);
}

}  // namespace berth::core
