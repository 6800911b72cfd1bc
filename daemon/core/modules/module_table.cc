#include "daemon/core/modules/module_table.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "daemon/core/types/invariant.h"

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
  // The broker stores the content now, so the compile can no longer expire.
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

std::optional<std::vector<ModuleId>> ModuleTable::PlanCapacity(const Tenant& tenant, uint64_t modules,
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
  // The usual case, which needs no sorting.
  if (all_fit()) return std::vector<ModuleId>();
  // Usage of each user, and the modules that may be evicted, the least recently used last.
  struct UserPart {
    uint64_t modules = 0;
    uint64_t bytes = 0;
    std::vector<const Module*> settled;
  };
  std::map<uint32_t, UserPart> users;
  for (const auto& [id, module] : modules_) {
    UserPart& part = users[UserOf(module.record.tenant)];
    ++part.modules;
    part.bytes += module.charged() ? module.record.bytes.count() : 0;
    if (module.settled()) part.settled.push_back(&module);
  }
  for (auto& [user, part] : users) {
    std::sort(part.settled.begin(), part.settled.end(),
              [](const Module* a, const Module* b) { return a->use > b->use; });
  }
  const uint32_t requester = UserOf(tenant);
  UserPart& asking = users[requester];
  asking.modules += modules;
  asking.bytes += bytes.count();
  std::vector<ModuleId> leaving;
  const auto leave = [&](UserPart& part, std::vector<const Module*>::iterator at) {
    const Module& module = **at;
    leaving.push_back(module.id);
    --count;
    --part.modules;
    part.bytes -= module.record.bytes.count();
    all_bytes -= module.record.bytes.count();
    if (module.record.tenant == tenant) own_bytes -= module.record.bytes.count();
    part.settled.erase(at);
  };
  while (!fits(own_bytes, limits_.tenant)) {
    const auto own = std::find_if(asking.settled.rbegin(), asking.settled.rend(),
                                  [&](const Module* module) { return module->record.tenant == tenant; });
    if (own == asking.settled.rend()) return std::nullopt;
    leave(asking, std::prev(own.base()));
  }
  while (!all_fit()) {
    const uint64_t UserPart::*const measure = count > limits_.modules ? &UserPart::modules : &UserPart::bytes;
    // Selects the user with the largest usage; never a user with less usage than the requester.
    UserPart* most = asking.settled.empty() ? nullptr : &asking;
    for (auto& [user, part] : users) {
      if (part.settled.empty() || part.*measure < asking.*measure) continue;
      if (most == nullptr || part.*measure > most->*measure) most = &part;
    }
    if (most == nullptr) return std::nullopt;
    leave(*most, std::prev(most->settled.end()));
  }
  return leaving;
}

void ModuleTable::CountCompiles(SharedCount* places) const {
  for (const auto& [compile, id] : compiles_) places->Take({.user = UserOf(modules_.at(id).record.tenant)});
}

uint64_t ModuleTable::WaitersOf(uint32_t user) const {
  uint64_t waiters = 0;
  for (const auto& [id, module] : modules_) {
    if (UserOf(module.record.tenant) == user) waiters += module.waiters.size();
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

absl::Status ModuleTable::CheckInvariants() const {
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
    if (key == by_key_.end() || key->second != id) return broken("a module is not found by its key");
    const bool busy = module.state == ModuleState::kCompiling || module.state == ModuleState::kStoring;
    if (busy != static_cast<bool>(module.compile)) return broken("a module has no compiler, or too many");
    if (module.settled() && !module.waiters.empty()) return broken("a request waits for a stored module");
    compiles += module.compile ? 1 : 0;
    expiries += module.state == ModuleState::kCompiling ? 1 : 0;
    for (const RequestId& request : module.waiters) {
      const auto waiting = waiting_.find(request);
      if (waiting == waiting_.end() || waiting->second.module != id) return broken("a waiter is missing");
    }
  }
  if (by_key_.size() != modules_.size()) return broken("a key has no module");
  if (compiles != compiles_.size() || expiries != expiries_.size()) return broken("a compile is miscounted");
  if (waiters != waiting_.size() || waiters != deadlines_.size()) return broken("a waiter is miscounted");
  if (counted.size() != tenants_.size()) return broken("a tenant without modules is counted");
  for (const auto& [tenant, part] : tenants_) {
    const auto& [modules_of, bytes_of] = counted.at(tenant);
    if (modules_of != part.modules || bytes_of != part.bytes.count())
      return broken("a tenant's modules are miscounted");
    if (part.bytes > limits_.tenant) return broken("a tenant's modules exceed its limit");
  }
  if (bytes != bytes_.count()) return broken("bytes are miscounted");
  if (bytes_ > limits_.total) return broken("the stored modules exceed their limit");
  return absl::OkStatus();
}

}  // namespace berth::core
