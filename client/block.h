// Block: a lease on device memory that belongs to the daemon, so that it outlives whoever made it and several
// processes can map it. Mapping: a block in this process's address space.
//
//   absl::StatusOr<berth::Block> block = berth::Block::Allocate(session, {.bytes = berth::MiB(256), .label =
//   "weights"}); if (!block.ok()) return block.status(); absl::StatusOr<berth::Mapping> mapping =
//   block->Map(); Fill(mapping->data(), mapping->size()); block->GrantToSession(other); // then tell the
//   other process FormatHandle(block->handle())
//
//   auto theirs = berth::Block::Import(session, handle, {.read_only = true});   // in the other process
//   Read(theirs->Map()->data());

#ifndef CLIENT_BLOCK_H_
#define CLIENT_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cancellation.h"
#include "client/export_kind.h"
#include "client/session.h"
#include "common/block_handle.h"
#include "common/bytes.h"
#include "common/ids.h"

namespace berth {

class Mapping;
namespace internal {
class Import;
class SessionCore;
struct AccessWords;
AccessWords WordsOf(const Mapping& mapping);
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
  // Has the daemon pick the device instead: "any" (the one with the fewest permits), "best" (with the most free bytes),
  // "highest-score" or "round-robin"; among those with room in the budgets, with so many free bytes, of such a compute
  // capability (90 is 9.0), and in the NVLink island of the device of this UUID. None is: NO_DEVICE.
  std::string pick;
  Bytes min_free;
  uint32_t min_capability = 0;
  std::string island_of;
  // Free text for those who look, at most 128 bytes, printable.
  std::string label;
  // The kinds that will do. Of several it is an FD block; a kind that cannot be had is refused (EXPORT_KIND), and never
  // replaced by another.
  std::vector<ExportKind> export_kinds = {ExportKind::kFd};
  // As in ImportOptions.
  std::string map_on;
  // Wait so long for room that others hold, rather than be refused (OVER_BUDGET).
  absl::Duration max_wait = absl::ZeroDuration();
  // Ends the wait (kCancelled); may be null. Must outlive the call.
  Cancellation* cancellation = nullptr;
};

struct ImportOptions {
  // Map without the right to write. On host memory the kernel holds it; on CUDA it stops bugs, not malice.
  bool read_only = false;
  // The kinds that will do; a CUDA_IPC block cannot be imported read only.
  std::vector<ExportKind> export_kinds = {ExportKind::kFd, ExportKind::kCudaIpc};
  // The UUID of the device that the block is mapped for, if not its own: one that reaches it (NVLink, PCIe).
  // Host memory is every device's.
  std::string map_on;
};

// What a block is made of.
enum class BlockKind {
  // Host memory: data() is an address of this process.
  kHost,
  // CUDA memory: data() is a device pointer (CUdeviceptr).
  kCudaVmm,
  // The same, of cuMemAlloc.
  kCudaDirect,
};

// A block in this process's address space. Copies share it. The memory stays mapped while a Mapping, a GpuRef
// or the Block is left, and the daemon gives it to nobody else meanwhile, even after its owner has freed it.
// Thread-safe to copy.
class Mapping {
 public:
  void* data() const { return data_; }
  size_t size() const { return size_; }
  bool read_only() const;
  BlockKind kind() const;

 private:
  friend class Block;
  friend internal::AccessWords internal::WordsOf(const Mapping& mapping);
  friend internal::Recordable internal::RecordableOf(const Mapping& mapping);
  Mapping(std::shared_ptr<internal::Import> import, void* data);

  std::shared_ptr<internal::Import> import_;
  void* data_;
  size_t size_;
};

// Move-only. Thread-compatible. An allocated block is freed when it goes; an imported one is let go when it
// and its mappings have gone.
class Block {
 public:
  // Errors: OVER_BUDGET, OUT_OF_MEMORY, LIMIT; WAIT_TIMED_OUT; INVALID_FIELD, OUT_OF_RANGE, NOT_FOUND (device);
  // kDeadlineExceeded when the daemon does not answer in the session's timeout; kUnavailable when the session
  // is over.
  static absl::StatusOr<Block> Allocate(const std::shared_ptr<Session>& session, const BlockOptions& options);

