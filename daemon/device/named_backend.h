// NamedBackend makes blocks of ordinary memory that other processes open by 64 bytes: what DirectBackend is on a GPU,
// for the device of machines without one.

#ifndef DAEMON_DEVICE_NAMED_BACKEND_H_
#define DAEMON_DEVICE_NAMED_BACKEND_H_

#include <cstdint>
#include <map>
#include <string>

#include "daemon/device/block_records.h"
#include "daemon/device/memory_resource.h"

namespace berth {

// Blocks are named memory (common/named_memory.h), removed when they are deallocated or the backend goes. Their pages
// are there from the beginning.
class NamedBackend : public MemoryResource {
 public:
  // `folder` is the daemon's run folder, `ordinal` the device's; `uuid` names it in refusals.
  NamedBackend(std::string folder, uint32_t ordinal, std::string uuid, Bytes total);
  ~NamedBackend() override;

  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override;
  absl::Status Deallocate(MemoryBlock& block) override;
  absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) override;
  absl::StatusOr<MemoryBlock> Adopt(UniqueFd fd, absl::string_view tag) override;
  absl::Status Fill(const MemoryBlock& block, uint8_t value) override;
  absl::Status Reap() override { return absl::OkStatus(); }
  Bytes outstanding() const override { return records_.live(); }
  Bytes granularity() const override { return Bytes(kBlockGranularity); }
  BackendKind kind() const override { return BackendKind::kHostNamed; }
  const std::string& device() const override { return records_.device(); }

 private:
  const std::string folder_;
  const uint32_t ordinal_;
  const Bytes total_;
  BlockRecords records_;
  // By generation.
  std::map<uint64_t, IpcHandle> handles_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_NAMED_BACKEND_H_
