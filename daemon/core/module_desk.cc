#include "daemon/core/module_desk.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

// Who does not wait for a compile waits for a disk all the same.
constexpr absl::Duration kLoadPatience = absl::Seconds(1);

absl::Status AtLimit(absl::string_view what, uint64_t current, uint64_t limit) {
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                {{"what", what}, {"current", current}, {"limit", limit}});
}

absl::Status TimedOut(const Module& module) {
  return Refuse(Reason::kWaitTimedOut, "{kind} {id}: its compiling was waited for too long",
                {{"kind", "module"}, {"id", ToHex(module.record.key)}});
}

}  // namespace

void ModuleDesk::Obtain(const Step& step, const RequestId& request, const Session& session,
                        const Channel& channel, const ObtainModuleRequest& asked) {
  const Tenant& tenant = session.tenant;
  const auto refuse = [&](const absl::Status& status) { core_->Answer(step, request, status); };
  if (table_.limits().total.count() == 0) {
    return refuse(Refuse(Reason::kUnsupported, "the daemon keeps no {capability}: its configuration says so",
                         {{"capability", "compiled modules"}}));
  }
  if (const absl::Status room = core_->MayDeliver(channel); !room.ok()) return refuse(room);
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
    if (const absl::Status room = MakeRoom(step, tenant, 1, Bytes()); !room.ok()) return refuse(room);
    Module& fresh = table_.Add(ModuleRecord{.tenant = tenant,
                                            .key = asked.key,
                                            .architecture = asked.architecture,
                                            .compiler = asked.compiler,
                                            .label = asked.label,
                                            .create_time = step.now},
                               ModuleState::kCompiling, step.now);
    return LetCompile(step, fresh, request);
  }
  const bool kept = module->state == ModuleState::kOnDisk || module->state == ModuleState::kLoading;
  if (asked.deadline <= step.now && !kept) return refuse(TimedOut(*module));
  if (const absl::Status may = MayWait(tenant); !may.ok()) return refuse(may);
  if (module->state == ModuleState::kOnDisk) {
    module->state = ModuleState::kLoading;
    core_->Emit(step, ModuleWork{.what = ModuleWork::What::kLoad, .module = module->id, .record = module->record});
  } else if (!kept) {
    table_.Count(tenant, &ModuleCounts::waits);
  }
  table_.Wait(*module, request, kept ? std::max(asked.deadline, step.now + kLoadPatience) : asked.deadline);
  core_->pending_.at(request).place = module->id;
}

void ModuleDesk::GiveTo(const Step& step, Module& module, const RequestId& request) {
  ++module.hits;
  table_.Count(module.record.tenant, &ModuleCounts::hits);
  table_.Touch(module, step.now);
  std::vector<Deliver> sends;
  core_->mailboxes_.Post(Deliver{.channel = request.channel,
                                 .delivery = {.what = attach::DeliveryKind::kModule,
                                              .sequence = request.sequence,
                                              .block = module.id.value()},
                                 .read_only = true},
                         &sends);
  core_->SendAll(step, std::move(sends));
  core_->Answer(step, request,
                Response(ObtainModuleResult{
                    .module = module.id, .bytes = module.record.bytes, .content = module.record.content}));
}

void ModuleDesk::LetCompile(const Step& step, Module& module, const RequestId& request) {
  table_.Count(module.record.tenant, &ModuleCounts::misses);
  const absl::Time expires = step.now + table_.limits().compile_patience;
  table_.StartCompile(module, request.channel, expires);
  core_->Emit(step, ModuleWork{.what = ModuleWork::What::kMakePlace, .compile = module.compile});
  std::vector<Deliver> sends;
  core_->mailboxes_.Post(Deliver{.channel = request.channel,
                                 .delivery = {.what = attach::DeliveryKind::kModulePlace,
                                              .sequence = request.sequence,
                                              .block = module.compile.value()}},
                         &sends);
  core_->SendAll(step, std::move(sends));
  core_->Answer(step, request,
                Response(ObtainModuleResult{.module = module.id,
                                            .compile = module.compile,
                                            .bytes = table_.limits().largest,
                                            .expires = expires}));
}

