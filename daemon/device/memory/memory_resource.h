// MemoryResource makes the memory of blocks and takes it back. The backends are host, vmm and direct; decorators around
// a backend add one function each. daemon/device/memory/device_runtime.h assembles the stack.
//
//   BERTH_ASSIGN_OR_RETURN(MemoryBlock block, resource.Allocate(MiB(2), "block 7"));
//   BERTH_RETURN_IF_ERROR(resource.Deallocate(block));
//
// Other processes reach a block by an fd or an IPC handle. Memory behind an fd lives as long as its last fd and
// mapping, independently of this process. A block with an fd can therefore be handed over, after which the resource no
// longer has it. The fd of a block can also be adopted, to be closed here. Memory behind an IPC handle is the
// resource's until it is deallocated.

#ifndef DAEMON_DEVICE_MEMORY_MEMORY_RESOURCE_H_
#define DAEMON_DEVICE_MEMORY_MEMORY_RESOURCE_H_

#include <cstdint>
#include <optional>
#include <string>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"
#include "common/wire/ipc_handle.h"
#include "daemon/device/monitor/device_record.h"

namespace berth {

// One allocation. Only `generation` and `device` identify it: the resource uses its own records for the rest.
struct MemoryBlock {
  // Unique in this process over all devices, from 1 on, never reused. 0 for no block.
  uint64_t generation = 0;
  // UUID of the block's device.
  std::string device;
  Bytes bytes;
  // Owner, for readers of logs.
  std::string tag;
  // Address in this process; 0 if this process cannot reach the memory.
  uint64_t address = 0;
  // Exported form of the block: exactly one of the two is set.
  UniqueFd fd;
  std::optional<IpcHandle> handle;
};

// MemoryResource is thread-compatible: the worker that uses it has one thread. Every implementation passes
// memory_resource_conformance_test.cc. A resource's destruction takes its outstanding memory along.
//
// Every method that takes a block rejects a block that the resource does not have, without any change: INVALID_FIELD if
// it is of another device; NOT_FOUND if it never existed; STALE if it was deallocated or handed over.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;

  // Allocates `bytes` of memory that reads as zeroes.
  // Errors: INVALID_FIELD if `bytes` is 0 or no multiple of granularity(); OVER_BUDGET; OUT_OF_MEMORY if the device
  // lacks that much; DRIVER otherwise. Memory left over after an error counts in outstanding() until Reap() frees it.
  virtual absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) = 0;

  // Frees the memory; for an fd, closes it. After an error the block is still the caller's and outstanding, and can be
  // deallocated again.
  // Errors: DRIVER.
  virtual absl::Status Deallocate(MemoryBlock& block) = 0;

  // Gives up a block: its memory lives on in the returned fd, and the resource no longer has the block.
  // Errors: UNSUPPORTED if blocks have no fd.
  virtual absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) = 0;

  // Takes the fd of a block that some process handed over, so that Deallocate() closes it here. An adopted block has no
  // bytes: they are charged to the process that held the fd.
  // Errors: UNSUPPORTED if blocks have no fd.
  virtual absl::StatusOr<MemoryBlock> Adopt(UniqueFd fd, absl::string_view tag) = 0;

  // Writes `value` to every byte of a block.
  // Errors: UNSUPPORTED if this process cannot reach the memory; DRIVER.
  virtual absl::Status Fill(const MemoryBlock& block, uint8_t value) = 0;

  // Retries to free memory that belongs to no block and that the driver failed to free.
  // Errors: DRIVER, if some is left.
  virtual absl::Status Reap() = 0;

  // Returns the bytes of all blocks, and of the memory that Reap() retries.
  virtual Bytes outstanding() const = 0;

  // Returns the unit of block sizes; a multiple of kBlockGranularity.
  virtual Bytes granularity() const = 0;

  virtual BackendKind kind() const = 0;

  // Returns the device's UUID.
  virtual const std::string& device() const = 0;
};

// ---- For backends -------------------------------------------------------------------------------------------

// Rejects a size that no backend takes: 0, or not a multiple of `granularity`.
absl::Status ValidateBlockSize(Bytes bytes, Bytes granularity);

// Rejects a size above the device's total memory, without a driver call.
absl::Status RefuseMoreThan(const std::string& device, Bytes bytes, Bytes total);

// Returns the error for an operation that this process cannot do with memory of that device.
absl::Status RefuseCapability(const std::string& device, absl::string_view capability);

// Returns a driver's error, extended by the device and the request.
absl::Status ExplainDriverError(const absl::Status& error, const std::string& device, Bytes requested);

// Returns the error of a system call that made host memory: OUT_OF_MEMORY, extended by the device and the request, if
// this process reached a limit; else `error`.
absl::Status ExplainSystemError(const absl::Status& error, const std::string& device, Bytes requested);

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_MEMORY_RESOURCE_H_
