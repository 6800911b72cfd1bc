#include "client/sdk/memory/import.h"

#include <utility>

#include <berth/block_handle.h>
#include <berth/error.h>

#include "berth/v1/resources.pb.h"
#include "client/sdk/memory/import_table.h"
#include "client/sdk/transport/live_object_counts.h"
#include "common/status_macros.h"
#include "common/wire/state_page.h"

namespace berth::internal {

Import::Import(std::shared_ptr<SessionCore> core, const v1::Block& block, Arrival arrival, bool read_only,
               std::optional<IpcHandle> handle, std::string device)
    : core_(std::move(core)),
      block_(block),
      id_(arrival.import),
      lease_(std::move(arrival.lease)),
      tracked_(std::move(arrival.tracked)),
      read_only_(read_only),
      device_(std::move(device)),
      fd_(std::move(arrival.fd)),
      handle_(handle) {
  live_object_counts.blocks.fetch_add(1, std::memory_order_relaxed);
  live_object_counts.bytes.fetch_add(block_.bytes(), std::memory_order_relaxed);
}

Import::~Import() {
  live_object_counts.blocks.fetch_sub(1, std::memory_order_relaxed);
  live_object_counts.bytes.fetch_sub(block_.bytes(), std::memory_order_relaxed);
  MutexLock lock(&mu_);
  memory_.reset();
  fd_.reset();
  if (!announced_ && core_->Check().ok()) core_->channel().LetGo(id_);
}

absl::StatusOr<void*> Import::Map() {
  MutexLock lock(&mu_);
  if (memory_ == nullptr) {
    if (handle_.has_value()) {
      BERTH_ASSIGN_OR_RETURN(memory_, OpenOnce(*handle_));
    } else if (fd_) {
      BERTH_ASSIGN_OR_RETURN(memory_, MapMemory(block_, fd_.get(), read_only_, device_));
    } else {
      return absl::FailedPreconditionError("the block was freed by this process");
    }
    fd_.reset();
    handle_.reset();
  }
  return memory_->address();
}

absl::StatusOr<std::unique_ptr<MappedMemory>> Import::OpenOnce(const IpcHandle& handle) const {
  const BlockHandle named = {.node = block_.handle().node(),
                             .incarnation = block_.handle().incarnation(),
                             .block = BlockId(block_.handle().block()),
                             .block_generation = block_.handle().block_generation()};
  absl::StatusOr<std::unique_ptr<MappedMemory>> memory = ImportTable::OfProcess().Open(
      named, device_, [&] { return OpenMemory(block_, handle, core_->folder(), device_); });
  const DeviceEntry& entry = core_->page().devices[block_.device()];
  // Host memory that is not found belonged to a context worker that has ended. The page may not show that yet. A device
  // that is not found is one that this process does not see.
  const bool gone = block_.kind() == v1::MEMORY_KIND_HOST && absl::IsNotFound(memory.status());
  if (gone || (!memory.ok() && entry.context_generation.load() != block_.handle().generation())) {
    return Refuse(Reason::kStale, "{why}", {{"why", "context rebuilt"}});
  }
  return memory;
}

absl::Status Import::Synchronize() {
  MutexLock lock(&mu_);
  return memory_ == nullptr ? absl::OkStatus() : memory_->Synchronize();
}

void Import::CloseUnannounced() {
  MutexLock lock(&mu_);
  memory_.reset();
  fd_.reset();
  handle_.reset();
  announced_ = true;
}

}  // namespace berth::internal
