#include "daemon/device/named_backend.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <utility>

#include "common/error.h"
#include "common/named_memory.h"
#include "common/os_error.h"
#include "common/status_macros.h"

namespace berth {

NamedBackend::NamedBackend(std::string folder, uint32_t ordinal, std::string uuid, Bytes total)
    : folder_(std::move(folder)), ordinal_(ordinal), total_(total), records_(std::move(uuid)) {}

NamedBackend::~NamedBackend() {
  for (const auto& [generation, handle] : handles_) RemoveNamedMemory(folder_, handle).IgnoreError();
}

absl::StatusOr<MemoryBlock> NamedBackend::Allocate(Bytes bytes, absl::string_view tag) {
  BERTH_RETURN_IF_ERROR(ValidateBlockSize(bytes, granularity()));
  if (bytes > total_) return RefuseMoreThan(device(), bytes, total_);
  IpcHandle handle;
  const absl::Status made = CreateNamedMemory(folder_, ordinal_, bytes, &handle).status();
  if (absl::IsResourceExhausted(made)) {
    return Refuse(Reason::kOutOfMemory, "device {device}: {requested} bytes: {why}",
                  {{"device", device()}, {"requested", bytes.count()}, {"why", made.message()}});
  }
  BERTH_RETURN_IF_ERROR(made);
  MemoryBlock block = records_.Add(bytes, tag);
  block.handle = handles_[block.generation] = handle;
  return block;
}

absl::Status NamedBackend::Deallocate(MemoryBlock& block) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  const absl::Status removed = RemoveNamedMemory(folder_, handles_.at(block.generation));
  // Somebody tidied up: that is what was wanted.
  if (!absl::IsNotFound(removed)) BERTH_RETURN_IF_ERROR(removed);
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
  BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, OpenNamedMemory(folder_, handles_.at(block.generation)));
  const size_t size = record.bytes.count();
  void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return OsError("mmap(block)", errno);
  memset(at, value, size);
  ::munmap(at, size);
  return absl::OkStatus();
}

}  // namespace berth
