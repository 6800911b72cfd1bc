#include "daemon/device/memory/host_backend.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "common/os/memfd.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth {

HostBackend::HostBackend(std::string uuid, Bytes total) : total_(total), records_(std::move(uuid)) {}

absl::StatusOr<MemoryBlock> HostBackend::Allocate(Bytes bytes, absl::string_view tag) {
  BERTH_RETURN_IF_ERROR(ValidateBlockSize(bytes, granularity()));
  if (bytes > total_) return RefuseMoreThan(device(), bytes, total_);
  absl::StatusOr<UniqueFd> fd = CreateMemfd("berth-block", bytes.count());
  if (!fd.ok()) return ExplainSystemError(fd.status(), device(), bytes);
  BERTH_RETURN_IF_ERROR(SealMemfd(fd->get()));
  MemoryBlock block = records_.Add(bytes, tag);
  block.fd = *std::move(fd);
  return block;
}

absl::Status HostBackend::Deallocate(MemoryBlock& block) { return HandOver(block).status(); }

absl::StatusOr<UniqueFd> HostBackend::HandOver(MemoryBlock& block) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  records_.Remove(block);
  return std::move(block.fd);
}

absl::StatusOr<MemoryBlock> HostBackend::Adopt(UniqueFd fd, absl::string_view tag) {
  MemoryBlock block = records_.Add(Bytes(0), tag);
  block.fd = std::move(fd);
  return block;
}

absl::Status HostBackend::Fill(const MemoryBlock& block, uint8_t value) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  // The memfd's size is also right for an adopted block.
  struct stat info;
  if (::fstat(block.fd.get(), &info) < 0) return OsError("fstat(block)", errno);
  if (!S_ISREG(info.st_mode) || info.st_size == 0) return absl::OkStatus();
  void* const at = ::mmap(nullptr, info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, block.fd.get(), 0);
  if (at == MAP_FAILED) return OsError("mmap(block)", errno);
  memset(at, value, info.st_size);
  ::munmap(at, info.st_size);
  return absl::OkStatus();
}

}  // namespace berth
