// Import is one process's import of one block. The import holds the fd or the handle until the block is mapped, and the
// mapping from then on. The import ends with the last block or mapping that refers to it: then it unmaps, closes, and
// notifies the daemon.

#ifndef CLIENT_SDK_MEMORY_IMPORT_H_
#define CLIENT_SDK_MEMORY_IMPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <berth/block_event.h>
#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/memory/mapped_memory.h"
#include "client/sdk/transport/session_core.h"
#include "client/sdk/transport/side_channel.h"
#include "common/mutex.h"
#include "common/wire/ipc_handle.h"

namespace berth::internal {

// Thread-safe.
class Import {
 public:
  // `read_only`: the import can only be mapped read-only. `handle` is set for a block that is imported by a handle.
  // `device` is the device to map for; empty for the block's own. `on_event` may be empty.
  Import(std::shared_ptr<SessionCore> core, const v1::Block& block, Arrival arrival, bool read_only,
         std::optional<IpcHandle> handle, std::string device, std::function<void(const BlockEvent&)> on_event);
  Import(const Import&) = delete;
  Import& operator=(const Import&) = delete;
  ~Import();

  ImportId id() const { return id_; }
  const std::shared_ptr<SessionCore>& core() const { return core_; }
  const v1::Block& block() const { return block_; }
  AtomicLease& lease() const { return lease_->state; }
  bool asked_back() const { return lease_->asked_back; }
  TrackedBlock& tracked() const { return *tracked_; }
  bool read_only() const { return read_only_; }

  // Maps the block at the first call, which also closes the fd and drops the handle. Later calls return the same
  // address.
  // Errors: those of MapMemory().
  absl::StatusOr<void*> Map() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until others see this process's writes through the mapping. Errors: DRIVER.
  absl::Status Synchronize() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the listener to the block's end; null without one.
  std::function<void(const BlockEvent&)> on_event() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the notification of the block's end: this process itself ends the block.
  void StopListening() ABSL_LOCKS_EXCLUDED(mu_);

  // Unmaps and closes now; the caller must notify the daemon. Requires: the mapping is not in use.
  void CloseUnannounced() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Opens the memory that the handle names, or shares the memory that another import in this process has open. Errors:
  // STALE; those of OpenMemory().
  absl::StatusOr<std::unique_ptr<MappedMemory>> OpenOnce(const IpcHandle& handle) const;

  const std::shared_ptr<SessionCore> core_;
  const v1::Block block_;
  const ImportId id_;
  const std::shared_ptr<LeaseRecord> lease_;
  const std::shared_ptr<TrackedBlock> tracked_;
  const bool read_only_;
  const std::string device_;

  Mutex mu_;
  // Until the block is mapped or closed, exactly one of fd_ and handle_ is set.
  UniqueFd fd_ ABSL_GUARDED_BY(mu_);
  std::optional<IpcHandle> handle_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<MappedMemory> memory_ ABSL_GUARDED_BY(mu_);
  // Null without a listener.
  std::shared_ptr<BlockListener> listener_ ABSL_GUARDED_BY(mu_);
  bool announced_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_MEMORY_IMPORT_H_