absl::StatusOr<Module*> ModuleDesk::FindCompiled(const Channel& channel, CompileId compile) {
  Module* const module = table_.FindByCompile(compile);
  if (module != nullptr && module->compiler == channel.id && module->state == ModuleState::kCompiling) {
    return module;
  }
  return Refuse(Reason::kNotFound, "no {kind} {id} of this process, or not any more",
                {{"kind", "right to compile"}, {"id", compile.value()}});
}

void ModuleDesk::Store(const Step& step, const RequestId& request, const Channel& channel,
                       const StoreModuleRequest& asked) {
  const absl::StatusOr<Module*> found = FindCompiled(channel, asked.compile);
  if (!found.ok()) return core_->Answer(step, request, found.status());
  Module& module = **found;
  absl::Status room;
  if (asked.bytes.count() == 0 || asked.content.empty()) {
    room = Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "bytes"}, {"value", asked.bytes.count()}, {"limit", 1}});
  } else if (asked.bytes > table_.limits().largest) {
    room = AtLimit("bytes_per_module", asked.bytes.count(), table_.limits().largest.count());
  } else {
    room = MakeRoom(step, module.record.tenant, 0, asked.bytes);
  }
  if (!room.ok()) {
    // The next one's would have no room either: each compiles for itself.
    table_.Count(module.record.tenant, &ModuleCounts::failed);
    core_->Answer(step, request, room);
    return GiveUp(step, module, room);
  }
  table_.StartStore(module, asked.bytes, asked.content, request);
  core_->pending_.at(request).place = module.id;
  core_->Emit(step, ModuleWork{.what = ModuleWork::What::kStore,
                               .module = module.id,
                               .compile = module.compile,
                               .record = module.record});
}

void ModuleDesk::Abandon(const Step& step, const RequestId& request, const Channel& channel,
                         const AbandonModuleRequest& asked) {
  const absl::StatusOr<Module*> module = FindCompiled(channel, asked.compile);
  if (!module.ok()) return core_->Answer(step, request, module.status());
  core_->Answer(step, request, Response(AbandonModuleResult()));
  if (asked.error.empty()) return EndCompile(step, **module);
  table_.Count((*module)->record.tenant, &ModuleCounts::failed);
  GiveUp(step, **module,
         Refuse(Reason::kInvalidField, "{field} does not compile for {limit}: {value}",
                {{"field", "source"}, {"limit", (*module)->record.architecture}, {"value", asked.error}}));
}

void ModuleDesk::Restore(const Step& step, const ModuleRecord& record) {
  const bool known = table_.FindByKey(record.tenant, record.key) != nullptr;
  // Where there is less room than there was, what was used longer ago leaves.
  if (!known && MakeRoom(step, record.tenant, 1, record.bytes).ok()) {
    table_.Add(record, ModuleState::kOnDisk, record.create_time);
  } else {
    core_->Emit(step, ModuleWork{.what = ModuleWork::What::kDrop, .record = record});
  }
}

