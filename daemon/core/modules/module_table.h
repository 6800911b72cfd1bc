// ModuleTable: the compiled modules in the node's cache, their compiles, their waiters, and what to evict when capacity
// is needed. A tenant above its own byte limit loses its least recently used modules. Above the global limits, the user
// with the largest usage loses its least recently used modules. A user never loses a module to a user with more usage.
//
// Accounting only: the broker handles bytes and disk, and ModuleManager handles the consequences of a change. Pure and
// thread-compatible.

#ifndef DAEMON_CORE_MODULES_MODULE_TABLE_H_
#define DAEMON_CORE_MODULES_MODULE_TABLE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/requests/request_memory.h"
#include "daemon/core/types/module_types.h"
#include "daemon/core/types/shared_count.h"

namespace berth::core {

struct Module {
  ModuleId id;
  // `bytes` and `content` are set from kStoring on.
  ModuleRecord record;
  ModuleState state = ModuleState::kCompiling;
  // For kCompiling and kStoring: the compile, its channel, and the request that stores the result.
  CompileId compile;
  ChannelId compiler;
  absl::Time expires = absl::InfiniteFuture();
  RequestId storer;
  // Served in order of arrival.
  std::deque<RequestId> waiters;
  absl::Time use_time;
  // Rises with each use of any module.
  uint64_t use = 0;
  uint64_t hits = 0;

  // Returns whether the module's bytes are charged.
  bool charged() const { return state != ModuleState::kCompiling; }
  // Returns whether the module may be evicted.
  bool settled() const { return state == ModuleState::kReady || state == ModuleState::kOnDisk; }
};

class ModuleTable {
 public:
  // Assigns ids above `last_id`.
  explicit ModuleTable(const ModuleLimits& limits, uint64_t last_id = 0) : limits_(limits), last_id_(last_id) {}

  // Returns null if there is no such module.
  Module* Find(ModuleId id);
  Module* FindByKey(const Tenant& tenant, const Digest& key);
  Module* FindByCompile(CompileId compile);
  // Returns the module that the request waits for or stores; null if there is none.
  Module* FindByRequest(const RequestId& request);

  // Adds a module whose compile starts now, or a module on disk, described by its record. Requires: the tenant has no
  // module with that key.
  Module& Add(ModuleRecord record, ModuleState state, absl::Time now);
  // Requires: no request waits for it.
  void Erase(Module& module);

  void StartCompile(Module& module, ChannelId compiler, absl::Time expires);
  // Ends the compile; its charged bytes become free.
  void EndCompile(Module& module);
  // Starts to take over the compiled content for `storer`, and charges its bytes. Requires: kCompiling.
  void StartStore(Module& module, Bytes bytes, const Digest& content, const RequestId& storer);
  // Marks the module as complete. Requires: kStoring or kLoading.
  void Ready(Module& module);
  void Touch(Module& module, absl::Time now);

  void Wait(Module& module, const RequestId& request, absl::Time deadline);
  // Removes the request, which no longer waits or stores; ignored if it did neither.
  void Leave(const RequestId& request);
  // Removes and returns the request that has waited longest; empty if none waits.
  std::optional<RequestId> TakeWaiter(Module& module);
  void SetDeadline(const RequestId& request, absl::Time deadline);
  // Returns a waiter (FindLateWaiter) or a compile (FindLateCompile) whose deadline has passed at `now`; empty or null
  // if none.
  std::optional<RequestId> FindLateWaiter(absl::Time now) const;
  Module* FindLateCompile(absl::Time now);
  absl::Time next_deadline() const;

  // Returns the modules to evict so that `tenant` may have `modules` and `bytes` more; empty if no eviction suffices.
  std::optional<std::vector<ModuleId>> PlanCapacity(const Tenant& tenant, uint64_t modules, Bytes bytes) const;

  // Adds one place for each compile.
  void CountCompiles(SharedCount* places) const;
  uint64_t WaitersOf(uint32_t user) const;
  // Returns the modules that the channel compiles, without those that it has already stored.
  std::vector<ModuleId> CompiledBy(ChannelId channel) const;
  // Increments a counter. A tenant's counters end with its last module.
  void Count(const Tenant& tenant, uint64_t ModuleCounts::*what);

  // Adds corrupt modules that belong to no tenant.
  void RecordCorrupt(uint64_t count) { counts_.corrupt += count; }

  // Returns the usage of one tenant, or of all tenants if `tenant` is null.
  ModuleUsage Usage(const Tenant* tenant) const;
  // Visits modules with ids after `after`, by id, until `visit` returns false.
  void ForEachAfter(ModuleId after, absl::FunctionRef<bool(const Module&)> visit) const;
  const ModuleLimits& limits() const { return limits_; }
  uint64_t waiting() const { return waiting_.size(); }
  // Returns OK, or the violated invariant.
  absl::Status CheckInvariants() const;

 private:
  struct TenantPart {
    uint64_t modules = 0;
    Bytes bytes;
    ModuleCounts counts;
  };
  struct Waiting {
    ModuleId module;
    absl::Time deadline;
  };

  void Charge(const Module& module);
  void Uncharge(const Module& module);

  const ModuleLimits limits_;
  uint64_t last_id_;
  uint64_t last_use_ = 0;
  std::map<ModuleId, Module> modules_;
  absl::flat_hash_map<std::pair<Tenant, Digest>, ModuleId> by_key_;
  std::map<CompileId, ModuleId> compiles_;
  std::set<std::pair<absl::Time, CompileId>> expiries_;
  absl::flat_hash_map<RequestId, Waiting> waiting_;
  std::set<std::pair<absl::Time, RequestId>> deadlines_;
  std::map<Tenant, TenantPart> tenants_;
  Bytes bytes_;
  ModuleCounts counts_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MODULES_MODULE_TABLE_H_
