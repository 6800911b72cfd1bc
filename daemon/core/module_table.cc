#include "daemon/core/module_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/core/invariant.h"

namespace berth::core {

Module* ModuleTable::Find(ModuleId id) {
  const auto found = modules_.find(id);
  return found == modules_.end() ? nullptr : &found->second;
}

Module* ModuleTable::FindByKey(const Tenant& tenant, const Digest& key) {
  const auto found = by_key_.find(std::pair(tenant, key));
  return found == by_key_.end() ? nullptr : Find(found->second);
}

Module* ModuleTable::FindByCompile(CompileId compile) {
  const auto found = compiles_.find(compile);
  return found == compiles_.end() ? nullptr : Find(found->second);
}

Module* ModuleTable::FindByRequest(const RequestId& request) {
  if (const auto waiting = waiting_.find(request); waiting != waiting_.end()) {
    return Find(waiting->second.module);
  }
  for (const auto& [compile, id] : compiles_) {
    if (Module* const module = Find(id); module->storer == request) return module;
  }
  return nullptr;
}

Module& ModuleTable::Add(ModuleRecord record, ModuleState state, absl::Time now) {
  const ModuleId id(++last_id_);
  const bool fresh = by_key_.emplace(std::pair(record.tenant, record.key), id).second;
  BERTH_INVARIANT(fresh);
  Module& module = modules_[id];
  module.id = id;
  module.record = std::move(record);
  module.state = state;
  ++tenants_[module.record.tenant].modules;
  if (module.charged()) Charge(module);
  Touch(module, now);
  return module;
}

void ModuleTable::Erase(Module& module) {
  BERTH_INVARIANT(module.waiters.empty());
  if (module.compile) {
    EndCompile(module);
  } else if (module.charged()) {
    Uncharge(module);
  }
  by_key_.erase(std::pair(module.record.tenant, module.record.key));
  const auto tenant = tenants_.find(module.record.tenant);
  if (--tenant->second.modules == 0) tenants_.erase(tenant);
  modules_.erase(module.id);
}

void ModuleTable::Charge(const Module& module) {
  TenantPart& part = tenants_.at(module.record.tenant);
  part.bytes = Bytes(part.bytes.count() + module.record.bytes.count());
  bytes_ = Bytes(bytes_.count() + module.record.bytes.count());
}

void ModuleTable::Uncharge(const Module& module) {
  TenantPart& part = tenants_.at(module.record.tenant);
  part.bytes = Bytes(part.bytes.count() - module.record.bytes.count());
  bytes_ = Bytes(bytes_.count() - module.record.bytes.count());
}

void ModuleTable::StartCompile(Module& module, ChannelId compiler, absl::Time expires) {
  BERTH_INVARIANT(!module.compile);
  if (module.charged()) Uncharge(module);
  module.state = ModuleState::kCompiling;
  module.record.bytes = Bytes();
  module.record.content = Digest();
  module.compile = CompileId(++last_id_);
  module.compiler = compiler;
  module.expires = expires;
  compiles_.emplace(module.compile, module.id);
  expiries_.emplace(expires, module.compile);
}

void ModuleTable::EndCompile(Module& module) {
  if (module.charged()) Uncharge(module);
  module.state = ModuleState::kCompiling;
  expiries_.erase({module.expires, module.compile});
  compiles_.erase(module.compile);
  module.compile = CompileId();
  module.compiler = ChannelId();
  module.storer = RequestId();
  module.expires = absl::InfiniteFuture();
}

void ModuleTable::StartStore(Module& module, Bytes bytes, const Digest& content, const RequestId& storer) {
  BERTH_INVARIANT(module.state == ModuleState::kCompiling && module.compile);
  module.record.bytes = bytes;
  module.record.content = content;
  module.state = ModuleState::kStoring;
  module.storer = storer;
  // It is the broker's to do now, which is not late.
  expiries_.erase({module.expires, module.compile});
  module.expires = absl::InfiniteFuture();
  Charge(module);
}

void ModuleTable::Ready(Module& module) {
  BERTH_INVARIANT(module.state == ModuleState::kStoring || module.state == ModuleState::kLoading);
  if (module.compile) compiles_.erase(module.compile);
  module.compile = CompileId();
  module.compiler = ChannelId();
  module.storer = RequestId();
  module.state = ModuleState::kReady;
}

void ModuleTable::Touch(Module& module, absl::Time now) {
  module.use = ++last_use_;
  module.use_time = now;
}

void ModuleTable::Wait(Module& module, const RequestId& request, absl::Time deadline) {
  const bool fresh = waiting_.emplace(request, Waiting{.module = module.id, .deadline = deadline}).second;
  BERTH_INVARIANT(fresh);
  deadlines_.emplace(deadline, request);
  module.waiters.push_back(request);
}

void ModuleTable::Leave(const RequestId& request) {
  Module* const module = FindByRequest(request);
  if (module == nullptr) return;
  if (module->storer == request) {
    module->storer = RequestId();
    return;
  }
  const auto waiting = waiting_.find(request);
  deadlines_.erase({waiting->second.deadline, request});
  waiting_.erase(waiting);
  std::erase(module->waiters, request);
}

std::optional<RequestId> ModuleTable::TakeWaiter(Module& module) {
  if (module.waiters.empty()) return std::nullopt;
  const RequestId request = module.waiters.front();
  Leave(request);
  return request;
}

void ModuleTable::SetDeadline(const RequestId& request, absl::Time deadline) {
  const auto waiting = waiting_.find(request);
  if (waiting == waiting_.end()) return;
  deadlines_.erase({waiting->second.deadline, request});
  waiting->second.deadline = deadline;
  deadlines_.emplace(deadline, request);
}

std::optional<RequestId> ModuleTable::FindLateWaiter(absl::Time now) const {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return std::nullopt;
  return deadlines_.begin()->second;
}

Module* ModuleTable::FindLateCompile(absl::Time now) {
  if (expiries_.empty() || expiries_.begin()->first > now) return nullptr;
  return FindByCompile(expiries_.begin()->second);
}

absl::Time ModuleTable::next_deadline() const {
  return std::min(deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first,
                  expiries_.empty() ? absl::InfiniteFuture() : expiries_.begin()->first);
}

std::optional<std::vector<ModuleId>> ModuleTable::PlanRoom(const Tenant& tenant, uint64_t modules,
                                                           Bytes bytes) const {
  if (bytes > limits_.tenant || bytes > limits_.total) return std::nullopt;
  const auto own = tenants_.find(tenant);
  uint64_t own_bytes = own == tenants_.end() ? 0 : own->second.bytes.count();
  uint64_t all_bytes = bytes_.count();
  uint64_t count = modules_.size() + modules;
  const auto fits = [&](uint64_t charged, Bytes limit) { return charged + bytes.count() <= limit.count(); };
  const auto all_fit = [&] {
    return fits(own_bytes, limits_.tenant) && fits(all_bytes, limits_.total) && count <= limits_.modules;
  };
  // As a rule, which needs no order.
  if (all_fit()) return std::vector<ModuleId>();
  std::vector<const Module*> oldest;
  for (const auto& [id, module] : modules_) {
    if (module.settled()) oldest.push_back(&module);
  }
  std::sort(oldest.begin(), oldest.end(), [](const Module* a, const Module* b) { return a->use < b->use; });
  std::vector<ModuleId> leaving;
  const auto leave = [&](const Module& module) {
    leaving.push_back(module.id);
    if (module.record.tenant == tenant) own_bytes -= module.record.bytes.count();
    all_bytes -= module.record.bytes.count();
    --count;
  };
  std::vector<const Module*> others;
  for (const Module* const module : oldest) {
    if (module->record.tenant == tenant && !fits(own_bytes, limits_.tenant)) {
      leave(*module);
    } else {
      others.push_back(module);
    }
  }
  for (const Module* const module : others) {
    if (fits(all_bytes, limits_.total) && count <= limits_.modules) break;
    leave(*module);
  }
  if (!all_fit()) return std::nullopt;
  return leaving;
}

uint64_t ModuleTable::CompilesOf(const Tenant& tenant) const {
  uint64_t compiles = 0;
  for (const auto& [compile, id] : compiles_) compiles += modules_.at(id).record.tenant == tenant ? 1 : 0;
  return compiles;
}

uint64_t ModuleTable::WaitersOf(const Tenant& tenant) const {
  uint64_t waiters = 0;
  for (const auto& [id, module] : modules_) {
    if (module.record.tenant == tenant) waiters += module.waiters.size();
  }
  return waiters;
}

std::vector<ModuleId> ModuleTable::CompiledBy(ChannelId channel) const {
  std::vector<ModuleId> ids;
  for (const auto& [compile, id] : compiles_) {
    const Module& module = modules_.at(id);
    if (module.compiler == channel && module.state == ModuleState::kCompiling) ids.push_back(id);
  }
  return ids;
}

void ModuleTable::Count(const Tenant& tenant, uint64_t ModuleCounts::*what) {
  ++(counts_.*what);
  const auto part = tenants_.find(tenant);
  if (part != tenants_.end()) ++(part->second.counts.*what);
}

ModuleUsage ModuleTable::Usage(const Tenant* tenant) const {
  if (tenant == nullptr) {
    return {.counts = counts_, .modules = modules_.size(), .bytes = bytes_, .limit = limits_.total};
  }
  const auto part = tenants_.find(*tenant);
  if (part == tenants_.end()) return {.limit = limits_.tenant};
  return {.counts = part->second.counts,
          .modules = part->second.modules,
          .bytes = part->second.bytes,
          .limit = limits_.tenant};
}

void ModuleTable::ForEachAfter(ModuleId after, absl::FunctionRef<bool(const Module&)> visit) const {
  for (auto it = modules_.upper_bound(after); it != modules_.end(); ++it) {
    if (!visit(it->second)) return;
  }
}

absl::Status ModuleTable::CheckBooks() const {
  const auto broken = [](absl::string_view what) {
    return absl::InternalError(absl::StrCat("modules: ", what));
  };
  std::map<Tenant, std::pair<uint64_t, uint64_t>> counted;
  uint64_t bytes = 0, waiters = 0, compiles = 0, expiries = 0;
  for (const auto& [id, module] : modules_) {
    auto& [modules_of, bytes_of] = counted[module.record.tenant];
    ++modules_of;
    if (module.charged()) bytes_of += module.record.bytes.count();
    if (module.charged()) bytes += module.record.bytes.count();
    waiters += module.waiters.size();
    const auto key = by_key_.find(std::pair(module.record.tenant, module.record.key));
    if (key == by_key_.end() || key->second != id) return broken("one is not found by its key");
    const bool busy = module.state == ModuleState::kCompiling || module.state == ModuleState::kStoring;
    if (busy != static_cast<bool>(module.compile)) return broken("one is compiled by nobody, or by too many");
    if (module.settled() && !module.waiters.empty()) return broken("somebody waits for one that is there");
    compiles += module.compile ? 1 : 0;
    expiries += module.state == ModuleState::kCompiling ? 1 : 0;
    for (const RequestId& request : module.waiters) {
      const auto waiting = waiting_.find(request);
      if (waiting == waiting_.end() || waiting->second.module != id) return broken("a waiter is lost");
    }
  }
  if (by_key_.size() != modules_.size()) return broken("a key has no module");
  if (compiles != compiles_.size() || expiries != expiries_.size()) return broken("a compile is miscounted");
  if (waiters != waiting_.size() || waiters != deadlines_.size()) return broken("a waiter is miscounted");
  if (counted.size() != tenants_.size()) return broken("a tenant is counted that has none");
  for (const auto& [tenant, part] : tenants_) {
    const auto& [modules_of, bytes_of] = counted.at(tenant);
    if (modules_of != part.modules || bytes_of != part.bytes.count()) return broken("a tenant's are miscounted");
    if (part.bytes > limits_.tenant) return broken("a tenant has more than it may");
  }
  if (bytes != bytes_.count()) return broken("bytes are miscounted");
  if (bytes_ > limits_.total) return broken("more is kept than may be");
  return absl::OkStatus();
}

}  // namespace berth::core
