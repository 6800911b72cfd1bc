#include "client/internal/import.h"

#include <utility>

#include "common/status_macros.h"

namespace berth::internal {

Import::Import(std::shared_ptr<SessionCore> core, const v1::Block& block, Arrival arrival, bool read_only)
    : core_(std::move(core)),
      block_(block),
      id_(arrival.import),
      lease_(std::move(arrival.lease)),
      tracked_(std::move(arrival.tracked)),
      read_only_(read_only),
      fd_(std::move(arrival.fd)) {}

Import::~Import() {
  MutexLock lock(&mu_);
  memory_.reset();
  fd_.reset();
  if (!announced_ && core_->Check().ok()) core_->channel().LetGo(id_);
}

absl::StatusOr<void*> Import::Map() {
  MutexLock lock(&mu_);
  if (memory_ == nullptr) {
    if (!fd_) return absl::FailedPreconditionError("the block was freed by this process");
    BERTH_ASSIGN_OR_RETURN(memory_, MapMemory(block_, fd_.get(), read_only_));
    fd_.reset();
  }
  return memory_->address();
}

absl::Status Import::Synchronize() {
  MutexLock lock(&mu_);
  return memory_ == nullptr ? absl::OkStatus() : memory_->Synchronize();
}

void Import::CloseUnannounced() {
  MutexLock lock(&mu_);
  memory_.reset();
  fd_.reset();
  announced_ = true;
}

}  // namespace berth::internal
