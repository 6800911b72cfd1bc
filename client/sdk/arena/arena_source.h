// ArenaSource supplies an arena with memory, one large block at a time.

#ifndef CLIENT_SDK_ARENA_ARENA_SOURCE_H_
#define CLIENT_SDK_ARENA_ARENA_SOURCE_H_

#include <cstdint>
#include <memory>

#include <berth/arena_stream.h>
#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace berth::internal {

// One leased and mapped block. The destructor gives it back. Thread-safe.
class ArenaLease {
 public:
  virtual ~ArenaLease() = default;
  // Aligned to 4,096.
  virtual uintptr_t address() const = 0;
  virtual Bytes bytes() const = 0;
  // Returns OK, or STALE with the reason why the memory must no longer be used. Called at every allocation.
  virtual absl::Status Check() const = 0;
};

// Thread-safe.
class ArenaSource {
 public:
  virtual ~ArenaSource() = default;
  // Leases at least `bytes`, a multiple of kArenaLeaseUnit.
  virtual absl::StatusOr<std::unique_ptr<ArenaLease>> Lease(Bytes bytes) = 0;
  // Returns the stream progress that fits the memory. Called once, after the first lease.
  virtual absl::StatusOr<std::shared_ptr<StreamProgress>> MakeProgress() = 0;
};

// Block sizes are multiples of this unit.
inline constexpr Bytes kArenaLeaseUnit = MiB(2);

}  // namespace berth::internal

#endif  // CLIENT_SDK_ARENA_ARENA_SOURCE_H_
