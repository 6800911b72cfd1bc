#include "client/sdk/arena/arena_session_source.h"

#include <cstdint>

#include <berth/arena_cuda_progress.h>
#include <berth/gpu_ref.h>

#include "common/cuda/driver.h"
#include "common/status_macros.h"

namespace berth::internal {
namespace {

class BlockLease : public ArenaLease {
 public:
  BlockLease(std::shared_ptr<Session> session, Block block, GpuRef<std::byte> memory)
      : session_(std::move(session)), block_(std::move(block)), memory_(std::move(memory)) {}

  uintptr_t address() const override { return reinterpret_cast<uintptr_t>(memory_.mapping().data()); }
  Bytes bytes() const override { return Bytes(memory_.mapping().size()); }
  absl::Status Check() const override {
    const AccessResult<std::byte> access = memory_.Access();
    return access ? absl::OkStatus() : access.status();
  }

 private:
  // Member order matters: the block must outlive its mapping, and the session the block.
  const std::shared_ptr<Session> session_;
  const Block block_;
  const GpuRef<std::byte> memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ArenaLease>> ArenaSessionSource::Lease(Bytes bytes) {
  BlockOptions options = block_;
  options.bytes = bytes;
  BERTH_ASSIGN_OR_RETURN(Block block, Block::Allocate(session_, options));
  BERTH_ASSIGN_OR_RETURN(const Mapping mapping, block.Map());
  BERTH_ASSIGN_OR_RETURN(GpuRef<std::byte> memory, GpuRef<std::byte>::Of(mapping));
  kind_.store(block.kind(), std::memory_order_relaxed);
  return std::make_unique<BlockLease>(session_, std::move(block), std::move(memory));
}

absl::StatusOr<std::shared_ptr<StreamProgress>> ArenaSessionSource::MakeProgress() {
  if (kind() == BlockKind::kHost) return std::make_shared<ImmediateProgress>();
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  return CudaStreamProgress::Create(*driver);
}

}  // namespace berth::internal
