#include "daemon/core/modules/module_manager.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"

namespace berth::core {
namespace {

// Longest wait for a disk, also for requests that do not wait for a compile.
constexpr absl::Duration kLoadPatience = absl::Seconds(1);

absl::Status AtLimit(absl::string_view what, uint64_t current, uint64_t limit) {
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                {{"what", what}, {"current", current}, {"limit", limit}});
}

absl::Status TimedOut(const Module& module) {
  return Refuse(Reason::kWaitTimedOut, "{kind} {id}: the wait for its compile timed out",
                {{"kind", "module"}, {"id", ToHex(module.record.key)}});
}

ModuleWork EndPlace(const Module& module) {
  return {.what = ModuleWork::What::kEndPlace, .compile = module.compile, .record = {.tenant = module.record.tenant}};
}

}  // namespace

void ModuleManager::Obtain(StepContext& step, const RequestId& request, const Session& session, const Channel& channel,
                           const ObtainModuleRequest& asked) {
  const Tenant& tenant = session.tenant;
  const auto refuse = [&](const absl::Status& status) { core_.requests.Answer(step, request, status); };
  if (table_.limits().total.count() == 0) {
    return refuse(Refuse(Reason::kUnsupported,
                         "the daemon stores no {capability}: modules.total is 0 in its configuration",
                         {{"capability", "compiled modules"}}));
  }
  if (const absl::Status capacity = core_.sessions.MayDeliver(channel); !capacity.ok()) return refuse(capacity);
  Module* module = table_.FindByKey(tenant, asked.key);
  if (module != nullptr && module->state == ModuleState::kReady && module->record.content == asked.distrusted) {
    table_.Count(tenant, &ModuleCounts::corrupt);
    Drop(step, *module);
    table_.Erase(*module);
    module = nullptr;
  }
  if (module != nullptr && module->state == ModuleState::kReady) return GiveTo(step, *module, request);
  if (module == nullptr) {
    if (const absl::Status may = MayCompile(tenant); !may.ok()) return refuse(may);
    if (const absl::Status capacity = FreeCapacity(step, tenant, 1, Bytes()); !capacity.ok()) return refuse(capacity);
    Module& fresh = table_.Add(ModuleRecord{.tenant = tenant,
                                            .key = asked.key,
                                            .architecture = asked.architecture,
                                            .compiler = asked.compiler,
                                            .label = asked.label,
                                            .create_time = step.now},
                               ModuleState::kCompiling, step.now);
    return LetCompile(step, fresh, request);
  }
  const bool stored = module->state == ModuleState::kOnDisk || module->state == ModuleState::kLoading;
  if (asked.deadline <= step.now && !stored) return refuse(TimedOut(*module));
  if (const absl::Status may = MayWait(tenant); !may.ok()) return refuse(may);
  if (module->state == ModuleState::kOnDisk) {
    module->state = ModuleState::kLoading;
    step.Emit(ModuleWork{.what = ModuleWork::What::kLoad, .module = module->id, .record = module->record});
  } else if (!stored) {
    table_.Count(tenant, &ModuleCounts::waits);
  }
  table_.Wait(*module, request, stored ? std::max(asked.deadline, step.now + kLoadPatience) : asked.deadline);
  core_.requests.SetPlace(request, this);
}

void ModuleManager::GiveTo(StepContext& step, Module& module, const RequestId& request) {
  ++module.hits;
  table_.Count(module.record.tenant, &ModuleCounts::hits);
  table_.Touch(module, step.now);
  std::vector<Deliver> sends;
  core_.sessions.mailboxes().Post(
      Deliver{
          .channel = request.channel,
          .delivery = {.what = attach::DeliveryKind::kModule, .sequence = request.sequence, .block = module.id.value()},
          .read_only = true},
      &sends);
  step.EmitAll(std::move(sends));
  core_.requests.Answer(step, request,
                        Response(ObtainModuleResult{
                            .module = module.id, .bytes = module.record.bytes, .content = module.record.content}));
}

void ModuleManager::LetCompile(StepContext& step, Module& module, const RequestId& request) {
  table_.Count(module.record.tenant, &ModuleCounts::misses);
  const absl::Time expires = step.now + table_.limits().compile_patience;
  table_.StartCompile(module, request.channel, expires);
  step.Emit(ModuleWork{.what = ModuleWork::What::kMakePlace, .compile = module.compile});
  std::vector<Deliver> sends;
  core_.sessions.mailboxes().Post(Deliver{.channel = request.channel,
                                          .delivery = {.what = attach::DeliveryKind::kModulePlace,
                                                       .sequence = request.sequence,
                                                       .block = module.compile.value()}},
                                  &sends);
  step.EmitAll(std::move(sends));
  core_.requests.Answer(
      step, request,
      Response(ObtainModuleResult{
          .module = module.id, .compile = module.compile, .bytes = table_.limits().largest, .expires = expires}));
}

