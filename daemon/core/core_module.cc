// Compiled modules: requests, what the broker's keeper says, and what is shown. The steps are module_desk.h's.

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"
#include "daemon/core/fingerprint.h"

namespace berth::core {

void Core::ObtainModule(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                        const ObtainModuleRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request), request.deadline);
  if (!admitted.has_value()) return;
  impl_->modules_.Obtain(step, admitted->request, admitted->session, admitted->channel, request);
}

void Core::StoreModule(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                       const StoreModuleRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  impl_->modules_.Store(step, admitted->request, admitted->channel, request);
}

void Core::AbandonModule(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                         const AbandonModuleRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  impl_->modules_.Abandon(step, admitted->request, admitted->channel, request);
}

void Core::RestoreModule(absl::Time now, const ModuleRecord& record, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  impl_->modules_.Restore(step, record);
}

void Core::NoteCorruptModules(uint64_t count) { impl_->modules_.table().NoteCorrupt(count); }

void Core::ModuleStored(absl::Time now, ModuleId module, CompileId compile, const absl::Status& status,
                        Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  impl_->modules_.Stored(step, module, compile, status);
}

void Core::ModuleLoaded(absl::Time now, ModuleId module, const absl::Status& status, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  impl_->modules_.Loaded(step, module, status);
}

Page<ModuleView> Core::ListModules(const Caller& caller, const PageRequest& request) const {
  Page<ModuleView> page;
  impl_->modules_.table().ForEachAfter(ModuleId(request.after), [&](const Module& module) {
    if (!caller.sees_all() && module.record.tenant != caller.tenant) return true;
    page.more = page.size() >= request.rows;
    if (page.more) return false;
    ModuleView view = ModuleDesk::ViewOf(module);
    if (const Channel* const compiler = impl_->sessions_.FindChannel(module.compiler)) {
      view.compiling = compiler->process;
    }
    page.last = module.id.value();
    page.push_back(std::move(view));
    return true;
  });
  return page;
}

ModuleUsage Core::GetModuleUsage(const Caller& caller) const {
  return impl_->modules_.table().Usage(caller.sees_all() ? nullptr : &caller.tenant);
}

}  // namespace berth::core
