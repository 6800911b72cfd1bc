// Compiled modules of the node's cache: what is asked of it, what it answers, and what it shows. Meanings as in
// proto/berth/v1/module.proto.

#ifndef DAEMON_CORE_MODULE_TYPES_H_
#define DAEMON_CORE_MODULE_TYPES_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/digest.h"
#include "common/ids.h"
#include "daemon/core/caller.h"

namespace berth::core {

// A place in the cache, for one tenant's key; drawn anew whenever the key comes back.
using ModuleId = Id<struct ModuleTag>;
// The right to compile one module, given once.
using CompileId = Id<struct CompileTag>;

struct ModuleLimits {
  // Of one module: NVRTC's own are a few megabytes at the most.
  Bytes largest = MiB(32);
  // Of all that are kept; nothing is kept where it is 0. And of one tenant's.
  Bytes total = MiB(256);
  Bytes tenant = MiB(64);
  // Each has an fd, as far as clients may have them.
  uint64_t modules = 1'024;
  // Each has a place to write to, which may fill up.
  uint64_t compiles_per_tenant = 64;
  uint64_t waiters_per_tenant = 1'024;
  // How long somebody may compile before the next may.
  absl::Duration compile_patience = absl::Minutes(2);
};

// The numbers are the wire's.
enum class ModuleState {
  // Somebody compiles it.
  kCompiling = 1,
  // It is being taken over.
  kStoring = 2,
  // It is on disk, and not looked at yet.
  kOnDisk = 3,
  // It is being read and looked at.
  kLoading = 4,
  kReady = 5,
};

// A module as it is kept over a restart.
struct ModuleRecord {
  Tenant tenant;
  Digest key;
  // For people: what it was compiled for, with what, and for what.
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
  // When who waits for another's compiling gives up.
  absl::Time deadline = absl::InfiniteFuture();
  // What it was given for the key before and found not to be what it is called; empty for nothing.
  Digest distrusted;
};

struct ObtainModuleResult {
  ModuleId module;
  // Set: the caller is to compile it.
  CompileId compile;
  // The module's; of the place to write it to, where it is to be compiled.
  Bytes bytes;
  // Empty where it is to be compiled.
  Digest content;
  // When the next may compile it.
  absl::Time expires;
};
template <typename Archive>
void Fields(Archive& archive, ObtainModuleResult& value) {
  archive(value.module, value.compile, value.bytes, value.content, value.expires);
}

struct StoreModuleRequest {
  CompileId compile;
  Bytes bytes;
  Digest content;
};

struct StoreModuleResult {};
template <typename Archive>
void Fields(Archive&, StoreModuleResult&) {}

struct AbandonModuleRequest {
  CompileId compile;
  // Why the source does not compile: nobody else shall try. Empty: the next shall.
  std::string error;
};

struct AbandonModuleResult {};
template <typename Archive>
void Fields(Archive&, AbandonModuleResult&) {}

struct ModuleCounts {
  uint64_t hits = 0;
  // Compiles begun.
  uint64_t misses = 0;
  // Who waited for another's compile.
  uint64_t waits = 0;
  uint64_t stored = 0;
  // Compiles that came to nothing: their process ended, took too long or gave up, or the source does not compile.
  uint64_t failed = 0;
  // Found not to be what they were stored as.
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
  // Who compiles it, until when; of kCompiling.
  ProcessInfo compiling;
  absl::Time expires;
};

// The cache in figures: of the caller's tenant, or of all.
struct ModuleUsage {
  ModuleCounts counts;
  uint64_t modules = 0;
  Bytes bytes;
  Bytes limit;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MODULE_TYPES_H_