  // Imports what another session granted to this one, or what this session allocated itself.
  // Errors: DENIED; STALE; LIMIT; as Allocate() else.
  static absl::StatusOr<Block> Import(const std::shared_ptr<Session>& session, const BlockHandle& handle,
                                      const ImportOptions& options = {});

  Block(Block&& other) noexcept = default;
  Block& operator=(Block&& other) noexcept;
  // Frees an owned block as Free() does; what that takes longer than 2 s is done in the background.
  ~Block();

  // What names the block to other processes.
  const BlockHandle& handle() const { return handle_; }
  // Rounded up to the device's granularity.
  Bytes bytes() const;
  uint32_t device() const;
  BlockKind kind() const;
  ExportKind export_kind() const;
  // Whether it was allocated here, and not imported.
  bool owned() const { return owned_; }
  // Whether it is neither freed nor moved from.
  explicit operator bool() const { return import_ != nullptr; }

  // Maps the block. All mappings of one Block are the same memory.
  // Errors: kNotFound where this process does not see the device; UNSUPPORTED where that cannot reach the block's;
  // kResourceExhausted; STALE for a CUDA_IPC block whose memory is gone.
  absl::StatusOr<Mapping> Map() const;

  // Gives every process of `session`, or every session of a user (in a container, or outside any), the right
  // to import. Errors: kFailedPrecondition if not owned or freed; STALE.
  absl::Status GrantToSession(SessionId session) const;
  absl::Status GrantToTenant(uint32_t uid, absl::string_view container = "") const;

  // Gives the block to this user (in its container, or outside any) under `name`: it stays when this process and its
  // session end, every session of the user may import it by name, read-only, until it is unpublished. What this process
  // wrote is completed and its own import let go first, so the block is empty here afterwards; import it like anybody.
  // Where it is refused, the block is as it was but for its mapping's address. Requires: allocated here.
  // Errors: kFailedPrecondition while a Mapping of it is left here; BLOCK_MAPPED (another process can still write);
  // NAME_TAKEN; LIMIT; INVALID_FIELD; STALE.
  absl::Status Publish(absl::string_view name);
  // Imports what some session of this user published. Errors: DENIED; LIMIT; as Allocate() else.
  static absl::StatusOr<Block> ImportPublished(const std::shared_ptr<Session>& session,
                                               absl::string_view name);
  // Deletes a published block of this user's, or on admin.sock of `tenant`'s: its name is free at once, its memory goes
  // back when the last importer has let go. Errors: NOT_FOUND; ADMIN_ONLY.
  struct Publisher {
    uint32_t uid = 0;
    std::string container;
  };
  static absl::Status Unpublish(const std::shared_ptr<Session>& session, absl::string_view name,
                                const std::optional<Publisher>& tenant = std::nullopt);

  // Whether somebody asked this process to let go of the block, which it may use on: the block's tenant or an operator
  // needs the memory, and whoever still maps it keeps it. False once it was let go.
  bool AskedBack() const;

  // Gives the memory back: at once if nobody has it mapped, else when the last has let go. An imported block
  // is only let go. Idempotent. Errors: what the daemon or the transport said; without an answer it is freed
  // in the background all the same.
  absl::Status Free();

 private:
  friend class Plan;
  friend class Reservation;
  static absl::StatusOr<Block> Allocate(const std::shared_ptr<internal::SessionCore>& core,
                                        const BlockOptions& options, ReservationId reservation);
  Block(std::shared_ptr<internal::Import> import, bool owned);
  static absl::StatusOr<Block> Import(const std::shared_ptr<internal::SessionCore>& core,
                                      v1::ImportBlockRequest* request, const std::string& map_on = "");
  absl::Status CheckOwned() const;
  absl::Status Grant(v1::GrantBlockRequest* request) const;

  BlockHandle handle_;
  bool owned_;
  std::shared_ptr<internal::Import> import_;
};

}  // namespace berth

#endif  // CLIENT_BLOCK_H_