absl::StatusOr<Module*> ModuleManager::FindCompiled(const Channel& channel, CompileId compile) {
  Module* const module = table_.FindByCompile(compile);
  if (module != nullptr && module->compiler == channel.id && module->state == ModuleState::kCompiling) {
    return module;
  }
  return Refuse(Reason::kNotFound, "no {kind} {id} in this process; it may have expired",
                {{"kind", "right to compile"}, {"id", compile.value()}});
}

void ModuleManager::Store(StepContext& step, const RequestId& request, const Channel& channel,
                          const StoreModuleRequest& asked) {
  const absl::StatusOr<Module*> found = FindCompiled(channel, asked.compile);
  if (!found.ok()) return core_.requests.Answer(step, request, found.status());
  Module& module = **found;
  absl::Status capacity;
  if (asked.bytes.count() == 0 || asked.content.empty()) {
    capacity = Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                      {{"field", "bytes"}, {"value", asked.bytes.count()}, {"limit", 1}});
  } else if (asked.bytes > table_.limits().largest) {
    capacity = AtLimit("bytes_per_module", asked.bytes.count(), table_.limits().largest.count());
  } else {
    capacity = FreeCapacity(step, module.record.tenant, 0, asked.bytes);
  }
  if (!capacity.ok()) {
    // The next compile would find no capacity either, so each waiter compiles on its own.
    table_.Count(module.record.tenant, &ModuleCounts::failed);
    core_.requests.Answer(step, request, capacity);
    return GiveUp(step, module, capacity);
  }
  table_.StartStore(module, asked.bytes, asked.content, request);
  core_.requests.SetPlace(request, this);
  step.Emit(ModuleWork{
      .what = ModuleWork::What::kStore, .module = module.id, .compile = module.compile, .record = module.record});
}

void ModuleManager::Abandon(StepContext& step, const RequestId& request, const Channel& channel,
                            const AbandonModuleRequest& asked) {
  const absl::StatusOr<Module*> module = FindCompiled(channel, asked.compile);
  if (!module.ok()) return core_.requests.Answer(step, request, module.status());
  core_.requests.Answer(step, request, Response(AbandonModuleResult()));
  if (asked.error.empty()) return EndCompile(step, **module);
  table_.Count((*module)->record.tenant, &ModuleCounts::failed);
  GiveUp(step, **module,
         Refuse(Reason::kInvalidField, "{field} does not compile for {limit}: {value}",
                {{"field", "source"}, {"limit", (*module)->record.architecture}, {"value", asked.error}}));
}

void ModuleManager::Restore(StepContext& step, const ModuleRecord& record) {
  const bool known = table_.FindByKey(record.tenant, record.key) != nullptr;
  // If there is less capacity than before, the least recently used modules are evicted.
  if (!known && FreeCapacity(step, record.tenant, 1, record.bytes).ok()) {
    table_.Add(record, ModuleState::kOnDisk, record.create_time);
  } else {
    step.Emit(ModuleWork{.what = ModuleWork::What::kDrop, .record = record});
  }
}

void ModuleManager::Stored(StepContext& step, ModuleId id, CompileId compile, const absl::Status& status) {
  Module* const module = table_.Find(id);
  if (module == nullptr || module->compile != compile || module->state != ModuleState::kStoring) return;
  step.Emit(EndPlace(*module));
  const RequestId storer = module->storer;
  if (storer.channel) {
    core_.requests.Answer(step, storer, status.ok() ? absl::StatusOr<Response>(StoreModuleResult()) : status);
  }
  if (!status.ok()) {
    table_.Count(module->record.tenant, &ModuleCounts::failed);
    table_.EndCompile(*module);
    return PassOn(step, *module);
  }
  table_.Ready(*module);
  table_.Touch(*module, step.now);
  table_.Count(module->record.tenant, &ModuleCounts::stored);
  Serve(step, *module);
}

void ModuleManager::Loaded(StepContext& step, ModuleId id, const absl::Status& status) {
  Module* const module = table_.Find(id);
  if (module == nullptr || module->state != ModuleState::kLoading) return;
  if (status.ok()) {
    table_.Ready(*module);
    return Serve(step, *module);
  }
  if (!absl::IsDataLoss(status)) {
    // A later read may succeed; meanwhile each waiter compiles on its own.
    module->state = ModuleState::kOnDisk;
    while (const std::optional<RequestId> request = table_.TakeWaiter(*module)) {
      core_.requests.Answer(step, *request, status);
    }
    return;
  }
  table_.Count(module->record.tenant, &ModuleCounts::corrupt);
  Drop(step, *module);
  PassOn(step, *module);
}

void ModuleManager::Serve(StepContext& step, Module& module) {
  while (const std::optional<RequestId> request = table_.TakeWaiter(module)) GiveTo(step, module, *request);
}

void ModuleManager::PassOn(StepContext& step, Module& module) {
  if (const std::optional<RequestId> request = table_.TakeWaiter(module)) {
    module.record.create_time = step.now;
    return LetCompile(step, module, *request);
  }
  table_.Erase(module);
}

