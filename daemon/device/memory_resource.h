// MemoryResource makes the memory of blocks and takes it back. The backends are host, vmm and direct; around one of
// them stand decorators that add one thing each. daemon/device/device_runtime.h puts them together.
//
//   BERTH_ASSIGN_OR_RETURN(MemoryBlock block, resource.Allocate(MiB(2), "block 7"));
//   BERTH_RETURN_IF_ERROR(resource.Deallocate(block));
//
// What a block is for other processes is an fd or an IPC handle. Memory behind an fd lives as long as its last fd and
// mapping, whatever becomes of this process. So it can be handed over, and the resource is rid of it; and its fd can
// be adopted, to be closed here. Memory behind an IPC handle is the resource's until it is deallocated.

#ifndef DAEMON_DEVICE_MEMORY_RESOURCE_H_
#define DAEMON_DEVICE_MEMORY_RESOURCE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "common/ipc_handle.h"
#include "common/unique_fd.h"
#include "daemon/device/device_record.h"

namespace berth {

// One allocation. Only `generation` and `device` say which: the resource knows the rest better than its caller.
struct MemoryBlock {
  // Of this process, over all devices, from 1 on, never given twice. 0 for no block.
  uint64_t generation = 0;
  // The UUID of its device.
  std::string device;
  Bytes bytes;
  // Whose it is, for who reads logs.
  std::string tag;
  // Where it is in this process; 0 where this process cannot reach it.
  uint64_t address = 0;
  // What leaves the process: one of these.
  UniqueFd fd;
  std::optional<IpcHandle> handle;
};

// MemoryResource is thread-compatible: the worker that it is for has one thread. Every implementation passes
// memory_resource_conformance_test.cc. A resource that goes takes what is outstanding of its memory along.
//
// A block that is not here is refused, and nothing is changed, by every method that takes one: INVALID_FIELD if it is
// of another device; NOT_FOUND if it never was; STALE if it was deallocated or handed over.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;

  // Makes `bytes` of memory that reads as zeroes.
  // Errors: INVALID_FIELD if `bytes` is 0 or no multiple of granularity(); OVER_BUDGET; OUT_OF_MEMORY if the device has
  // not that much; DRIVER else. What is left behind after an error is in outstanding() until Reap() is rid of it.
  virtual absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) = 0;

  // Gives the memory back; of an fd, closes it. After an error the block is still the caller's, still outstanding, and
  // can be deallocated again.
  // Errors: DRIVER.
  virtual absl::Status Deallocate(MemoryBlock& block) = 0;

  // Parts with a block: its memory lives in the fd that is returned, and the resource knows it no more.
  // Errors: UNSUPPORTED where blocks have no fd.
  virtual absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) = 0;

  // Takes the fd of a block that was handed over, by whichever process, so that Deallocate() closes it here. Such a
  // block has no bytes: they are on the account of whoever kept the fd.
  // Errors: UNSUPPORTED where blocks have no fd.
  virtual absl::StatusOr<MemoryBlock> Adopt(UniqueFd fd, absl::string_view tag) = 0;

  // Writes `value` to every byte of a block.
  // Errors: UNSUPPORTED where this process cannot reach the memory; DRIVER.
  virtual absl::Status Fill(const MemoryBlock& block, uint8_t value) = 0;

  // Tries again to give back what no block stands for and the driver did not take.
  // Errors: DRIVER, if something is left.
  virtual absl::Status Reap() = 0;

  // The bytes of all blocks that are here, and of what Reap() is there for.
  virtual Bytes outstanding() const = 0;

  // Sizes are multiples of this; itself a multiple of kBlockGranularity.
  virtual Bytes granularity() const = 0;

  virtual BackendKind kind() const = 0;

  // The device's UUID.
  virtual const std::string& device() const = 0;
};

// ---- For backends -------------------------------------------------------------------------------------------

// Refuses a size that no backend takes: 0, or not a multiple of `granularity`.
absl::Status ValidateBlockSize(Bytes bytes, Bytes granularity);

// Refuses a size that the device has not even when it is empty, without asking its driver.
absl::Status RefuseMoreThan(const std::string& device, Bytes bytes, Bytes total);

// What this process cannot do with memory of that device.
absl::Status RefuseCapability(const std::string& device, absl::string_view capability);

// A driver's refusal, with the device and what was asked of it.
absl::Status ExplainDriverError(const absl::Status& error, const std::string& device, Bytes requested);

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_RESOURCE_H_
