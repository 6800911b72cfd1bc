// Compiled modules of the node's cache: requests, results and views. Meanings as in proto/berth/v1/module.proto.

#ifndef DAEMON_CORE_TYPES_MODULE_TYPES_H_
#define DAEMON_CORE_TYPES_MODULE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/time/time.h"
#include "common/digest.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/request_traits.h"

namespace berth::core {

// An entry in the cache, for one tenant's key; a key that is cached again gets a new id.
using ModuleId = Id<struct ModuleTag>;
// The right to compile one module, granted once.
using CompileId = Id<struct CompileTag>;

struct ModuleLimits {
  // Size limit of one module. NVRTC modules take a few megabytes at most.
  Bytes largest = MiB(32);
  // Size limits of all cached modules and of one tenant's modules. With `total` 0 nothing is cached.
  Bytes total = MiB(256);
  Bytes tenant = MiB(64);
  // Limit of cached modules. Each takes one fd, from the share of fds that clients may use.
  uint64_t modules = 1'024;
  // Limits of concurrent compiles of all users and of one user. Each compile has a place for its output, which may use
  // its full size.
  uint64_t compiles = 512;
  uint64_t compiles_per_user = 64;
  uint64_t waiters_per_user = 1'024;
  // Time after which a compile expires and the next waiter may compile.
  absl::Duration compile_patience = absl::Minutes(2);
};

// Values match the wire.
enum class ModuleState {
  // A process compiles the module.
  kCompiling = 1,
  // The broker is taking over the compiled content.
  kStoring = 2,
  // The module is on disk, and not verified yet.
  kOnDisk = 3,
  // The module is being read and verified.
  kLoading = 4,
  kReady = 5,
};

// The persisted part of a module.
struct ModuleRecord {
  Tenant tenant;
  Digest key;
  // Shown to people: target architecture, compiler, and label.
  std::string architecture;
  std::string compiler;
  std::string label;
  Bytes bytes;
  Digest content;
  absl::Time create_time;
};

struct ObtainModuleRequest {
  Digest key;
  std::string architecture;
  std::string compiler;
  std::string label;
  // Time at which a wait for another process's compile ends.
  absl::Time deadline = absl::InfiniteFuture();
  // Content digest that an earlier answer for the key named and that the client found wrong; empty if there is none.
  Digest distrusted;
};
void Payload(auto& add, const ObtainModuleRequest& request) {
  add(request.key, request.architecture, request.compiler, request.label, request.distrusted);
}

struct ObtainModuleResult {
  static constexpr size_t kResponseIndex = 21;

  ModuleId module;
  // Set if the caller must compile the module.
  CompileId compile;
  // Size of the module, or of the place for the output if the caller must compile it.
  Bytes bytes;
  // Empty if the caller must compile the module.
  Digest content;
  // Time from which the next waiter may compile the module.
  absl::Time expires;
};
template <typename Archive>
void Fields(Archive& archive, ObtainModuleResult& value) {
  archive(value.module, value.compile, value.bytes, value.content, value.expires);
}
bool Undo(const UndoStep& undo, const ObtainModuleResult& result);

struct StoreModuleRequest {
  CompileId compile;
  Bytes bytes;
  Digest content;
};
void Payload(auto& add, const StoreModuleRequest& request) { add(request.compile, request.bytes, request.content); }

struct StoreModuleResult {
  static constexpr size_t kResponseIndex = 22;
};
template <typename Archive>
void Fields(Archive&, StoreModuleResult&) {}
inline bool Undo(const UndoStep&, const StoreModuleResult&) { return false; }

struct AbandonModuleRequest {
  CompileId compile;
  // Why the source does not compile, which fails all waiters. Empty: the next waiter compiles.
  std::string error;
};
void Payload(auto& add, const AbandonModuleRequest& request) { add(request.compile, request.error); }

struct AbandonModuleResult {
  static constexpr size_t kResponseIndex = 23;
};
template <typename Archive>
void Fields(Archive&, AbandonModuleResult&) {}
inline bool Undo(const UndoStep&, const AbandonModuleResult&) { return false; }

struct ModuleCounts {
  uint64_t hits = 0;
  // Compiles begun.
  uint64_t misses = 0;
  // Requests that waited for another process's compile.
  uint64_t waits = 0;
  uint64_t stored = 0;
  // Compiles without a result: their process ended, timed out or gave up, or the source does not compile.
  uint64_t failed = 0;
  // Modules whose content did not match its recorded digest.
  uint64_t corrupt = 0;
  uint64_t evicted = 0;

  friend bool operator==(const ModuleCounts&, const ModuleCounts&) = default;
};

struct ModuleView {
  ModuleId id;
  ModuleRecord record;
  ModuleState state = ModuleState::kCompiling;
  absl::Time use_time;
  uint64_t hits = 0;
  uint64_t waiters = 0;
  // The process that compiles the module, and the end of its right; set for kCompiling.
  ProcessInfo compiling;
  absl::Time expires;
};

// Usage of the cache by the caller's tenant, or by all tenants.
struct ModuleUsage {
  ModuleCounts counts;
  uint64_t modules = 0;
  Bytes bytes;
  Bytes limit;
};

// ---- Kinds of requests (request_traits.h) ----------------------------------------------------------------

template <>
struct RequestTraits<ObtainModuleRequest> {
  using Result = ObtainModuleResult;
  static constexpr uint64_t kKind = 22;
};
template <>
struct RequestTraits<StoreModuleRequest> {
  using Result = StoreModuleResult;
  static constexpr uint64_t kKind = 23;
};
template <>
struct RequestTraits<AbandonModuleRequest> {
  using Result = AbandonModuleResult;
  static constexpr uint64_t kKind = 24;
};

using ModuleResults = ResultList<ObtainModuleResult, StoreModuleResult, AbandonModuleResult>;

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_MODULE_TYPES_H_