void ModuleManager::EndCompile(StepContext& step, Module& module) {
  table_.Count(module.record.tenant, &ModuleCounts::failed);
  step.Emit(EndPlace(module));
  table_.EndCompile(module);
  PassOn(step, module);
}

void ModuleManager::GiveUp(StepContext& step, Module& module, const absl::Status& why) {
  step.Emit(EndPlace(module));
  while (const std::optional<RequestId> request = table_.TakeWaiter(module)) core_.requests.Answer(step, *request, why);
  table_.Erase(module);
}

void ModuleManager::Drop(StepContext& step, const Module& module) {
  step.Emit(ModuleWork{.what = ModuleWork::What::kDrop, .module = module.id, .record = module.record});
}

absl::Status ModuleManager::FreeCapacity(StepContext& step, const Tenant& tenant, uint64_t modules, Bytes bytes) {
  const auto leaving = table_.PlanCapacity(tenant, modules, bytes);
  if (!leaving.has_value()) {
    const ModuleUsage own = table_.Usage(&tenant);
    return AtLimit("module_bytes", own.bytes.count() + bytes.count(), own.limit.count());
  }
  for (const ModuleId id : *leaving) {
    Module& module = *table_.Find(id);
    table_.Count(module.record.tenant, &ModuleCounts::evicted);
    Drop(step, module);
    table_.Erase(module);
  }
  return absl::OkStatus();
}

absl::Status ModuleManager::MayCompile(const Tenant& tenant) const {
  SharedCount places("compiles", table_.limits().compiles, 0);
  table_.CountCompiles(&places);
  const uint64_t own = places.CountOf(UserOf(tenant));
  const uint64_t limit = table_.limits().compiles_per_user;
  if (own >= limit) return AtLimit("compiles_per_user", own, limit);
  return places.Check({.user = UserOf(tenant)});
}

absl::Status ModuleManager::MayWait(const Tenant& tenant) const {
  const uint64_t waiters = table_.WaitersOf(UserOf(tenant));
  const uint64_t limit = table_.limits().waiters_per_user;
  return waiters < limit ? absl::OkStatus() : AtLimit("module_waiters_per_user", waiters, limit);
}

void ModuleManager::EndCompilesOf(StepContext& step, ChannelId channel) {
  for (const ModuleId id : table_.CompiledBy(channel)) EndCompile(step, *table_.Find(id));
}

bool ModuleManager::Undo(StepContext& step, const ObtainModuleResult& result) {
  Module* const module = result.compile ? table_.FindByCompile(result.compile) : nullptr;
  if (module == nullptr || module->state != ModuleState::kCompiling) return false;
  EndCompile(step, *module);
  return true;
}

bool ModuleManager::SetDeadline(const RequestId& request, const WaitTicket&, absl::Time deadline) {
  table_.SetDeadline(request, deadline);
  return true;
}

bool ModuleManager::OutlivesCall(const RequestId& request) {
  const Module* const module = table_.FindByRequest(request);
  return module != nullptr && module->storer == request;
}

void ModuleManager::Expire(StepContext& step) {
  while (const std::optional<RequestId> request = table_.FindLateWaiter(step.now)) {
    const absl::Status late = TimedOut(*table_.FindByRequest(*request));
    table_.Leave(*request);
    core_.requests.Answer(step, *request, late);
  }
  while (Module* const module = table_.FindLateCompile(step.now)) EndCompile(step, *module);
}

ModuleView ModuleManager::ViewOf(const Module& module) {
  return {.id = module.id,
          .record = module.record,
          .state = module.state,
          .use_time = module.use_time,
          .hits = module.hits,
          .waiters = module.waiters.size(),
          .expires = module.expires};
}

absl::Status ModuleManager::CheckInvariants() const {
  BERTH_RETURN_IF_ERROR(table_.CheckInvariants());
  absl::Status status;
  uint64_t pending = 0;
  table_.ForEachAfter(ModuleId(), [&](const Module& module) {
    if (module.state == ModuleState::kCompiling) {
      const Channel* const compiler = core_.sessions.table().FindChannel(module.compiler);
      if (compiler == nullptr || compiler->hung_up) status = absl::InternalError("a compiling module has no compiler");
    }
    for (const RequestId& request : module.waiters) {
      if (!core_.requests.pending().contains(request))
        status = absl::InternalError("a module has a waiter without a request");
    }
    pending += module.waiters.size() + (module.storer.channel ? 1 : 0);
    return true;
  });
  BERTH_RETURN_IF_ERROR(status);
  uint64_t placed = 0;
  for (const auto& [request, open] : core_.requests.pending()) {
    placed += open.place == this ? 1 : 0;
  }
  return placed == pending ? absl::OkStatus() : absl::InternalError("a request waits for a module without need");
}

// Compiled modules: requests, reports of the module store, and views. The steps are in module_manager.cc.

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
