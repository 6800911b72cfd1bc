// Block: a lease on device memory that belongs to the daemon. The memory outlives the process that allocated it, and
// several processes can map it. Mapping: a block in this process's address space.
//
//   absl::StatusOr<berth::Block> block =
//       berth::Block::Allocate(session, {.bytes = berth::MiB(256), .label = "weights"});
//   if (!block.ok()) return block.status();
//   absl::StatusOr<berth::Mapping> mapping = block->Map();
//   Fill(mapping->data(), mapping->size());
//   block->GrantToSession(other);   // then send FormatHandle(block->handle()) to the other process
//
//   auto theirs = berth::Block::Import(session, handle, {.read_only = true});   // in the other process
//   Read(theirs->Map()->data());

#ifndef BERTH_BLOCK_H_
#define BERTH_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <berth/block_event.h>
#include <berth/block_handle.h>
#include <berth/bytes.h>
#include <berth/cancellation.h>
#include <berth/export_kind.h>
#include <berth/ids.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace berth {

class Mapping;
namespace internal {
class Import;
class SessionCore;
struct AccessValues;
AccessValues AccessValuesOf(const Mapping& mapping);
struct Recordable;
Recordable RecordableOf(const Mapping& mapping);
}  // namespace internal
namespace v1 {
class GrantBlockRequest;
class ImportBlockRequest;
}  // namespace v1

struct BlockOptions {
  // At least 1; rounded up to the device's granularity.
  Bytes bytes;
  // The device's ordinal; ignored where `device_uuid` is set.
  uint32_t device = 0;
  std::string device_uuid;
  // Selects the device by rule instead: "any" (the device with the fewest permits), "best" (the most free bytes),
  // "highest-score" or "round-robin". Candidates have capacity in the budgets and satisfy the constraints below. If no
  // device qualifies, or no candidate serves, the allocation fails at once (NO_DEVICE, DEVICE_STOPPED).
  std::string pick;
  // Bytes that must be free on the device. Not reserved.
  Bytes min_free;
  // Minimum compute capability times ten: 90 is 9.0. 0: any.
  uint32_t min_capability = 0;
  // The device must be in the NVLink island of the device with this UUID. Empty: any.
  std::string island_of;
  // Candidate devices, by UUID, unique prefix of it, or ordinal. Empty: any device.
  std::vector<std::string> among;
  // Free text for display. Non-printable bytes and invalid UTF-8 become "?"; text past 128 bytes is cut off.
  std::string label;
  // Acceptable kinds. If several are given, the block is an FD block. A kind that is not available is refused
  // (EXPORT_KIND), never replaced by another.
  std::vector<ExportKind> export_kinds = {ExportKind::kFd};
  // As in ImportOptions.
  std::string map_on;
  // How long to wait for bytes that other leases hold. Zero: fail at once (OVER_BUDGET).
  absl::Duration max_wait = absl::ZeroDuration();
  // Called once, when the block is lost, freed by another process or an operator, or ends with its session. Runs on a
  // thread of the SDK, which waits for it: it must return soon, and must not wait for an SDK call. Not called once
  // Free() has begun, or the Block and its mappings are destroyed; a call that runs then may still be under way.
  std::function<void(const BlockEvent&)> on_event;
  // Ends the wait (kCancelled); may be null. Must outlive the call.
  Cancellation* cancellation = nullptr;
};

struct ImportOptions {
  // Map without write access. The kernel enforces this on host memory; on CUDA memory it stops bugs, not malice.
  bool read_only = false;
  // Acceptable kinds. A CUDA_IPC block cannot be imported read-only.
  std::vector<ExportKind> export_kinds = {ExportKind::kFd, ExportKind::kCudaIpc};
  // UUID of the device that the block is mapped for. Empty: the block's own device. Another device must reach the
  // block's device (NVLink, PCIe). Every device reaches host memory.
  std::string map_on;
  // As in BlockOptions.
  std::function<void(const BlockEvent&)> on_event;
};

struct PublishOptions {
  // If this user has published another block under the name, free that block in the same step. An import by name gets
  // the old block or the new one, and processes that have the old one mapped continue with it.
  bool replace = false;
};

// The kind of memory of a block.
enum class BlockKind {
  // Host memory: data() is an address of this process.
  kHost,
  // CUDA memory: data() is a device pointer (CUdeviceptr).
  kCudaVmm,
  // CUDA memory from cuMemAlloc: data() is a device pointer.
  kCudaDirect,
};

// A block in this process's address space. Copies share it. The memory stays mapped while a Mapping, a GpuRef or the
// Block exists. The daemon reuses the memory for no other lease meanwhile, even after the owner has freed the block.
// Thread-safe to copy.
class Mapping {
 public:
  void* data() const { return data_; }
  size_t size() const { return size_; }
  bool read_only() const;
  BlockKind kind() const;

 private:
  friend class Block;
  friend internal::AccessValues internal::AccessValuesOf(const Mapping& mapping);
  friend internal::Recordable internal::RecordableOf(const Mapping& mapping);
  Mapping(std::shared_ptr<internal::Import> import, void* data);

  std::shared_ptr<internal::Import> import_;
  void* data_;
  size_t size_;
};

