// ModuleTable: the compiled modules that the node keeps, who compiles one, who waits for it, and what leaves when
// room is needed: what was used longest ago, first of the tenant that has its share, then of anybody.
//
// Books only: bytes and disk are the broker's, and what follows from a change is ModuleDesk's.
// Pure and thread-compatible.

#ifndef DAEMON_CORE_MODULE_TABLE_H_
#define DAEMON_CORE_MODULE_TABLE_H_

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
#include "daemon/core/module_types.h"
#include "daemon/core/request_memory.h"

namespace berth::core {

struct Module {
  ModuleId id;
  // Its bytes and content are set from kStoring on.
  ModuleRecord record;
  ModuleState state = ModuleState::kCompiling;
  // Of kCompiling and kStoring: who compiles it, and the request that stores it.
  CompileId compile;
  ChannelId compiler;
  absl::Time expires = absl::InfiniteFuture();
  RequestId storer;
  // First come, first served.
  std::deque<RequestId> waiters;
  absl::Time use_time;
  // Rises with each use of any module.
  uint64_t use = 0;
  uint64_t hits = 0;

  // Whether its bytes are charged.
  bool charged() const { return state != ModuleState::kCompiling; }
  // Whether it may leave to make room.
  bool settled() const { return state == ModuleState::kReady || state == ModuleState::kOnDisk; }
};

class ModuleTable {
 public:
  // Ids rise from `last_id` on.
  explicit ModuleTable(const ModuleLimits& limits, uint64_t last_id = 0) : limits_(limits), last_id_(last_id) {}

  // Null for one that is not there.
  Module* Find(ModuleId id);
  Module* FindByKey(const Tenant& tenant, const Digest& key);
  Module* FindByCompile(CompileId compile);
  // The one that the request waits for, or stores; null for none.
  Module* FindByRequest(const RequestId& request);

  // Adds a module that is compiled from now on, or, by its record, one that is on disk.
  // Requires: its tenant has none of that key.
  Module& Add(ModuleRecord record, ModuleState state, absl::Time now);
  // Requires: nobody waits for it.
  void Erase(Module& module);

  void StartCompile(Module& module, ChannelId compiler, absl::Time expires);
  // Nobody compiles it any more; what was charged is not.
  void EndCompile(Module& module);
  // What was compiled is being taken over for `storer`: it is charged from now on. Requires: kCompiling.
  void StartStore(Module& module, Bytes bytes, const Digest& content, const RequestId& storer);
  // It is whole. Requires: kStoring or kLoading.
  void Ready(Module& module);
  void Touch(Module& module, absl::Time now);

  void Wait(Module& module, const RequestId& request, absl::Time deadline);
  // The request waits, or stores, no more; ignored if it did neither.
  void Leave(const RequestId& request);
  // Takes who has waited longest; nothing if nobody waits.
  std::optional<RequestId> TakeWaiter(Module& module);
  void SetDeadline(const RequestId& request, absl::Time deadline);
  // A waiter, or a compile, whose time is over at `now`; nothing for none.
  std::optional<RequestId> FindLateWaiter(absl::Time now) const;
  Module* FindLateCompile(absl::Time now);
  absl::Time next_deadline() const;

  // What has to leave so that `tenant` may have so many modules and bytes more; nothing if no leaving would do.
  std::optional<std::vector<ModuleId>> PlanRoom(const Tenant& tenant, uint64_t modules, Bytes bytes) const;

  uint64_t CompilesOf(const Tenant& tenant) const;
  uint64_t WaitersOf(const Tenant& tenant) const;
  // What that channel compiles, not what it has handed in.
  std::vector<ModuleId> CompiledBy(ChannelId channel) const;
  // The counts of a tenant go with its last module.
  void Count(const Tenant& tenant, uint64_t ModuleCounts::*what);

  // So many of nobody's.
  void NoteCorrupt(uint64_t count) { counts_.corrupt += count; }

  // Of one tenant, or of all.
  ModuleUsage Usage(const Tenant* tenant) const;
  // By id, those after `after`, until `visit` returns false.
  void ForEachAfter(ModuleId after, absl::FunctionRef<bool(const Module&)> visit) const;
  const ModuleLimits& limits() const { return limits_; }
  uint64_t waiting() const { return waiting_.size(); }
  // OK, or what is broken.
  absl::Status CheckBooks() const;

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

#endif  // DAEMON_CORE_MODULE_TABLE_H_
