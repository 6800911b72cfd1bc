// NamedBackend makes blocks of ordinary memory that other processes open by 64 bytes: the host equivalent of
// DirectBackend, for machines without a GPU.

#ifndef DAEMON_DEVICE_MEMORY_NAMED_BACKEND_H_
#define DAEMON_DEVICE_MEMORY_NAMED_BACKEND_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "daemon/device/memory/block_records.h"
#include "daemon/device/memory/memory_resource.h"
#include "daemon/device/memory/named_memory_server.h"

namespace berth {

// Blocks are named memory (common/os/named_memory.h), removed when they are deallocated or the backend is destroyed.
// The kernel allocates their pages on first access, as for HostBackend.
class NamedBackend : public MemoryResource {
 public:
  // `folder` is the daemon's run folder, `ordinal` the device's; `uuid` identifies the device in errors. Errors: as
  // NamedMemoryServer::Start().
  static absl::StatusOr<std::unique_ptr<NamedBackend>> Open(std::string folder, uint32_t ordinal, std::string uuid,
                                                            Bytes total);

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
  NamedBackend(std::unique_ptr<NamedMemoryServer> server, std::string uuid, Bytes total);

  const std::unique_ptr<NamedMemoryServer> server_;
  const Bytes total_;
  BlockRecords records_;
  // Handles by generation.
  std::map<uint64_t, IpcHandle> handles_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_NAMED_BACKEND_H_
