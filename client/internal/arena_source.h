// Where an arena's memory comes from: one large block at a time.

#ifndef CLIENT_INTERNAL_ARENA_SOURCE_H_
#define CLIENT_INTERNAL_ARENA_SOURCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/arena_stream.h"
#include "common/bytes.h"

namespace berth::internal {

// One block, leased and mapped. Given back when destroyed. Thread-safe.
class ArenaLease {
 public:
  virtual ~ArenaLease() = default;
  // Aligned to 4,096.
  virtual uintptr_t address() const = 0;
  virtual Bytes bytes() const = 0;
  // OK, or STALE saying why the memory must not be used any more. Called at every allocation.
  virtual absl::Status Check() const = 0;
};

// Thread-safe.
class ArenaSource {
 public:
  virtual ~ArenaSource() = default;
  // Leases at least `bytes`, a multiple of kArenaLeaseUnit.
  virtual absl::StatusOr<std::unique_ptr<ArenaLease>> Lease(Bytes bytes) = 0;
  // What goes with the memory. Called once, after the first lease.
  virtual absl::StatusOr<std::shared_ptr<StreamProgress>> MakeProgress() = 0;
};

// Blocks come in multiples of this.
inline constexpr Bytes kArenaLeaseUnit = MiB(2);

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_ARENA_SOURCE_H_
