// Import is one process's import of one block: its fd or handle until it is mapped, its mapping from then on. It ends
// with the last block or mapping that refers to it: unmapped, closed, and said so to the daemon.

#ifndef CLIENT_INTERNAL_IMPORT_H_
#define CLIENT_INTERNAL_IMPORT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "berth/v1/resources.pb.h"
#include "client/internal/channel.h"
#include "client/internal/mapped_memory.h"
#include "client/internal/session_core.h"
#include "common/ids.h"
#include "common/ipc_handle.h"
#include "common/mutex.h"

namespace berth::internal {

// Thread-safe.
class Import {
 public:
  // `read_only` is how the import was asked for: it cannot be mapped otherwise. `handle` is that of a block that is
  // imported so; `device` the one it is mapped for, empty for its own.
  Import(std::shared_ptr<SessionCore> core, const v1::Block& block, Arrival arrival, bool read_only,
         std::optional<IpcHandle> handle, std::string device);
  Import(const Import&) = delete;
  Import& operator=(const Import&) = delete;
  ~Import();

  ImportId id() const { return id_; }
  const std::shared_ptr<SessionCore>& core() const { return core_; }
  const v1::Block& block() const { return block_; }
  LeaseWord& lease() const { return lease_->word; }
  bool asked_back() const { return lease_->asked_back; }
  TrackedBlock& tracked() const { return *tracked_; }
  bool read_only() const { return read_only_; }

  // Maps the block at the first call; later ones return the same address. The fd is closed then, the handle forgotten.
  // Errors: as MapMemory().
  absl::StatusOr<void*> Map() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until what this process wrote through the mapping is there for others. Errors: DRIVER.
  absl::Status Synchronize() ABSL_LOCKS_EXCLUDED(mu_);

  // Unmaps and closes now, leaving it to the caller to tell the daemon. Requires: nobody uses the mapping.
  void CloseUnannounced() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Opens what the handle names, or shares what another import here has open. Errors: STALE; as OpenMemory().
  absl::StatusOr<std::unique_ptr<MappedMemory>> OpenOnce(const IpcHandle& handle) const;

  const std::shared_ptr<SessionCore> core_;
  const v1::Block block_;
  const ImportId id_;
  const std::shared_ptr<LeaseRecord> lease_;
  const std::shared_ptr<TrackedBlock> tracked_;
  const bool read_only_;
  const std::string device_;

  Mutex mu_;
  // Until it is mapped, one of these.
  UniqueFd fd_ ABSL_GUARDED_BY(mu_);
  std::optional<IpcHandle> handle_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<MappedMemory> memory_ ABSL_GUARDED_BY(mu_);
  bool announced_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_IMPORT_H_
