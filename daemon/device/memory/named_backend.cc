#include "daemon/device/memory/named_backend.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <utility>

#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth {

absl::StatusOr<std::unique_ptr<NamedBackend>> NamedBackend::Open(std::string folder, uint32_t ordinal,
                                                                 std::string uuid, Bytes total) {
  BERTH_ASSIGN_OR_RETURN(std::unique_ptr<NamedMemoryServer> server,
                         NamedMemoryServer::Start(std::move(folder), ordinal));
  return std::unique_ptr<NamedBackend>(new NamedBackend(std::move(server), std::move(uuid), total));
}

NamedBackend::NamedBackend(std::unique_ptr<NamedMemoryServer> server, std::string uuid, Bytes total)
    : server_(std::move(server)), total_(total), records_(std::move(uuid)) {}

absl::StatusOr<MemoryBlock> NamedBackend::Allocate(Bytes bytes, absl::string_view tag) {
  BERTH_RETURN_IF_ERROR(ValidateBlockSize(bytes, granularity()));
  if (bytes > total_) return RefuseMoreThan(device(), bytes, total_);
  const absl::StatusOr<IpcHandle> handle = server_->Create(bytes);
  if (!handle.ok()) return ExplainSystemError(handle.status(), device(), bytes);
  MemoryBlock block = records_.Add(bytes, tag);
  block.handle = handles_[block.generation] = *handle;
  return block;
}

absl::Status NamedBackend::Deallocate(MemoryBlock& block) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  server_->Remove(handles_.at(block.generation));
  handles_.erase(block.generation);
  records_.Remove(block);
  block.handle.reset();
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> NamedBackend::HandOver(MemoryBlock& block) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  return RefuseCapability(device(), "fd of memory with an IPC handle");
}

absl::StatusOr<MemoryBlock> NamedBackend::Adopt(UniqueFd, absl::string_view) {
  return RefuseCapability(device(), "fd of memory with an IPC handle");
}

absl::Status NamedBackend::Fill(const MemoryBlock& block, uint8_t value) {
  BERTH_ASSIGN_OR_RETURN(const BlockRecords::Record record, records_.Find(block));
  BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, server_->Open(handles_.at(block.generation)));
  const size_t size = record.bytes.count();
  void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return OsError("mmap(block)", errno);
  memset(at, value, size);
  ::munmap(at, size);
  return absl::OkStatus();
}

}  // namespace berth
