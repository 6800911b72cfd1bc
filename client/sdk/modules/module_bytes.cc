#include "client/sdk/modules/module_bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/os/os_error.h"
#include "common/sha256.h"

namespace berth::internal {

absl::StatusOr<std::shared_ptr<const ModuleBytes>> ModuleBytes::Map(const UniqueFd& fd, size_t size,
                                                                    const Digest& content) {
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  struct stat info;
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(fd.get(), &info) < 0 ||
      static_cast<size_t>(info.st_size) != size || size == 0) {
    return absl::DataLossError("the node's module is not sealed, or has another size");
  }
  void* const at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (at == MAP_FAILED) return OsError("mmap(module)", errno);
  const std::shared_ptr<const ModuleBytes> bytes(new ModuleBytes(static_cast<const char*>(at), size));
  if (Sha256Of(bytes->bytes()) != content) return absl::DataLossError("the node's module does not match its digest");
  return bytes;
}

ModuleBytes::~ModuleBytes() {
  if (mapped_ != nullptr) ::munmap(const_cast<char*>(mapped_), bytes_.size());
}

}  // namespace berth::internal