void ModuleDesk::Stored(const Step& step, ModuleId id, CompileId compile, const absl::Status& status) {
  Module* const module = table_.Find(id);
  if (module == nullptr || module->compile != compile || module->state != ModuleState::kStoring) return;
  core_->Emit(step, ModuleWork{.what = ModuleWork::What::kEndPlace, .compile = compile});
  const RequestId storer = module->storer;
  if (storer.channel) {
    core_->Answer(step, storer, status.ok() ? absl::StatusOr<Response>(StoreModuleResult()) : status);
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

void ModuleDesk::Loaded(const Step& step, ModuleId id, const absl::Status& status) {
  Module* const module = table_.Find(id);
  if (module == nullptr || module->state != ModuleState::kLoading) return;
  if (status.ok()) {
    table_.Ready(*module);
    return Serve(step, *module);
  }
  if (!absl::IsDataLoss(status)) {
    // It may be read another time; meanwhile who waits compiles for himself.
    module->state = ModuleState::kOnDisk;
    while (const std::optional<RequestId> request = table_.TakeWaiter(*module)) {
      core_->Answer(step, *request, status);
    }
    return;
  }
  table_.Count(module->record.tenant, &ModuleCounts::corrupt);
  Drop(step, *module);
  PassOn(step, *module);
}

void ModuleDesk::Serve(const Step& step, Module& module) {
  while (const std::optional<RequestId> request = table_.TakeWaiter(module)) GiveTo(step, module, *request);
}

void ModuleDesk::PassOn(const Step& step, Module& module) {
  if (const std::optional<RequestId> request = table_.TakeWaiter(module)) {
    module.record.create_time = step.now;
    return LetCompile(step, module, *request);
  }
  table_.Erase(module);
}

void ModuleDesk::EndCompile(const Step& step, Module& module) {
  table_.Count(module.record.tenant, &ModuleCounts::failed);
  core_->Emit(step, ModuleWork{.what = ModuleWork::What::kEndPlace, .compile = module.compile});
  table_.EndCompile(module);
  PassOn(step, module);
}

void ModuleDesk::GiveUp(const Step& step, Module& module, const absl::Status& why) {
  core_->Emit(step, ModuleWork{.what = ModuleWork::What::kEndPlace, .compile = module.compile});
  while (const std::optional<RequestId> request = table_.TakeWaiter(module)) core_->Answer(step, *request, why);
  table_.Erase(module);
}

void ModuleDesk::Drop(const Step& step, const Module& module) {
  core_->Emit(step,
              ModuleWork{.what = ModuleWork::What::kDrop, .module = module.id, .record = module.record});
}

absl::Status ModuleDesk::MakeRoom(const Step& step, const Tenant& tenant, uint64_t modules, Bytes bytes) {
  const auto leaving = table_.PlanRoom(tenant, modules, bytes);
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

absl::Status ModuleDesk::MayCompile(const Tenant& tenant) const {
  const uint64_t compiles = table_.CompilesOf(tenant);
  const uint64_t limit = table_.limits().compiles_per_tenant;
  return compiles < limit ? absl::OkStatus() : AtLimit("compiles_per_tenant", compiles, limit);
}

absl::Status ModuleDesk::MayWait(const Tenant& tenant) const {
  const uint64_t waiters = table_.WaitersOf(tenant);
  const uint64_t limit = table_.limits().waiters_per_tenant;
  return waiters < limit ? absl::OkStatus() : AtLimit("module_waiters_per_tenant", waiters, limit);
}

void ModuleDesk::EndCompilesOf(const Step& step, ChannelId channel) {
  for (const ModuleId id : table_.CompiledBy(channel)) EndCompile(step, *table_.Find(id));
}

bool ModuleDesk::Undo(const Step& step, const ObtainModuleResult& result) {
  Module* const module = result.compile ? table_.FindByCompile(result.compile) : nullptr;
  if (module == nullptr || module->state != ModuleState::kCompiling) return false;
  EndCompile(step, *module);
  return true;
}

bool ModuleDesk::Stores(const RequestId& request) {
  const Module* const module = table_.FindByRequest(request);
  return module != nullptr && module->storer == request;
}

void ModuleDesk::Expire(const Step& step) {
  while (const std::optional<RequestId> request = table_.FindLateWaiter(step.now)) {
    const absl::Status late = TimedOut(*table_.FindByRequest(*request));
    table_.Leave(*request);
    core_->Answer(step, *request, late);
  }
  while (Module* const module = table_.FindLateCompile(step.now)) EndCompile(step, *module);
}

ModuleView ModuleDesk::ViewOf(const Module& module) {
  return {.id = module.id,
          .record = module.record,
          .state = module.state,
          .use_time = module.use_time,
          .hits = module.hits,
          .waiters = module.waiters.size(),
          .expires = module.expires};
}

absl::Status ModuleDesk::CheckBooks() const {
  BERTH_RETURN_IF_ERROR(table_.CheckBooks());
  absl::Status status;
  uint64_t pending = 0;
  table_.ForEachAfter(ModuleId(), [&](const Module& module) {
    if (module.state == ModuleState::kCompiling) {
      const Channel* const compiler = core_->sessions_.FindChannel(module.compiler);
      if (compiler == nullptr || compiler->hung_up) status = absl::InternalError("nobody compiles a module");
    }
    for (const RequestId& request : module.waiters) {
      if (!core_->pending_.contains(request)) status = absl::InternalError("a module is waited for by no request");
    }
    pending += module.waiters.size() + (module.storer.channel ? 1 : 0);
    return true;
  });
  BERTH_RETURN_IF_ERROR(status);
  uint64_t placed = 0;
  for (const auto& [request, open] : core_->pending_) {
    placed += std::holds_alternative<ModuleId>(open.place) ? 1 : 0;
  }
  return placed == pending ? absl::OkStatus() : absl::InternalError("a request waits for a module in vain");
}

}  // namespace berth::core