// Move-only. Thread-compatible. The destructor frees an allocated block. An imported block is released when the Block
// and its mappings are destroyed.
class Block {
 public:
  // Errors: OVER_BUDGET, OUT_OF_MEMORY, LIMIT, WAIT_TIMED_OUT, DEVICE_REBUILDING: retry later. INVALID_FIELD,
  // OUT_OF_RANGE, NOT_FOUND (device, reservation), NO_DEVICE, DEVICE_STOPPED, DEVICE_DRAINING, EXPORT_KIND: do not
  // retry the same request. kCancelled; kDeadlineExceeded when the daemon does not answer in the session's timeout;
  // kUnavailable when the session is over.
  static absl::StatusOr<Block> Allocate(const std::shared_ptr<Session>& session, const BlockOptions& options);

  // Imports a block that another session granted to this session, or that this session allocated itself.
  // Errors: DENIED; STALE; LIMIT; otherwise as Allocate().
  static absl::StatusOr<Block> Import(const std::shared_ptr<Session>& session, const BlockHandle& handle,
                                      const ImportOptions& options = {});

  Block(Block&& other) noexcept = default;
  Block& operator=(Block&& other) noexcept;
  // Frees an owned block as Free() does; work that takes longer than 2 s continues in the background.
  ~Block();

  // Names the block to other processes.
  const BlockHandle& handle() const { return handle_; }
  // Rounded up to the device's granularity.
  Bytes bytes() const;
  uint32_t device() const;
  BlockKind kind() const;
  ExportKind export_kind() const;
  // Whether this object allocated the block, rather than imported it.
  bool owned() const { return owned_; }
  // False after Free() or a move.
  explicit operator bool() const { return import_ != nullptr; }

  // Maps the block. All mappings of one Block are the same memory.
  // Errors: kNotFound if this process does not see the device; UNSUPPORTED if the device to map for cannot reach the
  // block's device; kResourceExhausted; STALE for a CUDA_IPC block whose memory no longer exists.
  absl::StatusOr<Mapping> Map() const;

  // Grants the right to import to every process of `session`, or to every session of a user (in a container, or outside
  // any). Errors: kFailedPrecondition if not owned or already freed; STALE.
  absl::Status GrantToSession(SessionId session) const;
  absl::Status GrantToTenant(uint32_t uid, absl::string_view container = "") const;

  // Transfers the block to this user (in its container, or outside any) under `name`. The block then outlives this
  // process and its session. Every session of the user may import it by name, read-only, until it is unpublished.
  // Publish() first waits for this process's writes and releases this process's import, so this Block is empty
  // afterwards; import it by name. After a refusal the block is unchanged, except for the address of its mapping.
  // Requires: allocated here.
  // Errors: kFailedPrecondition while a Mapping of the block exists here; BLOCK_MAPPED (another process can still
  // write); NAME_TAKEN; LIMIT; INVALID_FIELD; STALE.
  absl::Status Publish(absl::string_view name, const PublishOptions& options = {});
  // A user (in a container, or outside any) that has published blocks.
  struct Publisher {
    uint32_t uid = 0;
    std::string container;
  };
  // Imports a block that a session of this user published, or that `publisher` published and granted to this user or
  // session. `on_event`: as in BlockOptions. Errors: DENIED; LIMIT; otherwise as Allocate().
  static absl::StatusOr<Block> ImportPublished(const std::shared_ptr<Session>& session, absl::string_view name,
                                               const std::optional<Publisher>& publisher = std::nullopt,
                                               std::function<void(const BlockEvent&)> on_event = nullptr);
  // Deletes a published block of this user, or on admin.sock of `tenant`. The name is free at once; the memory is
  // released when the last importer releases the block. Errors: NOT_FOUND; ADMIN_ONLY.
  static absl::Status Unpublish(const std::shared_ptr<Session>& session, absl::string_view name,
                                const std::optional<Publisher>& tenant = std::nullopt);

  // Whether the block's tenant or an operator has asked this process to release the block. They need the memory, which
  // stays allocated while a process maps it. This process may continue to use the block. False after the release.
  bool AskedBack() const;

  // Frees the memory: at once if no process maps it, otherwise when the last process releases it. An imported block is
  // only released. Idempotent. Errors: those of the daemon or the transport; without an answer the SDK frees the block
  // in the background.
  absl::Status Free();

 private:
  friend class Plan;
  friend class Reservation;
  static absl::StatusOr<Block> Allocate(const std::shared_ptr<internal::SessionCore>& core,
                                        const BlockOptions& options, ReservationId reservation);
  Block(std::shared_ptr<internal::Import> import, bool owned);
  static absl::StatusOr<Block> Import(const std::shared_ptr<internal::SessionCore>& core,
                                      v1::ImportBlockRequest* request, const std::string& map_on,
                                      std::function<void(const BlockEvent&)> on_event);
  absl::Status CheckOwned() const;
  absl::Status Grant(v1::GrantBlockRequest* request) const;

  BlockHandle handle_;
  bool owned_;
  std::shared_ptr<internal::Import> import_;
};

}  // namespace berth

#endif  // BERTH_BLOCK_H_
